"""streaQ: one process, its default prefetch. No results, no line for a job."""

from __future__ import annotations

import asyncio

import bench_coroutines
import bench_jobs
from streaq import Worker

worker = Worker(redis_url=bench_jobs.URL, concurrency=bench_jobs.CONCURRENCY)
tasks = {
    name: worker.task(name=name, ttl=0, silent=True)(job)
    for name, job in bench_coroutines.JOBS.items()
}


async def _push(name: str) -> None:
    await tasks[name].enqueue()


async def _fill(kind: str, count: int) -> None:
    async with worker:
        await bench_coroutines.fill(_push, kind, count)


def fill(kind: str, count: int) -> None:
    asyncio.run(_fill(kind, count))


if __name__ == "__main__":
    bench_jobs.main(fill)
