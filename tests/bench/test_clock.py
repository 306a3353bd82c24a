"""How late due jobs are, how soon many of them are moved, and the commands that a clock sends."""

from __future__ import annotations

import json
import random
import statistics
import time
from typing import Any

import pytest
from redis import Redis

from tests.redis.in_process_clock import InProcessClock
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until

pytestmark = pytest.mark.bench

APP = """
import os, time, forkq, redis
server = redis.Redis.from_url(os.environ["FORKQ_TEST_URL"])

@forkq.job(name="Lap")
def lap(due):
    late = time.time() - due
    server.lpush("late", late)
"""

JOBS = 400
SPREAD = 20.0  # seconds over which they are due
JOBS_AT_ONCE = 100_000
SLOW = 5000  # microseconds: no script may take longer
WATCHED = 60  # seconds: a multiple of every period in an idle clock


def test_lateness(server: Server, tree: StartTree) -> None:
    """Prints how late jobs start that are due at random times on an idle machine."""
    tree(server, app=APP, args=("--log-level", "warning"), env={"FORKQ_TEST_URL": server.url})
    client = server.client()
    schedule(client, "Lap", "default")
    wait_until(lambda: client.llen("late") == JOBS, deadline=60, what="all jobs", every=0.5)
    report("due to start", [1000 * float(late) for late in client.lrange("late", 0, -1)])


def test_lateness_in_the_queue(server: Server) -> None:
    """Prints how late jobs are in their queue, by the server's clock."""
    client = server.client()
    late: list[float] = []
    with InProcessClock(server.url):
        schedule(client, "J", "q")
        while len(late) < JOBS:
            found: Any = client.brpop(["queue:q"], 30)
            seconds, micros = client.time()
            late.append(1000 * (seconds + micros / 1e6 - json.loads(found[1])["args"][0]))
    report("due to queue", late)


def schedule(client: Redis, name: str, queue: str) -> None:
    """Writes the jobs to both sets before the first one is due."""
    begin = time.time() + 2
    jobs: dict[str, dict[str, float]] = {"schedule": {}, "retry": {}}
    for number in range(JOBS):
        due = begin + random.uniform(0, SPREAD)
        job = {
            "class": name,
            "args": [due],
            "jid": f"{number:024x}",
            "queue": queue,
            "retry": False,
        }
        jobs["retry" if number % 2 else "schedule"][json.dumps(job)] = due
    for key, members in jobs.items():
        client.zadd(key, members)
    assert time.time() < begin, "the jobs were not written in time"


def report(what: str, late: list[float]) -> None:
    quantiles = statistics.quantiles(late, n=100)
    print(
        f"\n{what}: p50 {quantiles[49]:.2f} ms, p99 {quantiles[98]:.2f} ms, most {max(late):.2f} ms"
        f" of {len(late)} jobs"
    )
    assert min(late) >= 0


def test_many_jobs_due_at_once(server: Server) -> None:
    """Prints how soon jobs that are due at the same moment are in their queues."""
    client = server.client()
    client.config_set("slowlog-log-slower-than", SLOW)
    at = time.time() + 8
    for first in range(0, JOBS_AT_ONCE, 1000):
        client.zadd("schedule", {payload(number): at for number in range(first, first + 1000)})
    assert time.time() < at, "the jobs were not written in time"
    with InProcessClock(server.url):
        client.config_resetstat()
        client.slowlog_reset()
        time.sleep(max(0.0, at - time.time()))
        trips = watch_until_empty(client)
        took = time.time() - at
    stats: Any = client.info("commandstats")
    scripts = stats["cmdstat_evalsha"]
    slow = [entry["duration"] / 1000 for entry in client.slowlog_get(100)]
    print(
        f"\n{JOBS_AT_ONCE} jobs in {took:.2f} s by {scripts['calls']} scripts, on average "
        f"{scripts['usec_per_call'] / 1000:.2f} ms; longer than {SLOW / 1000:g} ms: {slow}; "
        f"a round trip meanwhile p50 {statistics.median(trips):.2f} ms, at most {max(trips):.2f} ms"
    )
    assert sum(client.llen(f"queue:q{number}") for number in range(3)) == JOBS_AT_ONCE


def payload(number: int) -> str:
    return json.dumps(
        {"class": "Noop", "args": [number, "some text"], "jid": f"{number:024x}", "retry": True,
         "queue": f"q{number % 3}", "created_at": 1795216065.6910222}
    )  # fmt: skip


def watch_until_empty(client: Redis) -> list[float]:
    """Milliseconds of each ZCARD of the schedule, sent every few milliseconds until it is empty."""
    trips = []
    while True:
        started = time.monotonic()
        left = client.zcard("schedule")
        trips.append(1000 * (time.monotonic() - started))
        if not left:
            return trips
        time.sleep(0.005)


@pytest.mark.parametrize("leads", [True, False])
def test_idle_clock(server: Server, leads: bool) -> None:
    """Prints the commands that one idle clock sends in a minute."""
    client = server.client()
    if not leads:
        client.set("forkq:leader", "vm2:7:eeee another-boot/pid:[1]/4242/1.00", px=300_000)
    with InProcessClock(server.url) as clock:
        wait_until(lambda: (clock.leads_until > 0) == leads, what="leadership")
        client.config_resetstat()
        time.sleep(WATCHED)  # the measurement: commands of an idle clock
        stats: Any = client.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
    calls.pop("config|resetstat", None)
    who = "that leads" if leads else "that does not lead"
    print(f"\nan idle clock {who}: {sum(calls.values())} commands a minute: {calls}")
