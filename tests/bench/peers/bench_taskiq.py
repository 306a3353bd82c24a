"""Taskiq: the broker on Redis Streams, which acknowledges jobs. One process, jobs are coroutines.
Beyond the ten that run, 100 may wait in the process (`--max-prefetch`): it reads 100 at a time."""

from __future__ import annotations

import asyncio

import bench_jobs
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(bench_jobs.URL, consumer_id="0")


@broker.task(task_name="noop")
async def noop() -> None:
    bench_jobs.count()


nap = broker.task(task_name="nap")(bench_jobs.async_nap)


async def _fill(kind: str, count: int) -> None:
    await broker.startup()
    for _ in range(count // 50):
        await asyncio.gather(*({"noop": noop, "nap": nap}[kind].kiq() for _ in range(50)))
    await broker.shutdown()


def fill(kind: str, count: int) -> None:
    asyncio.run(_fill(kind, count))


if __name__ == "__main__":
    bench_jobs.main(fill)
