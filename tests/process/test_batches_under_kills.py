"""Batches while children and pushers are killed: each callback comes, none early, and none again
but where the process that ran it was killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from redis import Redis

import forkq
from forkq import api
from tests.process.shared import settled, workers
from tests.support import bound
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

APP = Path(__file__).with_name("batches_app.py")


def start_pushers(
    server: Server, ledger: Server, pushers: int, rounds: int
) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(APP), server.url, str(pushers), str(rounds)]
    environ = {**os.environ, "FORKQ_TEST_LEDGER": ledger.url}
    return subprocess.Popen(bound.command(command), env=environ)


def kill_one(tree: ForkqTree, program: subprocess.Popen[bytes], killed: set[int]) -> None:
    """A SIGKILL to a child, or to a process that pushes."""
    found = workers(tree)
    if program.poll() is None:
        found += psutil.Process(program.pid).children()
    with suppress(psutil.NoSuchProcess, IndexError):
        one = random.choice(found)
        one.kill()
        killed.add(one.pid)


def end(program: subprocess.Popen[bytes]) -> None:
    found = psutil.Process(program.pid).children() if program.poll() is None else []
    program.kill()
    program.wait()
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def is_over(redis: Redis) -> bool:
    return settled(redis) and not redis.exists("schedule", "retry")


def runs_of(ledger: Redis, name: str) -> dict[str, list[int]]:
    """By which processes each callback was run, without those that were never run."""
    runs = {}
    for event in ("death", "finish", "success"):
        found: Any = ledger.lrange(f"called:{name}:{event}", 0, -1)
        if found:
            runs[event] = [int(pid) for pid in found]
    return runs


def assert_kept(report: api.BatchReport, ledger: Redis, killed: set[int]) -> None:
    """A batch whose pusher was killed in its block stays open; each other one is finished."""
    assert report.waiting == 0
    expected = {"death"} if report.dead else set()
    if report.state != "open":
        expected |= {"finish"} | ({"success"} if report.done == report.total else set())
    runs = runs_of(ledger, report.name)
    assert runs.keys() == expected, report
    again = [pid for pids in runs.values() for pid in pids[:-1] if pid not in killed]
    assert again == [], "a callback was run again, and no process that ran it was killed"


def test_each_callback_comes_once_however_many_processes_are_killed(
    tree: StartTree, redis_server: Server, own_server: Server
) -> None:
    ledger, redis, killed = own_server.client(), redis_server.client(), set[int]()
    environ = {"FORKQ_TEST_LEDGER": own_server.url}
    args = ["-w", "2", "-c", "4", "--log-level", "error"]
    running = tree(redis_server, app=APP, args=args, env=environ)
    program = start_pushers(redis_server, own_server, 3, 12)
    try:
        while len(killed) < 10 and program.poll() is None:
            before = redis.zcard("forkq:batches")
            wait_until(
                lambda: program.poll() is not None or redis.zcard("forkq:batches") > before,  # noqa: B023
                every=0.02,
                what="one more batch",
            )
            kill_one(running, program, killed)
        wait_until(lambda: program.poll() is not None, deadline=300, what="all pushes")
    finally:
        end(program)
    wait_until(lambda: is_over(redis), deadline=300, what="the end of all jobs")
    client = forkq.Client(redis_server.url)
    reports = api.batches(client.servers)
    client.close()
    assert len(reports) >= 30
    assert killed
    for report in reports:
        assert_kept(report, ledger, killed)
    assert ledger.lrange("early", 0, -1) == []
    assert {"finished", "succeeded"} <= {report.state for report in reports}
