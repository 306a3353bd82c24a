"""What becomes of jobs whose worker is killed: each peer as peers.py starts it.

The worker and all that it has started get SIGKILL five times while they run jobs of 10 ms, and each
time it is started again. Then it has a minute. A job counts itself when it ends, so one that has
run twice may hide one that has not run: what is missing is the least.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.bench.compare.cell import Failed, Stage, has_run
from tests.bench.compare.counts import Counts
from tests.bench.compare.environments import prepare
from tests.bench.compare.peers import PEERS
from tests.support.server import Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.bench

JOBS = 2000
KILLS = 5
BOOT = 20.0  # seconds in which a worker that was started must run a part of the jobs
PATIENCE = float(os.environ.get("FORKQ_BENCH_PATIENCE", "60"))  # seconds after the last start
POLL = 0.01


@pytest.mark.parametrize("name", PEERS)
def test_the_jobs_of_a_killed_worker(name: str, server: Server) -> None:
    """Prints how many runs the jobs had to their end, and when the last one ended."""
    found = prepare(PEERS[name])
    if found.missing:
        pytest.skip(f"{name}: {found.missing}")
    stage = Stage(server, PEERS[name], found, threads=10)
    with stage.filled(stage.push("nap", JOBS)) as counts:
        kills = sum(1 for _ in range(KILLS) if _run_some_and_kill(stage, counts))
        with stage.started(server.url, counts):
            ended, seconds = _last_run(counts)
    print(f"\n{name} {found.version}: {ended:,} runs of {JOBS:,} jobs", end="; ")
    print(f"{kills} kills while jobs ran", end="; ")
    print(f"the last one {seconds:.1f} s after the last start", end="")


def _run_some_and_kill(stage: Stage, counts: Counts) -> bool:
    """Whether some jobs ran. Otherwise dead workers of this peer have all jobs that are left."""
    enough = counts.total() + JOBS // (KILLS + 2)
    try:
        with stage.started(stage.server.url, counts) as process:
            wait_until(
                lambda: has_run(process, counts, enough), deadline=BOOT, what="jobs", every=POLL
            )
    except Failed:
        return False
    return True


def _last_run(counts: Counts) -> tuple[int, float]:
    """How many jobs have ended when the patience or the jobs are over, and after how many seconds
    the last one did."""
    began = latest = time.monotonic()
    ended = counts.total()
    while ended < JOBS and time.monotonic() < began + PATIENCE:
        time.sleep(POLL)
        if (now := counts.total()) > ended:
            ended, latest = now, time.monotonic()
    return ended, latest - began
