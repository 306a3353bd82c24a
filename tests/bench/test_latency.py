"""The time from push to start on an idle tree, and the commands that an idle tree sends."""

from __future__ import annotations

import statistics
import time

import pytest
from redis import Redis

from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until

pytestmark = pytest.mark.bench

APP = """
import os, time, forkq, redis
server = redis.Redis.from_url(os.environ["FORKQ_TEST_URL"])

@forkq.job(name="Lap")
def lap(pushed):
    took = time.monotonic() - pushed
    server.lpush("laps", took)
"""

PUSHES = 400
WATCHED = 60  # seconds: a multiple of every period in an idle tree


def _round_trip(client: Redis) -> float:
    """One empty exchange with the server: a job cannot start sooner."""
    started = time.monotonic()
    client.ping()
    return time.monotonic() - started


@pytest.mark.parametrize("children", [1, 4])
def test_idle_push_to_start(server: Server, tree: StartTree, children: int) -> None:
    """Prints the time from a push's beginning to its job's, beside a bare round trip."""
    env = {"FORKQ_TEST_URL": server.url}
    tree(server, app=APP, args=("-w", str(children), "--log-level", "warning"), env=env)
    laps, trips = [], []
    with server.client() as client:
        for number in range(PUSHES):
            body = '{"class":"Lap","jid":"%024x","args":[%r],"retry":false}'
            client.lpush("queue:default", body % (number, time.monotonic()))
            answer = client.brpop("laps", 5)
            assert answer is not None
            laps.append(1000 * float(answer[1]))
            trips.append(1000 * _round_trip(client))
    quantiles = statistics.quantiles(laps, n=100)
    print(
        f"\n{children} children: push to start p50 {quantiles[49]:.2f} ms, p99 {quantiles[98]:.2f} "
        f"ms; a bare PING p50 {statistics.median(trips):.2f} ms"
    )
    assert len(laps) == PUSHES


def test_commands_of_an_idle_tree(server: Server, tree: StartTree) -> None:
    """An idle tree of four children sends at most seven commands a second: heartbeats, and a PING
    on each connection that is silent for two seconds."""
    tree(
        server,
        app=APP,
        args=("-w", "4", "--log-level", "warning"),
        env={"FORKQ_TEST_URL": server.url},
    )
    with server.client() as client:
        wait_until(lambda: client.scard("processes") == 4, what="four process records")
        client.config_resetstat()
        time.sleep(WATCHED)  # the measurement: commands of an idle tree
        stats = client.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
    calls.pop("config|resetstat")
    rate = sum(calls.values()) / WATCHED
    print(f"\n{rate:.2f} commands/s, those inside scripts included; a minute's: {calls}")
    assert rate <= 7
