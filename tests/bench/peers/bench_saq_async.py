"""SAQ: hiredis, one process. Results are not kept (`ttl=-1`), and no job is ended after 10 s."""

from __future__ import annotations

import asyncio
from typing import Any

import bench_coroutines
import bench_jobs
from saq import Queue

queue = Queue.from_url(bench_jobs.URL)


def _task(name: str) -> Any:
    async def run(context: object) -> None:
        await bench_coroutines.JOBS[name]()

    return name, run


settings = {
    "queue": queue,
    "functions": [_task(name) for name in bench_coroutines.JOBS],
    "concurrency": bench_jobs.CONCURRENCY,
}


async def _fill(kind: str, count: int) -> None:
    await bench_coroutines.fill(lambda name: queue.enqueue(name, ttl=-1, timeout=0), kind, count)
    await queue.disconnect()


def fill(kind: str, count: int) -> None:
    asyncio.run(_fill(kind, count))


if __name__ == "__main__":
    bench_jobs.main(fill)
