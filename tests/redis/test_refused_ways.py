"""No way of a job with a unique lock is taken by half, wherever the server begins to take no
writes: what a person, the clock or a master does. test_killed_ends.py does so for a child."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final, TypeAlias

import pytest
from redis import Redis

from forkq.clock.doubted_locks import DoubtedLocks
from forkq.errors import ForkqError
from forkq.store.connection import RedisConnection, RedisError
from forkq.wire.keys import Keys
from tests.redis.test_doubted_locks import search
from tests.redis.test_effects import LOCK, OTHERS, QUEUE, Take, hold, holder, payload, put
from tests.redis.test_effects import clean as clean  # noqa: PLC0414 - a fixture
from tests.redis.test_effects import connection as connection  # noqa: PLC0414 - a fixture
from tests.support.recorded_log import RecordedLog

RefuseAfter: TypeAlias = Callable[[int], None]
# The keys in which the job stands, and whether it has its lock.
State: TypeAlias = tuple[list[str], bool]
DOUBTED: Final = Keys().doubted


def note_in_doubt(redis: Redis) -> None:
    """A push has met the lock of a job that is gone."""
    redis.hset(LOCK, mapping={"jid": "gone", "class": "Unique", "at": 1, "sure": 1})
    redis.hset(DOUBTED, "d1", b" " + payload())


def settle_doubt(redis: Redis, connection: RedisConnection) -> None:
    search(DoubtedLocks(Keys(), connection, RecordedLog()))
    assert not redis.exists(DOUBTED)


LATER: Final = "pushed when its lock was freed"
TAKES: Final = {**OTHERS, LATER: [Take(note_in_doubt, settle_doubt)]}
UNLOCKED: Final = ("retried from the dead set", LATER)
CASES: Final = [(name, number) for name, takes in TAKES.items() for number in range(len(takes))]
NO_WRITES: Final = "min-replicas-to-write"


@pytest.fixture
def refuse_after(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[RefuseAfter]:
    """Has the server refuse writes once so many round trips were made."""
    send, left = RedisConnection.send, [-1]

    def send_and_count(self: RedisConnection, *commands: Any) -> None:
        if left[0] == 0:
            redis.config_set(NO_WRITES, 1)
        left[0] -= 1
        send(self, *commands)

    def begin(trips: int) -> None:
        redis.config_set(NO_WRITES, 0)
        left[0] = trips

    monkeypatch.setattr(RedisConnection, "send", send_and_count)
    yield begin
    redis.config_set(NO_WRITES, 0)


def state(redis: Redis) -> State:
    """What is left of the job, and of its lock."""
    read: Any = {
        b"list": lambda key: redis.lrange(key, 0, -1),
        b"hash": redis.hvals,
        b"zset": lambda key: redis.zrange(key, 0, -1),
    }
    found = []
    for key in redis.scan_iter():
        values = read.get(redis.type(key), lambda key: [])(key)
        if key != LOCK.encode() and b'"jid":"m1"' in b"".join(values):
            found.append(key.decode().partition("forkq:undo:")[0] or "undo")
    return sorted(found), holder(redis) == b"m1"


def begin(redis: Redis, take: Take, *, locked: bool) -> State:
    """Brings Redis to the moment before the way."""
    redis.flushall()
    if locked:
        hold(redis)
    take.begin(redis)
    return state(redis)


def refusals(
    redis: Redis, connection: RedisConnection, take: Take, refuse_after: RefuseAfter, locked: bool
) -> Iterator[str]:
    """Takes the way again and again, refused after one round trip more each time, until it is done
    all the same. Yields what the one who takes it hears each time; "" for nothing."""
    for trips in count():
        begin(redis, take, locked=locked)
        refuse_after(trips)
        try:
            take.act(redis, connection)
        except (RedisError, ForkqError) as error:
            told = str(error)
        else:
            told = ""
        refuse_after(-1)
        yield told
        if not told:
            return


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_way_that_is_refused_is_taken_in_full_or_not_at_all(
    client: Any,
    redis: Redis,
    connection: RedisConnection,
    refuse_after: RefuseAfter,
    name: str,
    number: int,
) -> None:
    """And who has asked for it hears of the refusal, unless it is done; and may ask again."""
    take, locked = TAKES[name][number], name not in UNLOCKED
    before = begin(redis, take, locked=locked)
    take.act(redis, connection)
    after = state(redis)
    assert after != before
    heard = []
    for told in refusals(redis, connection, take, refuse_after, locked):
        heard.append(told)
        found = state(redis)
        assert found in ((before, after) if told else (after,)), f"refused after {len(heard) - 1}"
        if found == before:
            take.act(redis, connection)
            assert state(redis) == after
    assert len(heard) > 1
    assert all("NOREPLICAS" in told for told in heard[:-1])


def test_a_way_in_two_steps_would_be_seen(
    client: Any, redis: Redis, connection: RedisConnection, refuse_after: RefuseAfter
) -> None:
    """One that frees the lock, and removes the job with the next round trip."""

    def act(redis: Redis, connection: RedisConnection) -> None:
        connection.call("DEL", LOCK)
        connection.call("DEL", QUEUE)

    take = Take(lambda redis: put(redis, QUEUE), act)
    states = [state(redis) for _ in refusals(redis, connection, take, refuse_after, locked=True)]
    assert states == [([QUEUE], True), ([QUEUE], False), ([], False)]
