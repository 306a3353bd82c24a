"""ArdiQ: one process, jobs are coroutines, its default prefetch. Results are kept for a second."""

from __future__ import annotations

import asyncio
import os

import bench_jobs
from ardiq import Ardiq

app = Ardiq(
    redis_url=bench_jobs.URL,
    queue_name="bench",
    concurrency=bench_jobs.CONCURRENCY,
    result_ttl_ms=1000,
)


@app.task(name="noop")
async def noop() -> None:
    bench_jobs.count()


nap = app.task(name="nap")(bench_jobs.async_nap)


async def _fill(kind: str, count: int) -> None:
    task = {"noop": noop, "nap": nap}[kind]
    for _ in range(count // 500):
        await app.enqueue_many([task.prepare() for _ in range(500)])


def fill(kind: str, count: int) -> None:
    asyncio.run(_fill(kind, count))


if __name__ == "__main__":
    bench_jobs.main(fill)
    os._exit(0)  # the pushes are done; its core sometimes crashes while the interpreter ends
