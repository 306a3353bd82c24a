"""forkq: a capsule of coroutines, its defaults but for their number."""

from __future__ import annotations

import asyncio

import bench_coroutines
import bench_jobs

import forkq

tasks = {name: forkq.job(name=name)(job) for name, job in bench_coroutines.JOBS.items()}


async def _fill(kind: str, count: int) -> None:
    client = forkq.configure(bench_jobs.URL)
    await bench_coroutines.fill(lambda name: tasks[name].aperform_async(), kind, count)
    await client.aclose()


def fill(kind: str, count: int) -> None:
    asyncio.run(_fill(kind, count))


if __name__ == "__main__":
    bench_jobs.main(fill)
