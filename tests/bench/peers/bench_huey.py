"""Huey: threads, a blocking read of the queue (its default), no result store, no periodic tasks."""

from __future__ import annotations

import bench_jobs
from huey import RedisHuey

huey = RedisHuey("bench", url=bench_jobs.URL, results=False)
noop = huey.task(name="noop")(bench_jobs.count)
nap = huey.task(name="nap")(bench_jobs.nap)


def fill(kind: str, count: int) -> None:
    task = {"noop": noop, "nap": nap}[kind]
    for _ in range(count):
        task()


if __name__ == "__main__":
    bench_jobs.main(fill)
