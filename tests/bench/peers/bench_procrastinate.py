"""Procrastinate: PostgreSQL, without a wait for the disk; one process. Ended jobs are deleted."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import bench_coroutines
import bench_jobs
from procrastinate import App, PsycopgConnector

app = App(connector=PsycopgConnector(conninfo=os.environ["BENCH_POSTGRES"]))
tasks: dict[str, Any] = {
    name: app.task(name=name)(job) for name, job in bench_coroutines.JOBS.items()
}


async def _fill(kind: str, count: int) -> None:
    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        await app.connector.execute_query_async("TRUNCATE procrastinate_jobs CASCADE")
        await bench_coroutines.fill(lambda name: tasks[name].defer_async(), kind, count)


def fill(kind: str, count: int) -> None:
    asyncio.run(_fill(kind, count))


async def work() -> None:
    """Runs jobs until it is killed."""
    async with app.open_async():
        most = bench_jobs.CONCURRENCY
        await app.run_worker_async(concurrency=most, delete_jobs="always", listen_notify=True)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        asyncio.run(work())
    else:
        bench_jobs.main(fill)
