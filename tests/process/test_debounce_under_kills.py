"""`debounce` while pushers and children are killed: the last arguments of each burst run, once for
each quiet time, and at the latest `debounce_max` after the first push.

What Redis has done, in its order, is what MONITOR tells: each change of a lock, of the schedule and
of the queue. A model in Python goes through that, and knows what may come next.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import psutil
import pytest
from redis import Redis

from tests.process.shared import measured, settled, workers
from tests.support import bound
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

APP = Path(__file__).with_name("debounced_app.py")
QUIET, LONGEST = 200, 800  # milliseconds
LOCK, SCHEDULE, QUEUE = "forkq:unique:", "schedule", "queue:default"


class Burst:
    """What is known of the pushes of one document that one run is to come of; all times in
    milliseconds. ``first``: when they began; ``due``: when the ``jid`` of the last is due."""

    def __init__(self, first: int, due: int, jid: str) -> None:
        self.first = first
        self.due = due
        self.jid = jid


class Model:
    """Goes through what Redis has done, and fails at what may not come."""

    def __init__(self) -> None:
        self.waiting: dict[int, Burst] = {}
        self.overdue: dict[str, Burst] = {}  # by jid: a burst that is over, and the clock is late
        self.moved: list[str] = []
        self.replaced: set[str] = set()
        self.late: list[float] = []  # how many ms after its due time each has gone to its queue
        self.cut_short = 0  # bursts that ran since they had lasted for so long

    def take(self, command: str, at: float) -> None:
        """One command of a script, at that moment (epoch seconds)."""
        if command.startswith(f"HSET {LOCK}"):
            self._push(command)
        elif command.startswith(f"LPUSH {QUEUE} "):
            for job in _jobs_in(command):
                self._move(job, 1000 * at)

    def _push(self, command: str) -> None:
        [job] = _jobs_in(command)
        words = command.split(" ")
        at, due, latest = (int(words[words.index(name) + 1]) for name in ("at", "due", "latest"))
        before = self.waiting.get(job["args"][0])
        assert latest - at == LONGEST
        assert due <= latest
        if before is not None and at >= before.first + LONGEST:
            self.overdue[before.jid], before = before, None
        if before is None:
            assert due - at == QUIET, "the first push waits for just the quiet time"
        else:
            assert at == before.first, "a burst has one beginning"
            assert due >= before.due
            self.replaced.add(before.jid)
        self.waiting[job["args"][0]] = Burst(at, due, job["jid"])

    def _move(self, job: dict[str, Any], at: float) -> None:
        if job["jid"] in self.moved:
            return  # its child was killed
        burst = self.overdue.pop(job["jid"], None) or self.waiting.pop(job["args"][0])
        assert job["jid"] == burst.jid, "not the arguments of the last push"
        assert at >= burst.due - 5
        self.moved.append(job["jid"])
        self.late.append(at - burst.due)
        self.cut_short += burst.due == burst.first + LONGEST


def _jobs_in(command: str) -> Iterator[dict[str, Any]]:
    """The payloads among the arguments of a command."""
    decode, at = json.JSONDecoder().raw_decode, command.find('{"retry"')
    while at >= 0:
        job, at = decode(command, at)
        yield job
        at = command.find('{"retry"', at)


@contextmanager
def watched(server: Server, model: Model) -> Iterator[None]:
    """Shows the model what the scripts of Redis do meanwhile."""
    errors: list[Exception] = []
    with Redis.from_url(server.url, protocol=2).monitor() as monitor:  # type: ignore[no-untyped-call]

        def look() -> None:
            while (seen := monitor.next_command())["command"] != "ECHO over":
                if seen["client_type"] == "lua" and not errors:
                    try:
                        model.take(seen["command"], seen["time"])
                    except Exception as error:  # noqa: BLE001 - raised in the test's thread
                        errors.append(error)

        thread = Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            server.client().echo("over")
            thread.join()
    if errors:
        raise errors[0]


def kill_one(tree: ForkqTree, program: subprocess.Popen[bytes]) -> int:
    """A SIGKILL to a process that pushes, or now and then to a child. Returns how many there
    were."""
    with suppress(psutil.NoSuchProcess, IndexError):
        pushers = psutil.Process(program.pid).children()
        random.choice(pushers if random.random() < 0.8 else workers(tree)).kill()
        return 1
    return 0


def pushes(ledger: Redis) -> int:
    found: Any = ledger.keys("version:*")
    return sum(int(ledger.get(key) or 0) for key in found)


def run(
    trees: StartTree, server: Server, book: Server, *, pushers: int, rounds: int, kills: int
) -> Model:
    """Pushes and kills until all pushes are done, and all jobs have run."""
    ledger, redis, model, done = book.client(), server.client(), Model(), 0
    times = f"{QUIET / 1000} {LONGEST / 1000}"
    environ = {"FORKQ_TEST_LEDGER": book.url, "FORKQ_TEST_DEBOUNCE": times}
    tree = trees(server, app=APP, args=["-w", "2", "-c", "4", "--log-level", "error"], env=environ)
    with watched(server, model):
        command = bound.command([sys.executable, str(APP), server.url, str(pushers), str(rounds)])
        program = subprocess.Popen(command, env={**os.environ, **environ})
        try:
            while done < kills and program.poll() is None:
                wait_for_pushes(ledger, program, pushes(ledger) + pushers)
                done += kill_one(tree, program)
            wait_until(lambda: program.poll() is not None, deadline=600, what="all pushes")
        finally:
            end(program)
        wait_until(
            lambda: settled(redis) and not redis.exists(SCHEDULE), deadline=120, what="all runs"
        )
    assert done >= kills / 2
    measured(
        f"{pushes(ledger)} pushes, {done} SIGKILLs: {len(model.moved)} runs, {model.cut_short} at "
        f"the latest time; the clock was late by {median(model.late):.0f} ms (median), and "
        f"{max(model.late):.0f} ms (most)"
    )
    assert_kept(model, redis, ledger)
    return model


def assert_kept(model: Model, redis: Redis, ledger: Redis) -> None:
    """All that waited has run, and no job that has given way."""
    found: Any = ledger.lrange("ran", 0, -1)
    ran = {jid.decode() for jid in found}
    assert (model.waiting, model.overdue) == ({}, {})
    assert redis.keys(f"{LOCK}*") == []
    assert ran == set(model.moved)
    assert not ran & model.replaced
    assert len(model.moved) == len(set(model.moved))
    assert model.replaced
    assert 0 < model.cut_short < len(model.moved)


def wait_for_pushes(ledger: Redis, program: subprocess.Popen[bytes], count: int) -> None:
    wait_until(
        lambda: program.poll() is not None or pushes(ledger) >= count,
        every=0.02,
        what="more pushes",
    )


def end(program: subprocess.Popen[bytes]) -> None:
    """Ends a program that pushes, and its processes."""
    found = psutil.Process(program.pid).children() if program.poll() is None else []
    program.kill()
    program.wait()
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def test_the_last_push_of_a_burst_runs_once(
    tree: StartTree, redis_server: Server, own_server: Server
) -> None:
    run(tree, redis_server, own_server, pushers=8, rounds=60, kills=10)


@pytest.mark.slow
def test_32_pushers_over_20_documents(
    tree: StartTree, redis_server: Server, own_server: Server
) -> None:
    run(tree, redis_server, own_server, pushers=32, rounds=300, kills=60)
