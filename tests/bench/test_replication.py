"""What a push costs that waits for a replica, beside one that does not: near, and with a network
between the program and Redis, or between Redis and its replica."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import pytest

from forkq.client import Client
from tests.bench.delay import REMEDY, away, has_compiler
from tests.support.server import Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.bench

ROUNDS = 20
PUSHES = 50  # of each kind in a round
ROUND_TRIP = 0.0012  # seconds, as between two zones of a cloud


def _is_online(primary: Server) -> bool:
    found = primary.cli("INFO", "replication")
    return "slave0" in found and found["slave0"]["state"] == "online"


def _took(push: Callable[[], object]) -> float:
    begun = time.perf_counter()
    push()
    return time.perf_counter() - begun


@pytest.mark.parametrize(
    ("name", "to_redis", "to_replica"),
    [
        ("one machine", 0.0, 0.0),
        ("the replica far", 0.0, ROUND_TRIP),
        ("Redis far", ROUND_TRIP, 0.0),
        ("both far", ROUND_TRIP, ROUND_TRIP),
    ],
)
def test_a_push_that_waits(name: str, to_redis: float, to_replica: float) -> None:
    """Prints the quicker half of pushes of both kinds, which take turns."""
    if not has_compiler():
        pytest.skip(REMEDY)
    fast = ("--repl-diskless-sync-delay", "0")
    primary = Server(tcp=True, extra=fast).start()
    with away(primary, to_replica) as seen, away(primary, to_redis) as front:
        replica = Server(tcp=True, extra=("--replicaof", "127.0.0.1", str(seen.port))).start()
        wait_until(lambda: _is_online(primary), deadline=60, what="the replica")
        client = Client(front.url)
        took: dict[int, list[float]] = {0: [], 1: []}
        for _ in range(ROUNDS):
            for wait in took:
                job = {"class": "J", "args": [1], "wait": wait}
                took[wait] += [_took(partial(client.push, job)) for _ in range(PUSHES)]
        client.close()
        replica.close()
    primary.close()
    plain, waits = (
        statistics.mean(sorted(times)[: len(times) // 2]) * 1e6 for times in took.values()
    )
    print(f"\n{name}: {plain:.0f} us a push, {waits:.0f} us with wait=1 ({waits / plain:.2f})")
