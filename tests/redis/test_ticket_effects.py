"""What becomes of the lock, and of the newest job in it, where at most one job waits: each way of
the table of all ways out, by each process that decides so."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from redis import Redis

from forkq.child.failure.ends import Ends
from forkq.features.cancel import parts as cancel
from forkq.features.effects import packed
from forkq.features.marked import newest_cancelled
from forkq.features.ways import WAYS
from forkq.store.connection import RedisConnection
from forkq.store.dead_set import DeadSetLimits
from forkq.store.scripts import EFFECTS_ALONE, Call
from forkq.wire.keys import Keys
from forkq.wire.payload import dumps, loads
from forkq.wire.times import now
from tests.redis import test_effects as ways
from tests.redis.test_effects import CASES, TAKES

KEYS = Keys()
LOCK, ENDS, QUEUE = KEYS.unique("d1"), KEYS.totals("ends"), "queue:default"
LIVES = 30 * 86400 * 1000
FATES = {way.name: way.lock for way in WAYS}
plain_payload = ways.payload
connection, clean = ways.connection, ways.clean  # fixtures


@pytest.fixture(params=["latest", "replace"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    monkeypatch.setattr(ways, "payload", partial(payload, name))
    return name


def payload(kind: str, **more: Any) -> bytes:
    """The job of the other tests, with a lock of that kind."""
    job = loads(plain_payload(**more))
    job["forkq"] |= {"v": 3}
    job["forkq"]["needs"]["unique"] |= {"on": kind, "until": "end" if kind == "latest" else "start"}
    return dumps(job)


def newest(queue: str = "default") -> bytes:
    return payload("latest", jid="m2", queue=queue)


def hold(redis: Redis, state: str = "running", jid: str = "m1", **more: Any) -> None:
    fixed = {"jid": jid, "class": "Unique", "at": 1, "sure": 1, "state": state}
    fields: dict[Any, Any] = {**fixed, **more}
    redis.hset(LOCK, mapping=fields)
    redis.pexpire(LOCK, 5000)


def hold_with_newest(redis: Redis, *, at: object = "", queue: str = "default") -> None:
    waits: dict[str, Any] = {
        "next": newest(queue),
        "next_jid": "m2",
        "next_at": at,
        "next_queue": queue,
    }
    hold(redis, "running", **waits)
    redis.zadd(KEYS.tickets, {LOCK: 1000 * now()})


def lock(redis: Redis) -> dict[str, str]:
    found: Any = redis.hgetall(LOCK)
    return {key.decode(): value.decode() for key, value in found.items()}


def entries(redis: Redis, jid: str) -> list[str]:
    """The keys in which the job stands."""
    content: dict[str, Any] = {
        key: redis.lrange(key, 0, -1)
        for key in ("queue:default", "queue:other", "{queue:default}:suspects")
    }
    content |= {key: redis.zrange(key, 0, -1) for key in ("schedule", "retry", "dead")}
    content["lease"] = redis.hvals("{queue:default}:inflight")
    return [key for key, raws in content.items() for raw in raws if loads(raw).get("jid") == jid]


@pytest.fixture(autouse=True)
def one_entry(redis: Redis) -> Iterator[None]:
    """No job is ever in two places."""
    yield
    for jid in ("m1", "m2"):
        assert len(entries(redis, jid)) <= 1


@pytest.mark.parametrize(("name", "number"), CASES)
def test_the_lock_alone_has_the_fate_of_its_way(
    client: Any, redis: Redis, connection: RedisConnection, kind: str, name: str, number: int
) -> None:
    hold(redis)
    TAKES[name][number](redis, connection)
    fate, found = FATES[name], lock(redis)
    assert (found == {}) == (fate in ("freed", "the newest job's"))
    if fate == "kept":
        assert found["state"] == "running"
        assert 0 < redis.pttl(LOCK) <= 5000
    elif fate in ("held", "taken again"):
        assert redis.pttl(LOCK) > LIVES - 10_000
        [place] = entries(redis, "m1")
        states = {"retry": "retrying", "schedule": "scheduled", QUEUE: "queued"}
        assert (found["jid"], found["state"]) == ("m1", states[place])
        if place != QUEUE:
            assert redis.zscore(place, found["member"]) is not None


@pytest.mark.parametrize(("name", "number"), CASES)
def test_the_newest_job_goes_on_where_the_other_one_ends_or_waits(
    client: Any, redis: Redis, connection: RedisConnection, kind: str, name: str, number: int
) -> None:
    hold_with_newest(redis)
    TAKES[name][number](redis, connection)
    fate, found = FATES[name], lock(redis)
    if name in ("deleted", "restored by undo"):  # a person has deleted both
        assert entries(redis, "m2") == []
        return
    if fate == "kept":
        assert (found["jid"], found["next_jid"], entries(redis, "m2")) == ("m1", "m2", [])
        return
    assert (found["jid"], found["state"], entries(redis, "m2")) == ("m2", "queued", [QUEUE])
    assert "next" not in found
    assert redis.zcard(KEYS.tickets) == 0
    assert redis.pttl(LOCK) > LIVES - 10_000
    if fate == "held":
        assert entries(redis, "m1") == []
        assert redis.hget(ENDS, "Unique|replaced") == b"1"


@pytest.mark.parametrize(("name", "number"), CASES)
def test_the_lock_of_another_job_stays(
    client: Any, redis: Redis, connection: RedisConnection, kind: str, name: str, number: int
) -> None:
    hold(redis, jid="new")
    TAKES[name][number](redis, connection)
    assert (lock(redis)["jid"], 0 < redis.pttl(LOCK) <= 5000) == ("new", True)
    if FATES[name] == "held":
        assert entries(redis, "m1") == []


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_lock_of_another_type_keeps_no_job_from_its_way(
    client: Any, redis: Redis, connection: RedisConnection, kind: str, name: str, number: int
) -> None:
    redis.set(LOCK, "x")
    TAKES[name][number](redis, connection)
    assert redis.get(LOCK) == b"x"
    assert (redis.hget(ENDS, "(feature)|damaged") is not None) == (FATES[name] != "kept")
    if FATES[name] == "held":
        assert len(entries(redis, "m1")) == 1


@pytest.mark.parametrize("name", ["done", "dropped", "expired", "retried", "dead", "replaced"])
def test_a_full_server_takes_the_effects_of_a_child(
    redis: Redis, connection: RedisConnection, kind: str, name: str
) -> None:
    hold_with_newest(redis)
    call = call_of(redis, name)
    redis.config_set("maxmemory", 1)
    try:
        assert connection.script(call.script, call.keys, call.arguments) == 1
    finally:
        redis.config_set("maxmemory", 0)
    assert (lock(redis)["jid"], entries(redis, "m2")) == ("m2", [QUEUE])


def call_of(redis: Redis, name: str) -> Call:
    """The call by which a child ends the job that it has leased."""
    raw = ways.payload()
    ways.leased(redis, raw)
    ends = Ends(ways.IDENTITY, KEYS, DeadSetLimits(KEYS))
    return ways.CHILD[name](ends, ways.unit(raw)).call()  # type: ignore[no-any-return]


def test_the_newest_job_of_another_queue_or_time_goes_by_the_schedule(
    redis: Redis, connection: RedisConnection, kind: str
) -> None:
    done = TAKES["done"][0]
    hold_with_newest(redis, queue="other")
    done(redis, connection)
    assert (lock(redis)["state"], entries(redis, "m2")) == ("scheduled", ["schedule"])
    assert redis.zscore("schedule", newest("other")) == pytest.approx(now(), abs=30)
    redis.flushall()
    hold_with_newest(redis, at=now() + 900)
    done(redis, connection)
    assert redis.zscore("schedule", newest()) == pytest.approx(now() + 900, abs=30)


@pytest.mark.parametrize("waits", [True, False])
def test_a_cancel_of_a_newest_job_that_has_its_entry_by_now_stays_noted(
    redis: Redis, connection: RedisConnection, waits: bool
) -> None:
    hold_with_newest(redis)
    if not waits:
        hold(redis, "queued", jid="m2")
        redis.hdel(LOCK, "next", "next_jid")
    redis.hset(KEYS.cancelled, "jid:m2", "1")
    names: list[Any] = []
    asked = (*newest_cancelled(KEYS, loads(newest())), *cancel.effects(KEYS, "m2"))
    connection.script(EFFECTS_ALONE, names, (packed(asked, names, ENDS),))
    assert bool(redis.exists(KEYS.cancelled)) != waits
    assert (redis.hget(ENDS, "Unique|cancelled") == b"1") == waits


def test_a_queue_of_another_type_loses_no_newest_job(
    redis: Redis, connection: RedisConnection, kind: str
) -> None:
    hold_with_newest(redis)
    redis.set(QUEUE, "x")
    call = call_of(redis, "done")
    assert connection.script(call.script, call.keys, call.arguments) == 1
    assert redis.zscore("schedule", newest()) is not None
    redis.flushall()
    hold_with_newest(redis)
    redis.mset({QUEUE: "x", "schedule": "x"})
    call = call_of(redis, "done")
    assert connection.script(call.script, call.keys, call.arguments) == 1
    assert (lock(redis)["jid"], lock(redis)["next_jid"]) == ("m1", "m2")
    redis.delete(QUEUE, "schedule")
