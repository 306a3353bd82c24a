"""The dead set: trimmed on each burial to its age and its size, exactly; people are told these."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import api
from forkq.store.connection import RedisConnection
from forkq.store.dead_set import Bounds, DeadSetLimits
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


def bury(dead_set: DeadSetLimits, connection: RedisConnection, *job: Any) -> bool:
    call = dead_set.burial(*job)
    return bool(connection.script(call.script, call.keys, call.arguments))


@pytest.mark.parametrize("before", [9_998, 9_999, 10_000, 10_050])
def test_ten_thousand_are_kept_exactly(
    connection: RedisConnection, redis: Redis, before: int
) -> None:
    redis.zadd("dead", entries(before, DAY))
    assert bury(DeadSetLimits(Keys()), connection, "q", LEASE, b"last")
    assert redis.zcard("dead") == min(before + 1, 10_000)
    assert redis.zrange("dead", -1, -1) == [b"last"]


@pytest.mark.parametrize("size", [0, 1, 5])
def test_the_size_can_be_set(connection: RedisConnection, redis: Redis, size: int) -> None:
    redis.zadd("dead", entries(10, DAY))
    assert bury(DeadSetLimits(Keys(), size=size), connection, "q", LEASE, b"last")
    assert redis.zcard("dead") == size


def test_entries_older_than_180_days_go(connection: RedisConnection, redis: Redis) -> None:
    redis.zadd("dead", {"old": now() - 181 * DAY, "young": now() - 179 * DAY})
    bury(DeadSetLimits(Keys()), connection, "q", LEASE, b"last")
    assert redis.zrange("dead", 0, -1) == [b"young", b"last"]


def test_the_age_can_be_set(connection: RedisConnection, redis: Redis) -> None:
    redis.zadd("dead", {"old": now() - 3 * DAY, "young": now() - DAY})
    bury(DeadSetLimits(Keys(), days=2), connection, "q", LEASE, b"last")
    assert redis.zrange("dead", 0, -1) == [b"young", b"last"]


def test_a_job_whose_lease_is_gone_is_not_buried(connection: RedisConnection, redis: Redis) -> None:
    assert not bury(DeadSetLimits(Keys()), connection, "q", "vm:1:aaaaaaaaaaaa/2", b"x")
    assert redis.exists("dead") == 0


def test_burials_of_a_prefix_stay_within_it(connection: RedisConnection, redis: Redis) -> None:
    redis.hset("app:{queue:q}:inflight", LEASE, "last")
    assert bury(DeadSetLimits(Keys("app:")), connection, "q", LEASE, b"last")
    assert redis.zrange("app:dead", 0, -1) == [b"last"]
    assert redis.exists("dead") == 0


NOTES = Keys().dead_bounds


def test_people_are_told_the_bounds_of_the_last_process_that_noted_them(
    connection: RedisConnection, redis: Redis, client: forkq.Client
) -> None:
    assert api.DeadSet().bounds is None
    DeadSetLimits(Keys(), size=30, days=2.5).note_bounds(connection)
    assert api.DeadSet().bounds == Bounds(30, 2.5)
    redis.zincrby(NOTES, -600, "30 2.5")  # that configuration was changed ten minutes ago
    DeadSetLimits(Keys(), size=40, days=7).note_bounds(connection)
    assert api.DeadSet().bounds == Bounds(40, 7.0)
    redis.zincrby(NOTES, -86_400 * 300, "40 7")  # nothing has run since
    assert api.DeadSet().bounds == Bounds(30, 2.5)


def test_of_several_trees_the_smallest_bounds_count(
    connection: RedisConnection, client: forkq.Client
) -> None:
    """Any of them may bury the next job."""
    for size, days in ((30, 9.0), (40, 7.0), (50, 8.0)):
        DeadSetLimits(Keys(), size, days).note_bounds(connection)
    assert api.DeadSet().bounds == Bounds(30, 7.0)


def test_old_notes_are_removed(connection: RedisConnection, redis: Redis) -> None:
    redis.zadd(NOTES, {"5 5": now() - 2 * DAY, "6 6": now() - DAY / 2})
    DeadSetLimits(Keys(), 7, 7.5).note_bounds(connection)
    assert redis.zrange(NOTES, 0, -1) == [b"6 6", b"7 7.5"]


@pytest.mark.parametrize("note", [b"", b"many", b"3 days", b"1 2 3", b"\xff 1", b"nan nan"])
def test_a_note_that_is_none_tells_nothing(note: bytes, redis: Redis, client: forkq.Client) -> None:
    redis.zadd(NOTES, {note: now()})
    assert api.DeadSet().bounds is None


def test_a_damaged_key_tells_nothing(redis: Redis, client: forkq.Client) -> None:
    redis.set(NOTES, "damaged")
    assert api.DeadSet().bounds is None
    assert api.damaged_keys() == [NOTES]
