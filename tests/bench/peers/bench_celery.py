"""Celery. Its guide "Optimizing" says for many short tasks: a large prefetch multiplier, 64 or 128.
Results, events and the broker's remote control are off, which its guides name as costs."""

from __future__ import annotations

import bench_jobs
from celery import Celery

app = Celery("bench", broker=bench_jobs.URL)
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=64,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
)
noop = app.task(name="noop")(bench_jobs.count)
nap = app.task(name="nap")(bench_jobs.nap)


def fill(kind: str, count: int) -> None:
    task = {"noop": noop, "nap": nap}[kind]
    with app.producer_pool.acquire() as producer:
        for _ in range(count):
            task.apply_async(producer=producer)


if __name__ == "__main__":
    bench_jobs.main(fill)
