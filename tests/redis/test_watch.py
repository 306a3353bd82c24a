"""The clock's wire: whatever the server tells of changes is known afterwards, whenever it came."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from forkq.clock.watch import WatchWire
from tests.support.server import Server


@pytest.fixture
def wire(redis: Redis, redis_server: Server) -> Iterator[WatchWire]:
    wire = WatchWire(redis_server.url)
    wire.connect()
    wire.track()
    yield wire
    wire.close()


def watch(wire: WatchWire, *keys: str) -> None:
    for key in keys:
        wire.pipeline([("CLIENT", "CACHING", "YES"), ("GET", key)])


def test_a_change_wakes_and_is_known_by_its_key(wire: WatchWire, redis: Redis) -> None:
    watch(wire, "a", "b")
    assert wire.wait(0) is False
    redis.set("a", 1)
    assert wire.wait(10) is True
    news = wire.news()
    assert news.of("a")
    assert not news.of("b")
    assert news.of("b", "a")


def test_news_is_told_once_and_then_it_sleeps_again(wire: WatchWire, redis: Redis) -> None:
    watch(wire, "a")
    redis.set("a", 1)
    wire.wait(10)
    wire.news()
    assert not wire.news().of("a")
    assert wire.wait(0) is False


def test_a_change_that_is_told_among_replies_is_not_lost(wire: WatchWire, redis: Redis) -> None:
    watch(wire, "a")
    redis.set("a", 1)
    assert wire.call("PING") == b"PONG"  # the server had spoken before it answered this
    assert wire.wait(10) is True
    assert wire.news().of("a")


def test_a_flush_changes_every_key(wire: WatchWire, redis: Redis) -> None:
    watch(wire, "a")
    redis.flushall()
    assert wire.wait(10) is True
    assert wire.news().of("whatever")
    assert not wire.news().of("whatever")


def test_what_was_said_does_not_disturb_the_replies(wire: WatchWire, redis: Redis) -> None:
    for number in range(20):
        watch(wire, "a")
        redis.set("a", number)
        assert wire.call("GET", "a") == str(number).encode()
    assert wire.news().of("a")
