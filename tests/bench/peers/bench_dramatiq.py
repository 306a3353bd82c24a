"""Dramatiq: one process. Its default prefetches two messages for each thread; the bench gives it 64
for each (`dramatiq_queue_prefetch`)."""

from __future__ import annotations

import bench_jobs
import dramatiq
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=bench_jobs.URL)
dramatiq.set_broker(broker)
noop = dramatiq.actor(actor_name="noop")(bench_jobs.count)
nap = dramatiq.actor(actor_name="nap")(bench_jobs.nap)


def fill(kind: str, count: int) -> None:
    actor = {"noop": noop, "nap": nap}[kind]
    for _ in range(count):
        actor.send()


if __name__ == "__main__":
    bench_jobs.main(fill)
