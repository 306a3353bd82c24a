"""A debounced job that notes its runs in a server of its own; and, run as a program, the processes
that push it. A tree loads a copy of this file as its app."""

from __future__ import annotations

import os
import random
import sys
import time

from redis import Redis

import forkq

DOCS = 20
QUIET, LONGEST = (float(each) for each in os.environ["FORKQ_TEST_DEBOUNCE"].split())  # seconds
ledger = Redis.from_url(os.environ["FORKQ_TEST_LEDGER"])


@forkq.job(
    name="Index", debounce=QUIET, debounce_max=LONGEST, unique_by=["doc"], on_crash="requeue"
)
def index(doc: int, version: int) -> None:
    """Notes that it runs."""
    job = forkq.current_job()
    assert job is not None
    ledger.rpush("ran", job.jid)
    time.sleep(random.uniform(0, 0.01))


def fork(number: int, rounds: int) -> int:
    """A process that pushes: some documents all the time, others now and then."""
    if pid := os.fork():
        return pid
    random.seed()
    while int(ledger.incr(f"rounds:{number}")) <= rounds:
        doc = int(DOCS * random.random() ** 3)
        index.perform_async(doc, ledger.incr(f"version:{doc}"))
        time.sleep(random.uniform(0, 0.05))
    os._exit(0)


if __name__ == "__main__":
    from tests.support.pushers import push_all  # a tree's copy of this file needs none of it

    forkq.configure(url=sys.argv[1])
    rounds = int(sys.argv[3])
    push_all(lambda number: fork(number, rounds), int(sys.argv[2]))
