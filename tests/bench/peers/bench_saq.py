"""SAQ: hiredis, one process, jobs are coroutines. Results are not kept (`ttl=-1`)."""

from __future__ import annotations

import asyncio

import bench_jobs
from saq import Queue

queue = Queue.from_url(bench_jobs.URL)


async def noop(context: object) -> None:
    bench_jobs.count()


async def nap(context: object) -> None:
    await bench_jobs.async_nap()


settings = {"queue": queue, "functions": [noop, nap], "concurrency": bench_jobs.CONCURRENCY}


async def _fill(kind: str, count: int) -> None:
    for _ in range(count // 50):
        await asyncio.gather(*(queue.enqueue(kind, ttl=-1) for _ in range(50)))
    await queue.disconnect()


def fill(kind: str, count: int) -> None:
    asyncio.run(_fill(kind, count))


if __name__ == "__main__":
    bench_jobs.main(fill)
