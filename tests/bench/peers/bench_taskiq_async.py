"""Taskiq: the broker on Redis Streams, which acknowledges jobs. One process."""

from __future__ import annotations

import asyncio

import bench_coroutines
import bench_jobs
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(bench_jobs.URL, consumer_id="0")
tasks = {name: broker.task(task_name=name)(job) for name, job in bench_coroutines.JOBS.items()}


async def _fill(kind: str, count: int) -> None:
    await broker.startup()
    await bench_coroutines.fill(lambda name: tasks[name].kiq(), kind, count)
    await broker.shutdown()


def fill(kind: str, count: int) -> None:
    asyncio.run(_fill(kind, count))


if __name__ == "__main__":
    bench_jobs.main(fill)
