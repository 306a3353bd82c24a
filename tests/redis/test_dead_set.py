"""The dead set: trimmed on each burial to its age and its size, exactly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from forkq.store.connection import RedisConnection
from forkq.store.dead_set import DeadSet
from forkq.wire.keys import Keys
from forkq.wire.times import now
from tests.support.server import Server

DAY = 86_400.0
LEASE = "vm:1:aaaaaaaaaaaa/1"


@pytest.fixture
def connection(redis: Redis, redis_server: Server) -> Iterator[RedisConnection]:
    redis.hset("{queue:q}:inflight", LEASE, "last")
    connection = RedisConnection(redis_server.url)
    connection.connect()
    yield connection
    connection.close()


def entries(count: int, age: float) -> dict[str, float]:
    at = now() - age
    return {f"{age:.0f}-{number}": at + number / 1000 for number in range(count)}


@pytest.mark.parametrize("before", [9_998, 9_999, 10_000, 10_050])
def test_ten_thousand_are_kept_exactly(
    connection: RedisConnection, redis: Redis, before: int
) -> None:
    redis.zadd("dead", entries(before, DAY))
    assert DeadSet(Keys()).bury(connection, "q", LEASE, b"last")
    assert redis.zcard("dead") == min(before + 1, 10_000)
    assert redis.zrange("dead", -1, -1) == [b"last"]


@pytest.mark.parametrize("size", [0, 1, 5])
def test_the_size_can_be_set(connection: RedisConnection, redis: Redis, size: int) -> None:
    redis.zadd("dead", entries(10, DAY))
    assert DeadSet(Keys(), size=size).bury(connection, "q", LEASE, b"last")
    assert redis.zcard("dead") == size


def test_entries_older_than_180_days_go(connection: RedisConnection, redis: Redis) -> None:
    redis.zadd("dead", {"old": now() - 181 * DAY, "young": now() - 179 * DAY})
    DeadSet(Keys()).bury(connection, "q", LEASE, b"last")
    assert redis.zrange("dead", 0, -1) == [b"young", b"last"]


def test_the_age_can_be_set(connection: RedisConnection, redis: Redis) -> None:
    redis.zadd("dead", {"old": now() - 3 * DAY, "young": now() - DAY})
    DeadSet(Keys(), days=2).bury(connection, "q", LEASE, b"last")
    assert redis.zrange("dead", 0, -1) == [b"young", b"last"]


def test_a_job_whose_lease_is_gone_is_not_buried(connection: RedisConnection, redis: Redis) -> None:
    assert not DeadSet(Keys()).bury(connection, "q", "vm:1:aaaaaaaaaaaa/2", b"x")
    assert redis.exists("dead") == 0


def test_burials_of_a_prefix_stay_within_it(connection: RedisConnection, redis: Redis) -> None:
    redis.hset("app:{queue:q}:inflight", LEASE, "last")
    assert DeadSet(Keys("app:")).bury(connection, "q", LEASE, b"last")
    assert redis.zrange("app:dead", 0, -1) == [b"last"]
    assert redis.exists("dead") == 0
