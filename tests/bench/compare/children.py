"""Several children on one queue: the rate, and what each process uses for a job."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from forkq.values import replace
from tests.bench.compare.cell import Keys, Stage
from tests.bench.compare.counts import Counts
from tests.bench.compare.environments import prepare
from tests.bench.compare.peers import FORKQ, PEERS
from tests.bench.compare.quota import can_limit, half_a_processor
from tests.bench.compare.record import Row
from tests.support.server import Server
from tests.support.waiting import NotInTime, wait_until

CHILDREN = (1, 2, 4)
JOBS = {"noop": 200_000, "spin": 12_000}
THREADS = 10


@dataclass(frozen=True)
class Use:
    """What a process has used so far: seconds of CPU, and how often it slept."""

    cpu: float
    sleeps: int


def _use(process: psutil.Process) -> Use:
    times = process.cpu_times()
    return Use(times.user + times.system, _sleeps(process.pid))


def _sleeps(pid: int) -> int:
    """Voluntary context switches of all threads: psutil counts those of the first one only."""
    statuses = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    found = [re.search(r"^voluntary_ctxt_switches:\s*(\d+)", one, re.MULTILINE) for one in statuses]
    return sum(int(one[1]) for one in found if one)


def several(server: Server, rounds: int, window: float) -> Iterator[Row]:
    """A row for each number of children, in turn, round by round."""
    found = prepare(PEERS[FORKQ])
    speeds = (1.0, 0.5) if can_limit() else (1.0,)
    for kind, jobs in JOBS.items():
        keys = Stage(server, PEERS[FORKQ], found, THREADS).push(kind, jobs)
        for number in range(rounds):
            for speed in speeds:
                for count in CHILDREN:
                    peer = replace(PEERS[FORKQ], worker=f"{PEERS[FORKQ].worker} -w {count}")
                    stage = Stage(server, peer, found, THREADS)
                    row = _measure(stage, keys, jobs, count, speed, window)
                    yield {"round": number, "kind": kind, "speed": speed, "children": count, **row}


def _measure(stage: Stage, keys: Keys, jobs: int, count: int, speed: float, window: float) -> Row:
    with stage.running(keys, stage.server.url) as (master, counts), ExitStack() as limits:
        children = wait_until(lambda: _children(master, count), deadline=30, what="the children")
        redis = psutil.Process(stage.server.pid)
        if speed < 1:
            for process in (redis, *children):
                limits.enter_context(half_a_processor(process.pid))
        return _window(counts, jobs, children, redis, window)


def _children(master: psutil.Process, count: int) -> list[psutil.Process]:
    """All of them, once they have their titles."""
    found = [one for one in master.children() if "forkq child" in " ".join(one.cmdline())]
    return found if len(found) == count else []


def _window(
    counts: Counts, jobs: int, children: list[psutil.Process], redis: psutil.Process, window: float
) -> Row:
    processes = [redis, *children]
    wait_until(
        lambda: counts.total() >= jobs // 10, deadline=20, what="the first jobs", every=0.002
    )
    begun, first, before = time.monotonic(), counts.total(), [_use(one) for one in processes]
    with contextlib.suppress(NotInTime):
        wait_until(lambda: counts.total() >= jobs * 0.95, deadline=window, what="", every=0.002)
    seconds, done = time.monotonic() - begun, counts.total() - first
    used = [_less(_use(one), old) for one, old in zip(processes, before, strict=True)]
    return {
        "rate": done / seconds,
        "redis_us": 1e6 * used[0].cpu / done,
        "child_us": 1e6 * sum(use.cpu for use in used[1:]) / done,
        "redis_share": used[0].cpu / seconds,
        "child_share": max(use.cpu for use in used[1:]) / seconds,
        "sleeps": sum(use.sleeps for use in used[1:]) / done,
        "load": psutil.getloadavg()[0],
    }


def _less(now: Use, before: Use) -> Use:
    return Use(now.cpu - before.cpu, now.sleeps - before.sleeps)
