"""Random flows with a ledger in a server of its own; and, run as a program, the processes that push
them. A tree loads a copy of this file as its app.

The ledger has ``graphs``, by the id of each flow its steps as JSON: of each the steps before it,
with their ``on_failure``; ``pushed``, the flows whose push Redis has confirmed; ``begun``, those of
which a step has run. For each flow it has ``ended:BID``, the steps that have come to their end, and
``ran:BID``, the runs of its steps and callbacks: name and kind of each, after how many failures and
crashes, by which process, and when it had come to its queue. ``unended`` are steps that had not
ended when one behind them ran, ``wrong`` those that got something else than what these have
returned.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Mapping
from typing import Any
from zlib import crc32

from redis import Redis

import forkq
from forkq.features.flow.parts import OnFailure

ledger = Redis.from_url(os.environ["FORKQ_TEST_LEDGER"])
QUEUES = os.environ.get("FORKQ_TEST_QUEUES", "default").split()
LONGEST = float(os.environ.get("FORKQ_TEST_LONGEST", "0.002"))  # seconds that a step takes
HOWS: tuple[OnFailure, ...] = ("wait", "cancel", "run")


def kind_of(bid: str, name: str) -> str:
    """What a step does, the same in each run: most are done at once."""
    kinds = ("dead", "fails", "grows") if name[-1] != "+" else ("dead", "fails")
    number = crc32(f"{bid}{name}".encode()) % 12
    return kinds[number] if number < len(kinds) else "done"


@forkq.job(name="Step", retry=2, backoff=0.05, on_crash="requeue")
def step(bid: str, name: str, before: list[str], results: object) -> str:
    """Notes its run, and looks whether it may run, and what it got."""
    job = forkq.current_job().payload
    failures = 1 + int(job.get("retry_count", -1))
    ledger.sadd("begun", bid)
    kind = kind_of(bid, name)
    note_run(bid, name, kind)
    ended = [each for each in before if ledger.sismember(f"ended:{bid}", each)]
    for missing in {*before} - {*ended}:  # it was cancelled, or this one is early
        ledger.sadd("unended", f"{bid} {missing}")
    good = [each for each in ended if kind_of(bid, each) != "dead"]
    if results != [each if each in good else None for each in before]:
        ledger.rpush("wrong", f"{bid} {name} {results}")
    time.sleep(random.uniform(0, LONGEST))
    if kind == "fails" and not failures:
        raise ValueError("at first")
    if kind == "grows":
        grow(bid, name)
    ledger.sadd(f"ended:{bid}", name)
    if kind == "dead":
        raise forkq.Dead("for ever")
    return name


def note_run(bid: str, name: str, kind: str) -> None:
    """Notes a run. A retry, and a job whose process has died while it ran alone, come to the queue
    by the schedule: then it has another time there."""
    job = forkq.current_job().payload
    crashes = len(job.get("forkq", {}).get("crashes", ()))
    tries = f"{job.get('retry_count', '-')}/{crashes}"
    ledger.rpush(f"ran:{bid}", f"{name} {kind} {tries} {os.getpid()} {job['enqueued_at']}")


def grow(bid: str, name: str) -> None:
    """Adds two steps behind this one: the same in each run."""
    flow, above = forkq.Flow.current(), name
    for added in (f"{name}+", f"{name}++"):
        queue = QUEUES[crc32(added.encode()) % len(QUEUES)]
        taken = [flow.result(above)]
        flow.add(added, step.set(queue=queue).s(bid, added, [above], taken), after=[above])
        above = added
    flow.push()


@forkq.job(name="Called", on_crash="requeue")
def called(bid: str, event: str) -> None:
    """Notes who runs this callback, and when it had come to its queue."""
    note_run(bid, f"on_{event}", "call")


def graph() -> dict[str, dict[str, OnFailure]]:
    """A random graph of 1 to 20 steps."""
    names = [f"s{number}" for number in range(random.randint(1, 20))]
    found = {}
    for at, name in enumerate(names):
        count = min(at, random.choice((0, 1, 1, 1, 2, 3)))
        found[name] = {one: random.choice(HOWS) for one in random.sample(names[:at], count)}
    return found


def flow_of(steps: Mapping[str, Mapping[str, OnFailure]]) -> forkq.Flow:
    """The flow with these steps, in queues of any shard."""
    flow = forkq.Flow()
    bid, jobs = flow.bid, called.set(queue=random.choice(QUEUES))
    calls: dict[str, Any] = {
        f"on_{event}": jobs.s(bid, event) for event in ("success", "finish", "death")
    }
    flow = forkq.Flow(**calls)
    flow.bid = bid
    for name, before in steps.items():
        results = [flow.result(one) for one in before]
        job = step.set(queue=random.choice(QUEUES)).s(bid, name, [*before], results)
        flow.add(name, job, after=[*before], on_failure=before)
    return flow


def make() -> None:
    """Pushes one flow; again, with the same steps, while Redis is away."""
    steps = graph()
    flow = flow_of(steps)
    ledger.hset("graphs", flow.bid, json.dumps(steps))
    while True:
        try:
            flow.push()
        except forkq.ServerUnavailable:
            time.sleep(0.05)
        else:
            break
    ledger.sadd("pushed", flow.bid)


def fork(number: int, rounds: int) -> int:
    """A process that makes flows until all rounds of its number are done."""
    if pid := os.fork():
        return pid
    random.seed()
    while int(ledger.incr(f"rounds:{number}")) <= rounds:
        make()
        while waiting() > 60:  # so that flows run while others are pushed and processes are killed
            time.sleep(0.02)
    os._exit(0)


def waiting() -> int:
    """How many flows were pushed that no step of has run yet."""
    return int(ledger.scard("pushed")) - int(ledger.scard("begun"))


if __name__ == "__main__":
    from tests.support.pushers import push_all  # a tree's copy of this file needs none of it

    rounds = int(sys.argv[2])
    push_all(lambda number: fork(number, rounds), int(sys.argv[1]))
