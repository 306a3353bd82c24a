"""What one job that kills its process costs the others: nothing but one repetition.

`pytest tests/bench/test_poison.py -m bench -n0 -s`. A thousand good jobs of 5 ms to 5 s, pushed at
a steady pace, so that processors are free; the poison comes in the middle.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

import pytest
from redis import Redis

from tests.process.shared import APP, Journal, payloads, push, settled
from tests.process.test_isolation import POISON, assert_only_poison_died
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until

pytestmark = pytest.mark.bench

GOOD = 1000
PACE = 0.02  # seconds between two pushes
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 5.0)
WEIGHTS = (30, 30, 20, 10, 5, 3, 1, 1)


@pytest.fixture
def journal(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    """The lines that the jobs write."""
    return Journal(tmp_path_factory.mktemp("poison") / "journal")


@pytest.mark.parametrize("poisons", [1, 10])
def test_poison_among_a_thousand(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal, poisons: int
) -> None:
    options = ["-w", "3", "-c", "10", "--log-level", "warning"]
    forkq = tree(redis_server, app=APP, args=options, env=journal.env)
    pushed: dict[str, float] = {}
    bad: list[str] = []
    when = sorted(random.sample(range(GOOD // 4, 3 * GOOD // 4), poisons)) if poisons > 1 else [500]
    for number in range(GOOD):
        at = time.monotonic()
        pushed[push(redis_server, "Quick", random.choices(SECONDS, WEIGHTS)[0])] = at
        if number in when:
            name, args = POISON[len(bad) % len(POISON)]
            bad.append(push(redis_server, name, *args))
        time.sleep(max(0.0, PACE - (time.monotonic() - at)))
    wait_until(
        lambda: settled(redis) and redis.zcard("dead") == poisons, deadline=120, what="the end"
    )
    assert_only_poison_died(redis, journal, list(pushed), bad)
    _report(journal, pushed, bad, payloads(redis, "dead"))
    assert forkq.stop() == 0


def _report(
    journal: Journal, pushed: dict[str, float], bad: list[str], dead: list[dict[str, Any]]
) -> None:
    runs = journal.runs()
    waits = sorted(runs[jid][0].at - at for jid, at in pushed.items())
    kills = sorted(line.at for jid in bad for line in runs[jid])
    again = [
        runs[jid][1].at - max(at for at in kills if at <= runs[jid][1].at)
        for jid in pushed
        if len(runs[jid]) > 1
    ]
    counted = [sum(c.get("alone") is True for c in job["forkq"]["crashes"]) for job in dead]
    p50, p99 = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
    print(
        f"\n{len(bad)} poison among {len(pushed)}: start after the push p50 {p50 * 1e3:.1f} ms, "
        f"p99 {p99 * 1e3:.1f} ms, worst {waits[-1] * 1e3:.0f} ms; children killed {len(kills)}; "
        f"innocent repetitions {len(again)}, crash to re-run median "
        f"{statistics.median(again or [0]) * 1e3:.0f} ms, worst {max(again or [0]) * 1e3:.0f} ms; "
        f"crashes that counted {counted}"
    )
