"""The dead set: trimmed on each burial to its age and its size, exactly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from forkq.connection import Wire
from forkq.dead import Cemetery
from forkq.keys import Keys
from forkq.times import now
from tests.support.server import Server

DAY = 86_400.0
LEASE = "vm:1:aaaaaaaaaaaa/1"


@pytest.fixture
def wire(redis: Redis, redis_server: Server) -> Iterator[Wire]:
    redis.hset("{queue:q}:inflight", LEASE, "last")
    wire = Wire(redis_server.url)
    wire.connect()
    yield wire
    wire.close()


def entries(count: int, age: float) -> dict[str, float]:
    at = now() - age
    return {f"{age:.0f}-{number}": at + number / 1000 for number in range(count)}


@pytest.mark.parametrize("before", [9_998, 9_999, 10_000, 10_050])
def test_ten_thousand_are_kept_exactly(wire: Wire, redis: Redis, before: int) -> None:
    redis.zadd("dead", entries(before, DAY))
    assert Cemetery(Keys()).bury(wire, "q", LEASE, b"last")
    assert redis.zcard("dead") == min(before + 1, 10_000)
    assert redis.zrange("dead", -1, -1) == [b"last"]


@pytest.mark.parametrize("size", [0, 1, 5])
def test_the_size_can_be_set(wire: Wire, redis: Redis, size: int) -> None:
    redis.zadd("dead", entries(10, DAY))
    assert Cemetery(Keys(), size=size).bury(wire, "q", LEASE, b"last")
    assert redis.zcard("dead") == size


def test_entries_older_than_180_days_go(wire: Wire, redis: Redis) -> None:
    redis.zadd("dead", {"old": now() - 181 * DAY, "young": now() - 179 * DAY})
    Cemetery(Keys()).bury(wire, "q", LEASE, b"last")
    assert redis.zrange("dead", 0, -1) == [b"young", b"last"]


def test_the_age_can_be_set(wire: Wire, redis: Redis) -> None:
    redis.zadd("dead", {"old": now() - 3 * DAY, "young": now() - DAY})
    Cemetery(Keys(), days=2).bury(wire, "q", LEASE, b"last")
    assert redis.zrange("dead", 0, -1) == [b"young", b"last"]


def test_a_job_whose_lease_is_gone_is_not_buried(wire: Wire, redis: Redis) -> None:
    assert not Cemetery(Keys()).bury(wire, "q", "vm:1:aaaaaaaaaaaa/2", b"x")
    assert redis.exists("dead") == 0


def test_burials_of_a_prefix_stay_within_it(wire: Wire, redis: Redis) -> None:
    redis.hset("app:{queue:q}:inflight", LEASE, "last")
    assert Cemetery(Keys("app:")).bury(wire, "q", LEASE, b"last")
    assert redis.zrange("app:dead", 0, -1) == [b"last"]
    assert redis.exists("dead") == 0
