"""What becomes of the lock of a debounced job: each way of the table of all ways out, by each
process that decides so."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from redis import Redis

from forkq.features.ways import WAYS
from forkq.store.connection import RedisConnection
from forkq.wire.payload import dumps, loads
from tests.redis import test_effects as ways
from tests.redis.test_effects import CASES, ENDS, INFLIGHT, LOCK, TAKES, hold, holder

FATES = {way.name: way.debounce for way in WAYS}
plain_payload = ways.payload
connection, clean = ways.connection, ways.clean  # fixtures


def payload(**more: Any) -> bytes:
    """The job of the other tests, debounced."""
    job = loads(plain_payload(**more))
    job["forkq"] |= {"v": 4}
    job["forkq"]["needs"]["unique"] |= {"on": "debounce", "until": "start", "max": 900.0}
    return dumps(job)


@pytest.fixture(autouse=True)
def debounced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "payload", partial(payload))


def freed_and_taken(redis: Redis) -> bool:
    """Whether the lock names the job's entry in the schedule."""
    member: Any = redis.hget(LOCK, "member")
    return member is not None and redis.zscore("schedule", member) is not None


@pytest.mark.parametrize(("name", "number"), CASES)
def test_the_lock_of_a_debounced_job_has_the_fate_of_its_way(
    client: Any, redis: Redis, connection: RedisConnection, name: str, number: int
) -> None:
    hold(redis)
    TAKES[name][number](redis, connection)
    fate, found = FATES[name], holder(redis)
    if fate == "taken again":
        assert (found == b"m1") == freed_and_taken(redis) == (redis.zcard("schedule") == 1)
    else:
        assert (found is None) == (fate == "freed")
    if fate in ("kept", "the newest job's"):
        assert 0 < redis.pttl(LOCK) <= 5000


@pytest.mark.parametrize(("name", "number"), CASES)
def test_the_lock_of_another_debounced_job_stays(
    client: Any, redis: Redis, connection: RedisConnection, name: str, number: int
) -> None:
    hold(redis, "new")
    TAKES[name][number](redis, connection)
    assert (holder(redis), 0 < redis.pttl(LOCK) <= 5000) == (b"new", True)


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_damaged_lock_keeps_no_debounced_job_from_its_way(
    client: Any, redis: Redis, connection: RedisConnection, name: str, number: int
) -> None:
    redis.set(LOCK, "x")
    TAKES[name][number](redis, connection)
    assert redis.get(LOCK) == b"x"
    counted: Any = redis.hget(ENDS, "(feature)|damaged")
    assert (int(counted or 0) > 0) == (FATES[name] not in ("kept", "the newest job's"))
    assert redis.hlen(INFLIGHT) == 0
