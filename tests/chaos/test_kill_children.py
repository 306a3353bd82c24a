"""The full measure of the promise that tests/process checks with fewer jobs: 20,000 jobs of 1 to
5 ms, 4 children, and a SIGKILL to one after the other every 300 ms."""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path

import pytest
from redis import Redis

from tests.process.random_kills import RandomKills
from tests.process.shared import APP, Journal, measured, push_many, settled
from tests.support.server import Server
from tests.support.tree import StartTree


@pytest.mark.bench
def test_twenty_thousand_jobs_under_fire(
    redis: Redis, redis_server: Server, tree: StartTree, tmp_path: Path
) -> None:
    """Lost 0; only what was in flight at a kill runs twice; the median of the returns within
    100 ms."""
    journal = Journal(tmp_path / "journal")
    rows = [[random.uniform(0.001, 0.005)] for _ in range(20_000)]
    jids = push_many(redis_server, "Quick", rows)
    args = ["-w", "4", "-c", "5", "--log-level", "warning"]
    forkq = tree(redis_server, app=APP, args=args, env=journal.env)
    random_kills = RandomKills(forkq, redis, journal)
    began = time.monotonic()
    random_kills.run(every=0.3, until=lambda: settled(redis), deadline=300, most=1000)
    spent = time.monotonic() - began
    random_kills.assert_nothing_lost(jids)
    random_kills.assert_only_the_killed_ran_twice(jids)
    returns = sorted(random_kills.returns())
    measured(
        f"\n20,000 jobs in {spent:.1f} s under {len(random_kills.kills)} kills: lost 0, "
        f"{random_kills.reruns()} jobs ran again, back after "
        f"median {statistics.median(returns) * 1e3:.0f} ms, "
        f"90 % {returns[len(returns) * 9 // 10] * 1e3:.0f} ms, max {returns[-1] * 1e3:.0f} ms"
    )
    assert random_kills.median_return() <= 0.1
    assert forkq.stop() == 0
    forkq.assert_gone()
