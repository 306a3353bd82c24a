"""How soon a cancelled job ends beside a million others, and what others wait meanwhile."""

from __future__ import annotations

import json
import statistics
import threading
import time
from typing import Any

import pytest
from redis import Redis

import forkq
from tests.redis.in_process_clock import InProcessClock
from tests.support.server import Server
from tests.support.waiting import wait_until, within

pytestmark = pytest.mark.bench

ENTRIES = 1_000_000
LONGEST = 10.0  # seconds: the contract of the feature
OFTEN = 0.002  # seconds between two round trips of another client


def payload(number: int, name: str = "Noop") -> bytes:
    job = {
        "class": name, "args": [number, "some text"], "jid": f"{number:024x}", "retry": True,
        "queue": "default", "created_at": 1795216065.6910222,
    }  # fmt: skip
    return json.dumps(job).encode()


def fill(client: Redis, place: str) -> None:
    """Writes the jobs. The one of class Other is one of the next."""
    client.sadd("queues", "default")
    for first in range(0, ENTRIES, 10_000):
        page = [payload(number) for number in range(first, first + 10_000)]
        if first == 0:
            page[1] = payload(1, "Other")
        if place == "queue:default":
            client.lpush(place, *page)
        else:
            client.zadd(place, {raw: 9e9 + at for at, raw in enumerate(page, first)})


def cpu_of(client: Redis) -> float:
    """Seconds of CPU that Redis has used."""
    info: Any = client.info("cpu")
    return float(info["used_cpu_user"] + info["used_cpu_sys"])


class OtherClient:
    """Sends PING after PING, and notes how long each takes in milliseconds."""

    def __init__(self, server: Server) -> None:
        self.trips: list[float] = []
        self._client = server.client()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> OtherClient:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._over.wait(OFTEN):
            began = time.monotonic()
            self._client.ping()
            self.trips.append(1000 * (time.monotonic() - began))


@pytest.mark.parametrize("place", ["queue:default", "schedule", "retry"])
@pytest.mark.parametrize("what", ["jid", "class"])
def test_a_job_beside_a_million(server: Server, place: str, what: str) -> None:
    """Prints how long a cancel takes, the longest scripts, and the round trips of another client
    meanwhile."""
    client = server.client()
    fill(client, place)
    api = forkq.Client(server.url).servers.default
    client.config_set("slowlog-log-slower-than", 1000)
    with InProcessClock(server.url), OtherClient(server) as other:
        wait_until(lambda: len(other.trips) > 200, what="round trips before it")
        before = statistics.quantiles(other.trips, n=100)
        other.trips.clear()
        client.slowlog_reset()
        client.config_resetstat()
        began, used = time.monotonic(), cpu_of(client)
        if what == "jid":
            jid = f"{0:024x}"  # the next one, which is looked at last
            assert forkq.api.cancel(jid, wait=60, where=api) == "removed"
        else:
            forkq.api.cancel_class("Other", where=api)
            wait_until(lambda: client.hlen("forkq:totals:ends"), what="its end", deadline=60)
        took, used = time.monotonic() - began, cpu_of(client) - used
    stats: Any = client.info("commandstats")
    scripts = stats["cmdstat_evalsha"]
    slowest = max((entry["duration"] / 1000 for entry in client.slowlog_get(1000)), default=0.0)
    trips = statistics.quantiles(other.trips, n=100)
    print(
        f"\n{what} in {place}: {took:.2f} s, {used:.2f} s of CPU of Redis; "
        f"{scripts['calls']} scripts, on average "
        f"{scripts['usec_per_call'] / 1000:.2f} ms, the longest {slowest:.2f} ms; a round trip of "
        f"another client p50 {trips[49]:.2f} ms (before {before[49]:.2f}), p99 {trips[98]:.2f} ms "
        f"({before[98]:.2f})"
    )
    assert took < within(LONGEST)
