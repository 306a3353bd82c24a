"""What each way out of a step means for the steps behind it: each row of the table of all ways
(forkq/features/ways.py), by each process that decides so, and each `on_failure`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from forkq.features.ways import WAYS
from forkq.store.connection import RedisConnection
from forkq.store.scripts import FLOW_PUSH
from forkq.wire.keys import Keys
from forkq.wire.payload import dumps, loads
from tests.redis import test_effects as ways
from tests.redis.test_effects import CASES, TAKES
from tests.support.server import Server

KEYS = Keys()
HASH, ENDS, *_, STEPS, _UNFINISHED = KEYS.of_flow("b1", ())
FATES = {way.name: way.batch for way in WAYS}
CLEARS_SCHEDULE = TAKES["deleted"][2]
BEHIND = {1: "wait", 3: "cancel", 4: "run", 5: "both"}

clean = ways.clean


@pytest.fixture
def connection(redis_server: Server) -> Iterator[RedisConnection]:
    connection = RedisConnection(redis_server.url)
    connection.connect()
    yield connection
    connection.close()


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs of ``TAKES`` are the step 2 of a flow."""
    need = {"bid": "b1", "i": 2, "step": "2"}
    monkeypatch.setattr(ways, "MORE", {"batch": None, "flow": need})


def job(index: int) -> bytes:
    return dumps({"class": "Step", "args": [index], "queue": "other", "jid": f"s{index}"})


def push(connection: RedisConnection, redis: Redis) -> None:
    """A flow whose step 2 has started. Of the four behind it, one also waits for the step 0."""
    rows = [*(0, "zero", job(0), "", 1, "5w"), *(2, "2", job(2), "", 1, "1w3c4r5w")]
    for index in BEHIND:
        rows += (index, str(index), job(index), "", 1 + (index == 5), "")
    head = (1, "", 6, "0r2r", 2, "flow", 6)
    assert connection.script(FLOW_PUSH, KEYS.of_flow("b1", ()), (*head, *rows)) == b"sealed"
    assert started(redis) == {0, 2}
    redis.delete("schedule")


def started(redis: Redis) -> set[int]:
    found: Any = [*redis.zrange("schedule", 0, -1), *redis.lrange("queue:other", 0, -1)]
    return {loads(raw)["args"][0] for raw in found if loads(raw)["class"] == "Step"}


def states(redis: Redis) -> list[int]:
    bits = redis.bitfield(ENDS)
    for index in range(6):
        bits.get("u2", f"#{index}")
    found: Any = bits.execute()
    return [*found]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_the_steps_behind_one_that_takes_a_way(
    client: Any, redis: Redis, connection: RedisConnection, name: str, number: int
) -> None:
    """Each starts, waits or is cancelled once, also if the call is sent again."""
    push(connection, redis)
    TAKES[name][number](redis, connection)
    fate = FATES[name]
    is_bad = fate in ("dead", "ended otherwise") or name == "restored by undo"
    expected = {1, 3, 4} if fate == "done" else {4} if is_bad else set()
    was_cleared = TAKES[name][number] is CLEARS_SCHEDULE  # and the step with it that has started
    assert started(redis) == (set() if was_cleared else expected)
    state = {"done": 1, "dead": 2, "ended otherwise": 3}.get(fate, 0)
    ended = {1, 3, 5} if is_bad and fate != "dead" else {3} if is_bad else set[int]()
    assert states(redis)[3:] == [3 if index in ended else 0 for index in (3, 4, 5)]
    assert states(redis)[:3] == [0, 3 if 1 in ended else 0, state]
    waits = [index for index in BEHIND if redis.hexists(STEPS, f"wait:{index}")]
    assert waits == [index for index in BEHIND if index not in expected | ended]
    assert waits == [index for index in BEHIND if redis.hexists(STEPS, f"job:{index}")]
    if 5 in waits:
        assert redis.hget(STEPS, "wait:5") == (b"1" if fate == "done" else b"2")
    end: Any = redis.hget(STEPS, "end:2")
    assert (end is not None) == (state > 0)
    assert end is None or loads(end)["outcome"] == name


@pytest.mark.parametrize(("name", "number"), CASES)
def test_the_steps_behind_one_that_was_dead(
    client: Any, redis: Redis, connection: RedisConnection, name: str, number: int
) -> None:
    """What waits for it starts once it is done; what was cancelled stays so, and what runs all the
    same has started."""
    push(connection, redis)
    TAKES["dead"][0](redis, connection)
    redis.delete("schedule", "dead", ways.INFLIGHT)
    TAKES[name][number](redis, connection)
    assert started(redis) == ({1} if FATES[name] == "done" else set())
    state = {"done": 1, "waits again": 0}.get(FATES[name], 2)
    if name == "restored by undo":
        state = 2
    assert states(redis) == [0, 0, state, 3, 0, 0]
    assert redis.hget(STEPS, "wait:5") == (b"1" if state == 1 else b"2")


@pytest.mark.parametrize("key", [HASH, ENDS, STEPS])
@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_flow_of_another_type_keeps_no_step_from_its_way(
    client: Any, redis: Redis, connection: RedisConnection, name: str, number: int, key: str
) -> None:
    push(connection, redis)
    redis.delete(key)
    redis.rpush(key, "x")
    original = ways.BATCH
    try:
        ways.BATCH = HASH
        TAKES[name][number](redis, connection)
    finally:
        ways.BATCH = original
    assert redis.lrange(key, 0, -1) == [b"x"]
    assert redis.hlen(ways.INFLIGHT) == 0
