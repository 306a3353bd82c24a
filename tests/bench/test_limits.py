"""A saturated limit, a rate, many queues and busy tenants: how exact, and at what cost."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psutil
import pytest
from redis import Redis

from forkq.limits.rules import Rate, Rules
from forkq.store.scripts import RETRY
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from tests.redis.in_process_child import ProcessorThreads
from tests.support.server import Server
from tests.support.tree import StartTree
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

@forkq.job(name="Hold")
def hold(seconds):
    server.lpush("held", f"{os.getpid()} {time.monotonic()}")
    time.sleep(seconds)

@forkq.job(name="Nap")
def nap(seconds):
    time.sleep(seconds)
"""
BODY = b'{"class":"%s","jid":"%024x","args":[%r],"retry":false}'


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    """One for the jobs, one for what the jobs count, so that its commands are not counted."""
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
    """Commands that clients sent for fetches, and all commands with those in scripts, so far."""
    found: Any = client.info("commandstats")
    count = {name.removeprefix("cmdstat_"): row["calls"] for name, row in found.items()}
    # A fetch that registers keys is three commands: CLIENT CACHING, EXISTS, EVALSHA.
    sent = count.get("evalsha", 0) + 2 * count.get("client|caching", 0)
    return sent, sum(n for name, n in count.items() if name != "info")


@pytest.mark.parametrize(
    ("masters", "seconds", "jobs"),
    [(4, 0.01, 3000), (4, 0.001, 20_000), (1, 0.01, 3000), (4, 0.05, 900)],
)
def test_a_saturated_limit(
    servers: tuple[Server, Server], tree: StartTree, masters: int, seconds: float, jobs: int
) -> None:
    """So many masters x 4 children x 10 processors on a limit of 3. A permit is empty between the
    job's last line and the next one's first: that gap holds one round trip of the count itself."""
    server, counter = servers
    redis, count = server.client(), counter.client()
    redis.hset(KEYS.control("default"), "limit", 3)
    redis.hincrby(KEYS.controlled, "default", 1)
    env = {"FORKQ_TEST_COUNTER": counter.url}
    args = ("-w", "4", "-c", "10", "--log-level", "warning")
    for _ in range(masters):
        tree(server, app=APP, args=args, env=env)
    wait_until(lambda: redis.scard("processes") == 4 * masters, deadline=60,
               what="all children")  # fmt: skip
    before, began = calls(redis), time.monotonic()
    fill(redis, "default", b"Count", jobs, seconds)
    wait_until(lambda: count.llen("seen") == jobs and count.get("now") == b"0",
               deadline=200, what="the end of all jobs", every=0.05)  # fmt: skip
    took, after = time.monotonic() - began, calls(redis)
    seen: Any = count.lrange("seen", 0, -1)
    average = float(count.get("busy") or 0) / took
    gap = 1000 * (3 * took - average * took) / jobs
    sent, ran = ((b - a) / jobs for a, b in zip(before, after, strict=True))
    print(
        f"\n{masters} x 4 children, {jobs} jobs of {1000 * seconds:g} ms, limit 3: at most "
        f"{max(map(int, seen))} at a time, on average {average:.2f} (a permit is empty for "
        f"{gap:.2f} ms); commands per job: {sent:.1f} sent for fetches, {ran:.1f} with those that "
        "scripts ran"
    )
    assert max(map(int, seen)) <= 3


def test_one_push_among_2000_queues(servers: tuple[Server, Server], tree: StartTree) -> None:
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
    time.sleep(5)  # the measurement: commands of an idle child
    asked = calls(redis)[0] - before[0]
    print(
        f"\n2,000 queues: push to start p50 {quantiles[49]:.2f} ms, p99 {quantiles[98]:.2f} ms; "
        f"{asked} fetches in 5 idle seconds"
    )
    assert asked <= 10


@pytest.mark.parametrize("fair", [False, True])
def test_a_single_job_beside_a_busy_tenant(servers: tuple[Server, Server], fair: bool) -> None:
    """Prints how long the job waits while another tenant has more jobs than can be run."""
    server, _ = servers
    redis = server.client()
    redis.sadd("queues", "tenant-a", "tenant-z")
    waits: list[float] = []

    def work(unit: UnitOfWork) -> None:
        if unit.queue_name == "tenant-z":
            waits.append(1000 * (time.monotonic() - float(unit.payload)))
        time.sleep(0.005)

    for _ in range(100):
        redis.lpush("queue:tenant-a", *["busy"] * 1000)
    rules = {"tenant-*": Rules(fair=fair)}
    with ProcessorThreads(server.url, work, queues={"tenant-*": 0}, concurrency=5, rules=rules):
        for number in range(50):
            time.sleep(random.uniform(0.01, 0.05))  # the load: at random moments
            redis.lpush("queue:tenant-z", repr(time.monotonic()))
            if fair:
                wait_until(lambda: len(waits) > number, what="the job", every=0.001)  # noqa: B023 - called at once
    tail = f"median {statistics.median(waits):.1f} ms, worst {max(waits):.1f} ms" if waits else "-"
    print(
        f"\nfair={fair}: {len(waits)} of 50 single jobs ran beside 100,000 of a busy tenant; {tail}"
    )
    assert len(waits) == 50 or not fair


