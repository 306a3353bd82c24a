"""A unique job that succeeds, fails or is scheduled by chance; and, run as a program, the processes
that push it. A tree loads a copy of this file as its app."""

from __future__ import annotations

import os
import random
import sys
import time

from redis import Redis

import forkq

DOCUMENTS = 60
RUNS, STOP = "test:runs", "test:stop"  # how many runs there were; the pushes end once this is there
redis = Redis.from_url(os.environ["FORKQ_TEST_REDIS"])


@forkq.job(
    name="Index",
    unique_for=3600,
    unique_by=["doc"],
    on_crash="requeue",
    retry=2,
    retry_in=lambda count, error, job: 1,
)
def index(doc: int, push: int) -> None:
    redis.incr(RUNS)
    time.sleep(random.uniform(0.01, 0.1))
    if random.random() < 0.1:
        raise ValueError("it fails by chance")


def fork() -> int:
    if pid := os.fork():
        return pid
    number = 0
    while not redis.exists(STOP):
        number += 1
        doc = random.randrange(DOCUMENTS)
        if random.random() < 0.9:
            index.perform_async(doc, number)
        else:
            index.perform_in(1, doc, number)
        time.sleep(random.uniform(0, 0.01))
    os._exit(0)


if __name__ == "__main__":
    from tests.support.pushers import push_all  # a tree's copy of this file needs none of it

    forkq.configure(url=sys.argv[1])
    push_all(lambda _: fork(), int(sys.argv[2]))
