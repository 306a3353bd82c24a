"""Docket: one process. Finished jobs are not kept."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

import bench_coroutines
import bench_jobs
from docket import Docket, Worker


def _docket() -> Docket:
    url = f"{bench_jobs.URL}?max_connections=2000"  # 100 by default, and then jobs fail
    made = Docket(name="bench", url=url, execution_ttl=timedelta(0))
    for name, job in bench_coroutines.JOBS.items():
        made.register(job, names=[name])
    return made


async def _fill(kind: str, count: int) -> None:
    async with _docket() as docket:

        async def push(name: str) -> None:
            await docket.add(name)()

        await bench_coroutines.fill(push, kind, count)


def fill(kind: str, count: int) -> None:
    asyncio.run(_fill(kind, count))


async def work() -> None:
    """Runs jobs until it is killed."""
    async with _docket() as docket, Worker(docket, concurrency=bench_jobs.CONCURRENCY) as worker:
        await worker.run_forever()


if __name__ == "__main__":
    if sys.argv[1] == "work":
        asyncio.run(work())
    else:
        bench_jobs.main(fill)