def test_a_rate_over_time(servers: tuple[Server, Server], tree: StartTree) -> None:
    """Prints how much of a rate is used while jobs wait, over 60 s."""
    server, counter = servers
    redis, laps = server.client(), counter.client()
    redis.hset(KEYS.control("default"), "rate", "20/1")
    redis.hincrby(KEYS.controlled, "default", 1)
    with ExitStack() as stack:
        stack.callback(redis.close)
        args = ("-w", "4", "--log-level", "warning")
        tree(server, app=APP, args=args, env={"FORKQ_TEST_COUNTER": counter.url})
        fill(redis, "default", b"Lap", 2000, 0.0)
        time.sleep(1)
        first = laps.llen("laps")
        time.sleep(60)  # the measurement
        share = (laps.llen("laps") - first) / 1200
    print(f"\n20 a second: {100 * share:.1f} % used over 60 s")
    assert share <= 1 + 3 / 1200


def test_a_freed_slot(servers: tuple[Server, Server], tree: StartTree) -> None:
    """Prints how soon another child starts a job after a retry has freed the only permit."""
    server, counter = servers
    redis, laps = server.client(), counter.client()
    redis.hset(KEYS.control("default"), "limit", 1)
    redis.hincrby(KEYS.controlled, "default", 1)
    env = {"FORKQ_TEST_COUNTER": counter.url}
    forkq = tree(server, app=APP, args=("-c", "1", "--log-level", "error"), env=env)
    wait_until(lambda: redis.scard("processes") == 1, what="the child")
    redis.sadd("queues", "default")
    retry, inflight = redis.register_script(RETRY.text.decode()), KEYS.inflight("default")
    marks = (KEYS.awaited("default"), KEYS.bucket("default"))
    found = []
    for number in range(200):
        redis.hset(inflight, "bench:1:0/1", "held")
        redis.lpush("queue:default", BODY % (b"Lap", number, 0.0))
        wait_until(
            lambda: redis.exists(KEYS.awaited("default")), what="a waiting child", every=0.001
        )
        time.sleep(0.005)  # the load: the child sleeps by then
        began = time.monotonic()
        retry(keys=[inflight, "gone", *marks], args=["bench:1:0/1", 1, "held"])
        answer: Any = laps.brpop("laps", 5)
        found.append(1000 * (float(answer[1]) - began))
    quantiles = statistics.quantiles(found, n=100)
    print(f"\na freed permit: next start p50 {quantiles[49]:.2f} ms, p99 {quantiles[98]:.2f} ms")
    assert forkq.stop() == 0


def test_a_killed_holder(servers: tuple[Server, Server], tree: StartTree) -> None:
    """Prints how long the job of a killed child waits for another child, with a limit of 1."""
    server, counter = servers
    redis, count = server.client(), counter.client()
    redis.hset(KEYS.control("default"), "limit", 1)
    redis.hincrby(KEYS.controlled, "default", 1)
    env = {"FORKQ_TEST_COUNTER": counter.url}
    args = ("-w", "2", "-c", "1", "--log-level", "error")
    found = []
    for number in range(8):
        forkq = tree(server, app=APP, args=args, env=env)
        wait_until(lambda: redis.scard("processes") == 2, what="2 children")
        redis.lpush("queue:default", BODY % (b"Hold", number, 0.3))
        pid, _ = count.brpop("held", 5)[1].split()  # type: ignore[index]
        wait_until(lambda: redis.hlen(KEYS.inflight("default")) == 1, what="its lease")
        began = time.monotonic()
        psutil.Process(int(pid)).kill()
        _, moment = count.brpop("held", 5)[1].split()  # type: ignore[index]
        found.append(1000 * (float(moment) - began))
        assert forkq.stop() == 0
    print(f"\na killed holder: next start after {statistics.median(found):.0f} ms (median), "
          f"{max(found):.0f} ms at worst")  # fmt: skip


@pytest.mark.parametrize(
    ("queues", "rules"),
    [
        ({"tenant-a": 0, "tenant-b": 0, "tenant-c": 0}, {}),
        ({"tenant-a": 10, "tenant-b": 5, "tenant-c": 3}, {}),
        ({"tenant-*": 0}, {}),
        ({"tenant-*": 0}, {"tenant-*": Rules(fair=True)}),
        ({"tenant-*": 0}, {"tenant-*": Rules(limit=1000)}),
        ({"tenant-*": 0}, {"tenant-*": Rules(rate=Rate(1e6, 1))}),
    ],
    ids=["strict", "weighted", "pattern", "fair", "limit", "rate"],
)
def test_throughput(
    servers: tuple[Server, Server], queues: dict[str, int], rules: dict[str, Rules]
) -> None:
    """Prints jobs per second of three queues with 30,000 units of no work, 10 processors; and what
    one fetch costs the server."""
    server, _ = servers
    redis = server.client()
    names = ["tenant-a", "tenant-b", "tenant-c"]
    redis.sadd("queues", *names)
    for name in names:
        for _ in range(10):
            redis.lpush(f"queue:{name}", *[b"x" * 200] * 1000)
    with ProcessorThreads(server.url, queues=queues, concurrency=10, rules=rules) as child:
        began = time.monotonic()
        wait_until(lambda: len(child.order) >= 30_000, deadline=60, what="the end", every=0.002)
        speed = 30_000 / (time.monotonic() - began)
    found: Any = redis.info("commandstats")
    print(f"\n{'+'.join(queues)} {queues.values()} {rules}: {speed:,.0f}/s, "
          f"{found['cmdstat_evalsha']['usec_per_call']:.1f} us per fetch")  # fmt: skip
