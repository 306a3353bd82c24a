"""streaQ: one process, jobs are coroutines, its default prefetch. No results, no line for a job."""

from __future__ import annotations

import asyncio

import bench_jobs
from streaq import Worker

worker = Worker(redis_url=bench_jobs.URL, concurrency=bench_jobs.CONCURRENCY)


@worker.task(name="noop", ttl=0, silent=True)
async def noop() -> None:
    bench_jobs.count()


nap = worker.task(name="nap", ttl=0, silent=True)(bench_jobs.async_nap)


async def _fill(kind: str, count: int) -> None:
    async with worker:
        for _ in range(count // 500):
            task = {"noop": noop, "nap": nap}[kind]
            await worker.enqueue_many([task.enqueue() for _ in range(500)])


def fill(kind: str, count: int) -> None:
    asyncio.run(_fill(kind, count))


if __name__ == "__main__":
    bench_jobs.main(fill)
