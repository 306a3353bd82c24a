"""What docs/operators-guide.md reckons with: Redis's memory for a job, and the commands of an idle
tree. `pytest tests/bench/test_capacity.py -m bench -n0 -s`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from forkq import Client
from tests.process.shared import measured, pass_time
from tests.support.server import Server
from tests.support.tree import StartTree

pytestmark = pytest.mark.bench

JOBS = 50_000
SECONDS = 60.0
FAILED = {
    "error_class": "smtplib.SMTPServerDisconnected",
    "error_message": "Connection unexpectedly closed",
    "failed_at": 1795331738.64, "retried_at": 1795331738.64, "retry_count": 25,
}  # fmt: skip
APP = """
import forkq

@forkq.job(name="shop.Receipt")
def receipt(order): ...
"""


@pytest.fixture
def client(redis_server: Server) -> Iterator[Client]:
    client = Client(redis_server.url)
    yield client
    client.close()


def figure(redis: Redis, section: str, name: str) -> int:
    found: Any = redis.info(section)
    return int(found[name])


def used(redis: Redis) -> int:
    return figure(redis, "memory", "used_memory_dataset")


def each(redis: Redis, what: str, fill: Callable[[], Any], length: int) -> None:
    """Prints how much more memory one of the jobs takes."""
    redis.flushall()
    before = used(redis)
    fill()
    measured(f"{what}: a payload of {length} bytes takes {(used(redis) - before) / JOBS:.0f}")


@pytest.mark.parametrize("size", [10, 1000])
def test_memory_of_redis_for_a_job(redis: Redis, client: Client, size: int) -> None:
    rows = [["x" * size] for _ in range(JOBS)]
    job = {"class": "shop.Receipt", "args": rows}
    client.push_bulk({**job, "args": rows[:1]})
    [payload] = redis.lrange("queue:default", 0, -1)
    known = json.loads(payload)
    length = len(payload)
    each(redis, "queued", lambda: client.push_bulk(job), length)
    each(redis, "scheduled", lambda: client.push_bulk({**job, "at": 3600}), length)

    def bury() -> None:
        pipeline = redis.pipeline(transaction=False)
        for number in range(JOBS):
            dead = {**known, **FAILED, "jid": f"{number:024x}"}
            pipeline.zadd("dead", {json.dumps(dead, separators=(",", ":")): number})
        pipeline.execute()

    each(redis, "dead", bury, len(json.dumps({**known, **FAILED}, separators=(",", ":"))))


@pytest.mark.parametrize("workers", [1, 4])
def test_commands_and_connections_of_an_idle_tree(
    redis: Redis, redis_server: Server, tree: StartTree, workers: int
) -> None:
    tree(redis_server, app=APP, args=["-w", str(workers), "-c", "10"])
    pass_time(15)
    before, at = figure(redis, "stats", "total_commands_processed"), time.monotonic()
    pass_time(SECONDS)
    rate = (figure(redis, "stats", "total_commands_processed") - before) / (time.monotonic() - at)
    others = len(redis.client_list()) - 1
    measured(f"{workers}x10: {rate:.1f} commands/s idle, {others} connections")
