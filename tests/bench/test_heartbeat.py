"""How late a child's heartbeat is while its processors use the CPU in pure Python."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest
from redis import Redis

from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until

pytestmark = pytest.mark.bench

APP = """
import forkq

@forkq.job(name="Burn")
def burn():
    while not forkq.stopping():
        pass
"""

WATCHED = 62  # seconds: six intervals
LATEST = 12.0  # seconds from one beat to the next: the interval and two more


def _arrivals(redis: Redis, seconds: float) -> tuple[list[float], list[int]]:
    """When each beat of the only child arrived (monotonic), and the round trips in its record."""
    [identity] = redis.smembers("processes")
    arrivals: list[float] = []
    trips: list[int] = []
    last = redis.hget(identity, "beat")
    end = time.monotonic() + seconds

    def look() -> bool:
        nonlocal last
        found: Any = redis.hmget(identity, "beat", "rtt_us")
        beat, trip = found
        if beat != last:
            last = beat
            arrivals.append(time.monotonic())
            trips.append(int(trip))
        return time.monotonic() >= end

    wait_until(look, deadline=seconds + 5, every=0.02, what="the end of the watch")
    return arrivals, trips


@pytest.mark.parametrize("processors", [10, 25])
def test_beats_while_every_processor_spins(
    redis: Redis, redis_server: Server, tree: StartTree, processors: int
) -> None:
    """Prints the gaps between beats and the round trips; none is more than 2 s late."""
    tree(redis_server, app=APP, args=["-c", str(processors), "-t", "1"])
    redis.lpush("queue:default", *[b'{"class":"Burn","args":[],"retry":false}'] * processors)
    wait_until(lambda: redis.hlen("{queue:default}:inflight") == processors, what="all to spin")
    arrivals, trips = _arrivals(redis, WATCHED)
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    listed = ", ".join(f"{gap:.2f}" for gap in gaps)
    print(
        f"\n{processors} spinning processors: gaps of {listed} s; "
        f"round trips of {min(trips) / 1e3:.0f} to {max(trips) / 1e3:.0f} ms"
    )
    assert len(gaps) >= 4
    assert max(gaps) <= LATEST
