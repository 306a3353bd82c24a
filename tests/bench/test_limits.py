"""A saturated limit, a rate, many queues and noisy neighbours: how exact, and at what cost."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from redis import Redis

from forkq.keys import Keys
from forkq.lease import Unit
from forkq.limits import Rules
from tests.redis.crew import Crew
from tests.support.server import Server
from tests.support.tree import Forest
from tests.support.waiting import wait_until

pytestmark = pytest.mark.bench

KEYS = Keys()
APP = """
import os, time, forkq, redis
server = redis.Redis.from_url(os.environ["FORKQ_TEST_COUNTER"])

@forkq.job(name="Count")
def count(seconds):
    began = time.monotonic()
    server.rpush("seen", server.incr("now"))
    time.sleep(max(0, seconds - (time.monotonic() - began)))
    server.decr("now")
    server.incrbyfloat("busy", time.monotonic() - began)

@forkq.job(name="Lap")
def lap(pushed):
    server.lpush("laps", time.monotonic() - pushed)

@forkq.job(name="Nap")
def nap(seconds):
    time.sleep(seconds)
"""
BODY = b'{"class":"%s","jid":"%024x","args":[%r],"retry":false}'


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    """One for the jobs, one for what the jobs count: its commands are not ours."""
    jobs, counter = Server(tcp=True).start(), Server(tcp=True).start()
    yield jobs, counter
    jobs.close()
    counter.close()


def fill(client: Redis, queue: str, name: bytes, jobs: int, seconds: float) -> None:
    client.sadd("queues", queue)
    for start in range(0, jobs, 1000):
        rows = [BODY % (name, number, seconds) for number in range(start, min(jobs, start + 1000))]
        client.lpush(f"queue:{queue}", *rows)


def calls(client: Redis) -> tuple[int, int]:
    """Commands that clients sent for fetches, and those that scripts ran, so far."""
    found: Any = client.info("commandstats")
    count = {name.removeprefix("cmdstat_"): row["calls"] for name, row in found.items()}
    # A fetch that wants to be told is three: CLIENT CACHING, EXISTS, EVALSHA.
    sent = count.get("evalsha", 0) + 2 * count.get("client|caching", 0)
    return sent, sum(n for name, n in count.items() if name != "info")


@pytest.mark.parametrize(("seconds", "jobs"), [(0.01, 3000), (0.001, 20_000)])
def test_a_saturated_limit(
    servers: tuple[Server, Server], tree: Forest, seconds: float, jobs: int
) -> None:
    """4 masters x 4 children x 10 processors on a limit of 3."""
    server, counter = servers
    redis, count = server.client(), counter.client()
    redis.hset(KEYS.control("default"), "limit", 3)
    redis.hincrby(KEYS.controlled, "default", 1)
    env = {"FORKQ_TEST_COUNTER": counter.url}
    args = ("-w", "4", "-c", "10", "--log-level", "warning")
    for _ in range(4):
        tree(server, app=APP, args=args, env=env)
    wait_until(lambda: redis.scard("processes") == 16, deadline=60, what="16 children")
    before, began = calls(redis), time.monotonic()
    fill(redis, "default", b"Count", jobs, seconds)
    wait_until(lambda: count.llen("seen") == jobs and count.get("now") == b"0",
               deadline=200, what="the end of all jobs", every=0.05)  # fmt: skip
    took, after = time.monotonic() - began, calls(redis)
    seen: Any = count.lrange("seen", 0, -1)
    average = float(count.get("busy") or 0) / took
    sent, ran = ((b - a) / jobs for a, b in zip(before, after, strict=True))
    print(
        f"\n{jobs} jobs of {1000 * seconds:g} ms, limit 3: at most {max(map(int, seen))} at a "
        f"time, on average {average:.2f}; commands per job: {sent:.1f} sent for "
        f"fetches, {ran:.1f} with those that scripts ran"
    )
    assert max(map(int, seen)) <= 3


def test_one_push_among_2000_queues(servers: tuple[Server, Server], tree: Forest) -> None:
    """Prints the time from push to start, and what an idle child asks meanwhile."""
    server, counter = servers
    redis, laps = server.client(), counter.client()
    redis.sadd("queues", *(f"tenant-{number}" for number in range(2000)))
    args = ("-q", "tenant-*", "--log-level", "warning")
    tree(server, app=APP, args=args, env={"FORKQ_TEST_COUNTER": counter.url})
    found = []
    for number in range(300):
        queue = f"queue:tenant-{number * 37 % 2000}"
        redis.lpush(queue, BODY % (b"Lap", number, time.monotonic()))
        answer: Any = laps.brpop("laps", 5)
        found.append(1000 * float(answer[1]))
    quantiles = statistics.quantiles(found, n=100)
    before = calls(redis)
    time.sleep(5)  # the measure itself: what happens while nothing happens
    asked = calls(redis)[0] - before[0]
    print(
        f"\n2,000 queues: push to start p50 {quantiles[49]:.2f} ms, p99 {quantiles[98]:.2f} ms; "
        f"{asked} fetches in 5 idle seconds"
    )
    assert asked <= 10


@pytest.mark.parametrize("fair", [False, True])
def test_a_single_job_beside_a_noisy_tenant(servers: tuple[Server, Server], fair: bool) -> None:
    """Prints how long it waits while another tenant has jobs of 5 ms without end."""
    server, _ = servers
    redis = server.client()
    redis.sadd("queues", "tenant-a", "tenant-z")
    waits: list[float] = []

    def work(unit: Unit) -> None:
        if unit.queue_name == "tenant-z":
            waits.append(1000 * (time.monotonic() - float(unit.payload)))
        time.sleep(0.005)

    for _ in range(100):
        redis.lpush("queue:tenant-a", *["noise"] * 1000)
    rules = {"tenant-*": Rules(fair=fair)}
    with Crew(server.url, work, queues={"tenant-*": 0}, concurrency=5, rules=rules):
        for number in range(50):
            time.sleep(random.uniform(0.01, 0.05))  # the load itself: at random moments
            redis.lpush("queue:tenant-z", repr(time.monotonic()))
            if fair:
                wait_until(lambda: len(waits) > number, what="the job", every=0.001)  # noqa: B023 - called at once
    tail = f"median {statistics.median(waits):.1f} ms, worst {max(waits):.1f} ms" if waits else "-"
    print(f"\nfair={fair}: {len(waits)} of 50 single jobs ran beside 100,000 noisy ones; {tail}")
    assert len(waits) == 50 or not fair


def test_a_rate_over_time(servers: tuple[Server, Server], tree: Forest) -> None:
    """Prints how much of a rate is used while jobs wait, over 20 s."""
    server, counter = servers
    redis, laps = server.client(), counter.client()
    redis.hset(KEYS.control("default"), "rate", "20/1")
    redis.hincrby(KEYS.controlled, "default", 1)
    with ExitStack() as stack:
        stack.callback(redis.close)
        args = ("-w", "4", "--log-level", "warning")
        tree(server, app=APP, args=args, env={"FORKQ_TEST_COUNTER": counter.url})
        fill(redis, "default", b"Lap", 1000, 0.0)
        time.sleep(1)
        first = laps.llen("laps")
        time.sleep(20)  # the measure itself
        share = (laps.llen("laps") - first) / 400
    print(f"\n20 a second: {100 * share:.1f} % used over 20 s")
    assert share <= 1 + 3 / 400
