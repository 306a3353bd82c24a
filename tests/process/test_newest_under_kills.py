"""`on_duplicate="latest"` while children and pushers are killed: never two at once, and the last
change always runs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

from tests.process.shared import measured, settled, workers
from tests.support import bound
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

APP = Path(__file__).with_name("newest_app.py")


def is_over(redis: Redis) -> bool:
    """Whether no job is anywhere, and no lock is left."""
    return (
        settled(redis)
        and not redis.exists("schedule", "retry", "forkq:tickets")
        and not redis.keys("forkq:unique:*")
    )


def start_pushers(
    server: Server, ledger: Server, pushers: int, rounds: int, how: str = "latest"
) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(APP), server.url, str(pushers), str(rounds)]
    environ = {**os.environ, "FORKQ_TEST_LEDGER": ledger.url, "FORKQ_TEST_ON_DUPLICATE": how}
    return subprocess.Popen(bound.command(command), env=environ)


def kill_one(tree: ForkqTree, program: subprocess.Popen[bytes]) -> int:
    """A SIGKILL to a child, or to a process that pushes. Returns how many there were."""
    found = workers(tree)
    if program.poll() is None:
        found += psutil.Process(program.pid).children()
    with suppress(psutil.NoSuchProcess, IndexError):
        random.choice(found).kill()
        return 1
    return 0


def wait_for_progress(ledger: Redis, program: subprocess.Popen[bytes]) -> None:
    """Waits until another version is synced, or all pushes are done."""
    before = numbers(ledger, "synced")
    wait_until(
        lambda: program.poll() is not None or numbers(ledger, "synced") != before,
        every=0.02,
        what="one more run",
    )


def numbers(ledger: Redis, kind: str) -> dict[str, int]:
    """What the ledger has of each document under that name."""
    found: Any = ledger.keys(f"{kind}:*")
    return {key.decode().partition(":")[2]: int(ledger.get(key) or 0) for key in found}


def run(
    trees: StartTree, server: Server, book: Server, *, pushers: int, rounds: int, kills: int
) -> Redis:
    """Pushes and kills until all pushes are done and all jobs have ended. Returns the ledger."""
    ledger, redis = book.client(), server.client()
    environ = {"FORKQ_TEST_LEDGER": book.url}
    tree = trees(server, app=APP, args=["-w", "2", "-c", "4", "--log-level", "error"], env=environ)
    program = start_pushers(server, book, pushers, rounds)
    try:
        done = 0
        while done < kills and program.poll() is None:
            wait_for_progress(ledger, program)
            done += kill_one(tree, program)
        wait_until(lambda: program.poll() is not None, deadline=600, what="all pushes")
    finally:
        end(program)
    wait_until(lambda: is_over(redis), deadline=300, what="the end of all jobs")
    assert not redis.exists("dead")
    assert done >= kills / 6
    measured(f"{pushers} pushers of {rounds} rounds each, and {done} SIGKILLs, keep the promise")
    return ledger


def assert_kept(ledger: Redis) -> None:
    """Never two at once, and the last change has run; of one pusher the newest came last."""
    assert ledger.lrange("overlaps", 0, -1) == []
    known, synced = numbers(ledger, "known"), numbers(ledger, "synced")
    assert known
    assert {doc: synced.get(doc, 0) for doc in known if synced.get(doc, 0) < known[doc]} == {}
    for doc in (doc for doc in known if doc.startswith("own")):
        found: Any = ledger.lrange(f"given:{doc}", 0, -1)
        given = [int(version) for version in found]
        assert given == sorted(given)
        assert given[-1] >= known[doc]


def test_the_last_change_runs_and_never_two_at_once(
    tree: StartTree, redis_server: Server, own_server: Server
) -> None:
    ledger = run(tree, redis_server, own_server, pushers=6, rounds=60, kills=12)
    assert_kept(ledger)


def test_the_ledger_notices_two_at_once(
    tree: StartTree, redis_server: Server, own_server: Server
) -> None:
    """With "replace" a job may run beside the one that runs."""
    environ = {"FORKQ_TEST_LEDGER": own_server.url, "FORKQ_TEST_ON_DUPLICATE": "replace"}
    tree(redis_server, app=APP, args=["-c", "8", "--log-level", "error"], env=environ)
    program = start_pushers(redis_server, own_server, 2, 10_000, "replace")
    try:
        wait_until(lambda: own_server.client().llen("overlaps") > 0, what="two at once")
    finally:
        end(program)


def end(program: subprocess.Popen[bytes]) -> None:
    """Ends a program that pushes, and its processes."""
    found = psutil.Process(program.pid).children() if program.poll() is None else []
    program.kill()
    program.wait()
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.mark.slow
def test_32_pushers_and_10_000_rounds(
    tree: StartTree, redis_server: Server, own_server: Server
) -> None:
    ledger = run(tree, redis_server, own_server, pushers=32, rounds=313, kills=60)
    assert_kept(ledger)
