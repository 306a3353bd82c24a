"""RQ: as many processes as others have threads, since a worker runs one job at a time. SimpleWorker
runs jobs without a fork for each, as RQ's documentation says for short jobs. No result is kept."""

from __future__ import annotations

import bench_jobs
from redis import Redis
from rq import Queue

noop = bench_jobs.count
nap = bench_jobs.nap


def fill(kind: str, count: int) -> None:
    connection = Redis.from_url(bench_jobs.URL)
    queue = Queue(connection=connection)
    for start in range(0, count, 1000):
        jobs = [
            Queue.prepare_data(
                {"noop": "bench_jobs.count", "nap": "bench_jobs.nap"}[kind], result_ttl=0
            )
            for _ in range(min(1000, count - start))
        ]
        queue.enqueue_many(jobs)


if __name__ == "__main__":
    bench_jobs.main(fill)
