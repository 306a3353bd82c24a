"""The clock's connection: no change that the server reports is lost, at any time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from forkq.clock.tracking import TrackingConnection
from tests.support.server import Server


@pytest.fixture
def connection(redis: Redis, redis_server: Server) -> Iterator[TrackingConnection]:
    connection = TrackingConnection(redis_server.url)
    connection.connect()
    connection.track()
    yield connection
    connection.close()


def watch(connection: TrackingConnection, *keys: str) -> None:
    for key in keys:
        connection.pipeline([("CLIENT", "CACHING", "YES"), ("GET", key)])


def test_a_change_ends_the_wait_and_is_known_by_its_key(
    connection: TrackingConnection, redis: Redis
) -> None:
    watch(connection, "a", "b")
    assert connection.wait(0) is False
    redis.set("a", 1)
    assert connection.wait(10) is True
    changes = connection.take_changes()
    assert changes.include("a")
    assert not changes.include("b")
    assert changes.include("b", "a")


def test_a_change_is_returned_once_and_then_it_waits_again(
    connection: TrackingConnection, redis: Redis
) -> None:
    watch(connection, "a")
    redis.set("a", 1)
    connection.wait(10)
    connection.take_changes()
    assert not connection.take_changes().include("a")
    assert connection.wait(0) is False


def test_a_change_that_is_reported_among_replies_is_not_lost(
    connection: TrackingConnection, redis: Redis
) -> None:
    watch(connection, "a")
    redis.set("a", 1)
    assert connection.call("PING") == b"PONG"  # the server sent the invalidation before this reply
    assert connection.wait(10) is True
    assert connection.take_changes().include("a")


def test_a_flush_changes_every_key(connection: TrackingConnection, redis: Redis) -> None:
    watch(connection, "a")
    redis.flushall()
    assert connection.wait(10) is True
    assert connection.take_changes().include("any")
    assert not connection.take_changes().include("any")


def test_reported_changes_do_not_disturb_the_replies(
    connection: TrackingConnection, redis: Redis
) -> None:
    for number in range(20):
        watch(connection, "a")
        redis.set("a", number)
        assert connection.call("GET", "a") == str(number).encode()
    assert connection.take_changes().include("a")
