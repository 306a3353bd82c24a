"""An end of a job with features is done in full, or not at all: whatever becomes of the process
that has asked for it, and of the server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, Final

import pytest
from redis import Redis

from forkq.child.failure.ends import Ends
from forkq.features.results.parts import has_ended, placeholder
from forkq.features.ways import WAYS
from forkq.store.connection import Call, RedisConnection, ResponseError, pack
from forkq.store.dead_set import DeadSetLimits
from forkq.wire.payload import dumps
from tests.redis.test_effects import CHILD, IDENTITY, INFLIGHT, KEYS, LOCK, leased, open_batch, unit
from tests.support.server import Server
from tests.support.waiting import wait_until

NEWEST: Final = dumps({"class": "Unique", "args": [2], "queue": "default", "jid": "m2"})
LOCKS: Final[dict[str, Any]] = {
    "skip": {"jid": "m1", "class": "Unique"},
    "latest": {
        "jid": "m1",
        "class": "Unique",
        "queue": "default",
        "state": "running",
        "next": NEWEST,
        "next_jid": "m2",
        "next_at": "",
        "next_queue": "default",
    },
}
CASES: Final = [(way, how) for way in CHILD for how in (*LOCKS, "step")]


@pytest.fixture
def connection(redis_server: Server) -> Iterator[RedisConnection]:
    connection = RedisConnection(redis_server.url)
    connection.connect()
    yield connection
    connection.close()


def begin(redis: Redis, how: str) -> bytes:
    """A job runs that has a lock, a cursor, one who waits for its result, and a place in a batch;
    or that is a step of a flow. Returns its payload."""
    redis.flushall()
    need = {"lock": "d1", "for": 300.0, "until": "end"} | ({"on": how} if how == "latest" else {})
    needs = {"unique": need, "cursor": True, "steps": True}
    needs |= {"batch": {"bid": "b1", "i": 2}, "result_ttl": 60}
    if how == "step":
        needs = {"cursor": True, "flow": {"bid": "b1", "i": 2, "step": "two"}, "result_ttl": 60}
    job = {"class": "Unique", "args": [1], "queue": "default", "jid": "m1"}
    raw = dumps({**job, "forkq": {"v": 6, "needs": needs}})
    redis.hset(LOCK, mapping=LOCKS.get(how, LOCKS["skip"]))
    steps: Any = {"next:2": "0r1c", "wait:0": 1, "wait:1": 1, "job:0": NEWEST, "job:1": "{}"}
    redis.hset(KEYS.flow_steps("b1"), mapping=steps)
    redis.hset(KEYS.iteration("m1"), mapping={"ex": 1, "c": "7", "rt": "1.5"})
    redis.set(KEYS.result("m1"), placeholder("Unique", "default", 60.0), px=5000)
    redis.hset(KEYS.steps("m1"), mapping={"": 30, "charge": '{"at":1.5,"value":1}'})
    redis.hset(KEYS.cancelled, "jid:m1", "1700000000.000000")
    open_batch(redis, 0)
    leased(redis, raw)
    return raw


def call_of(way: str, raw: bytes) -> Call:
    made: Call = CHILD[way](Ends(IDENTITY, KEYS, DeadSetLimits(KEYS)), unit(raw)).call()
    return made


def answers(way: str, how: str) -> bool:
    """Whether who waits for the result hears of this end. Where a newer job waits in its place, one
    that is to run again is replaced."""
    [fate] = [each.result for each in WAYS if each.name == way]
    return fate in ("value", "error", "replaced") or (fate == "none" and how == "latest")


def contents(redis: Redis) -> dict[bytes, list[bytes]]:
    """What Redis has: members, entries, and the names of fields."""
    found: dict[bytes, list[bytes]] = {}
    read: Any = {
        b"list": lambda key: redis.lrange(key, 0, -1),
        b"hash": redis.hkeys,
        b"zset": lambda key: redis.zrange(key, 0, -1),
        b"set": redis.smembers,
        b"string": lambda key: [redis.get(key)],
    }
    for key in redis.scan_iter():
        found[key] = sorted(read[redis.type(key)](key))
    return found


@pytest.mark.parametrize(("way", "how"), CASES)
def test_a_process_that_is_killed_once_it_has_asked(
    redis: Redis, redis_server: Server, connection: RedisConnection, way: str, how: str
) -> None:
    """All is done, as if it had lived to read the reply; and the next process that asks the same,
    which knows only the lease, does nothing."""
    call = call_of(way, begin(redis, how))
    assert connection.script(call.script, call.keys, call.arguments) == 1
    expected = contents(redis)
    [told] = expected[KEYS.result("m1").encode()]
    assert has_ended(told) == answers(way, how)
    begin(redis, how)
    with socket.create_connection(("127.0.0.1", redis_server.port or 0)) as killed:
        killed.sendall(pack([call.command]))
    wait_until(lambda: not redis.exists(INFLIGHT), what="the end")
    assert contents(redis) == expected
    assert connection.script(call.script, call.keys, call.arguments) == 0
    assert contents(redis) == expected


@pytest.mark.parametrize(("way", "how"), CASES)
def test_a_server_that_takes_no_writes_changes_nothing(
    redis: Redis, connection: RedisConnection, way: str, how: str
) -> None:
    """It has too few replicas, or has lost its role."""
    call = call_of(way, begin(redis, how))
    before = contents(redis)
    redis.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(ResponseError, match="NOREPLICAS"):
            connection.script(call.script, call.keys, call.arguments)
    finally:
        redis.config_set("min-replicas-to-write", 0)
    assert contents(redis) == before
    assert connection.script(call.script, call.keys, call.arguments) == 1
    assert not redis.exists(INFLIGHT)
