"""Batches with a ledger in a server of its own; and, run as a program, the processes that push
them. A tree loads a copy of this file as its app.

The ledger has ``made``, the names of batches that were begun, and for each batch: ``members``,
whose push Redis has confirmed; ``ended``, those that have ended a run; ``called:EVENT``, by which
processes that callback was run, and when it had come to its queue; ``early``, callbacks that found
a member which had not ended.
"""

from __future__ import annotations

import os
import random
import sys
import time
from typing import Any

from redis import Redis

import forkq

ledger = Redis.from_url(os.environ["FORKQ_TEST_LEDGER"])
QUEUES = os.environ.get("FORKQ_TEST_QUEUES", "default").split()
LONGEST = float(os.environ.get("FORKQ_TEST_LONGEST", "0.01"))  # seconds that a member takes


@forkq.job(name="Member", retry=2, backoff=0.05, on_crash="requeue")
def member(batch: str, number: str, more: int) -> None:
    """Ends after a moment; some fail at first, some for ever, and some push further members."""
    time.sleep(random.uniform(0, LONGEST))
    kind = hash_of(number)
    if kind == 0 and ledger.hincrby("failed", number, 1) == 1:
        raise ValueError("at first")
    if kind == 1:
        ledger.sadd(f"ended:{batch}", number)
        raise ValueError("for ever")
    if more:
        with forkq.Batch.current():
            push(batch, f"{number}+", more - 1)
    ledger.sadd(f"ended:{batch}", number)


@forkq.job(name="Called", on_crash="requeue")
def called(batch: str, event: str) -> None:
    """Notes which members had not ended, and who runs it."""
    if event != "death" and ledger.sdiff([f"members:{batch}", f"ended:{batch}"]):
        ledger.rpush("early", f"{batch} {event}")
    came = forkq.current_job().payload["enqueued_at"]
    ledger.rpush(f"called:{batch}:{event}", f"{os.getpid()} {came}")


def hash_of(number: str) -> int:
    """What kind of member it is: by its number, so the same in each run."""
    return sum(map(ord, number)) % 9


def push(batch: str, number: str, more: int) -> None:
    """Pushes one member, and notes it once Redis has confirmed that."""
    member.set(queue=random.choice(QUEUES)).perform_async(batch, number, more)
    ledger.sadd(f"members:{batch}", number)


def make(number: int) -> None:
    """Makes one batch, and fills it while its members run."""
    name = f"{os.getpid()}-{number}-{random.getrandbits(32):08x}"
    ledger.sadd("made", name)
    calls: Any = {
        f"on_{event}": called.set(queue=random.choice(QUEUES)).s(name, event)
        for event in ("death", "finish", "success")
    }
    with forkq.Batch(name, **calls):
        for each in range(random.randint(0, 12)):
            push(name, f"{name}.{each}", random.choice((0, 0, 0, 1)))
            if random.random() < 0.3:
                time.sleep(LONGEST / 2)


def fork(number: int, rounds: int) -> int:
    """A process that makes batches until all rounds of its number are done."""
    if pid := os.fork():
        return pid
    random.seed()
    while (turn := int(ledger.incr(f"rounds:{number}"))) <= rounds:
        try:
            make(turn)
        except forkq.ServerUnavailable:  # it stays broken, or open, and another one is made
            ledger.decr(f"rounds:{number}")
            time.sleep(0.1)
    os._exit(0)


if __name__ == "__main__":
    from tests.support.pushers import push_all  # a tree's copy of this file needs none of it

    rounds = int(sys.argv[2])
    push_all(lambda number: fork(number, rounds), int(sys.argv[1]))
