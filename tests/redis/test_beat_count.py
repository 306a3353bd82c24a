"""Redis that went back in time (a backup was restored, a failover lost writes): a tree tells it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from redis import Redis

from forkq.child.heartbeat import beat_count
from forkq.child.heartbeat.beat_count import BeatCount
from forkq.store.connection import ConnectionLost, RedisConnection
from forkq.wire.keys import Keys
from forkq.wire.times import now
from tests.redis.proxy import Proxy
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server

BACK = "redis went back in time: what it had confirmed is gone"


def beat_counts(log: RecordedLog) -> list[tuple[str, BeatCount]]:
    """Those of two children of one tree, and the keys of their notes."""
    notes = [Keys().flushed(f"host:{number}:abc") for number in (1, 2)]
    return [(note, BeatCount(note, Keys(), log)) for note in notes]


def test_redis_that_went_back_is_told_once_by_a_tree(
    redis: Redis, connection: RedisConnection
) -> None:
    log = RecordedLog()
    children = beat_counts(log)
    for _, child in children:
        assert [child.count(connection) for _ in range(4)] == [False, True, True, True]
    assert log.lines == []
    for note, _ in children:
        redis.hset(note, "beats", 1)  # what a backup had
    for _ in range(3):
        assert all(child.count(connection) for _, child in children)
    assert [(event, values["lost_beats"]) for _, event, values in log.lines] == [(BACK, 3)]


def test_redis_that_was_emptied_is_told_as_well(redis: Redis, connection: RedisConnection) -> None:
    log = RecordedLog()
    [_, (_, child)] = beat_counts(log)
    child.count(connection)
    redis.flushall()
    assert child.count(connection) is False
    assert log.events() == [BACK]


def test_a_beat_whose_reply_is_lost_is_no_step_back(
    connection: RedisConnection, proxy: Proxy, redis: Redis
) -> None:
    log = RecordedLog()
    [(_, child), _] = beat_counts(log)
    child.count(connection)
    proxy.cut(b"HINCRBY")
    with pytest.raises(ConnectionLost):
        child.count(connection)
    connection.connect()
    assert child.count(connection)
    assert log.lines == []


def test_a_beat_is_one_command(redis: Redis, connection: RedisConnection) -> None:
    """As before it counted: an idle tree sends no more."""
    [(_, child), _] = beat_counts(RecordedLog())
    child.count(connection)
    redis.config_resetstat()
    child.count(connection)
    stats: Any = redis.info("commandstats")
    assert stats.keys() - {"cmdstat_info", "cmdstat_config|resetstat"} == {"cmdstat_hincrby"}


def test_the_note_lives_on_also_on_a_full_server(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = own_server.client()
    connection = RedisConnection(own_server.url)
    connection.connect()
    [(note, child), _] = beat_counts(RecordedLog())
    child.count(connection)
    own_server.cli("CONFIG", "SET", "maxmemory", 1)
    assert child.count(connection)
    assert redis.ttl(note) > 86_000
    redis.persist(note)
    own_server.cli("CONFIG", "SET", "maxmemory", 0)
    later = time.monotonic() + 3601
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert child.count(connection)
    assert redis.ttl(note) > 86_000
    connection.close()


def test_a_note_that_has_expired_is_no_step_back(
    redis: Redis, connection: RedisConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine slept for a day."""
    log = RecordedLog()
    [(note, child), _] = beat_counts(log)
    child.count(connection)
    redis.delete(note)
    at = now()
    monkeypatch.setattr(beat_count, "now", lambda: at + 86_400)
    assert child.count(connection) is False
    assert log.lines == []


def test_a_note_that_another_program_has_damaged_is_no_step_back(
    redis: Redis, connection: RedisConnection
) -> None:
    log = RecordedLog()
    [(note, child), _] = beat_counts(log)
    child.count(connection)
    redis.set(note, "x")
    assert child.count(connection) is False
    redis.delete(note)
    child.count(connection)
    assert log.lines == []
