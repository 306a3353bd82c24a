"""A connection that waits: a server that has gone without a sign is noticed, and nothing spins."""

from __future__ import annotations

import threading
import time

import pytest
from redis import Redis

from forkq.store.connection import ConnectionLost, RedisConnection
from forkq.store.outage import ended_idle
from forkq.store.redis_py import Unanswered
from tests.redis.proxy import Proxy

LONGER_THAN_SILENCE = 2.5  # seconds: by then a server that says nothing was asked for a sign


def test_a_server_that_is_silent_and_there_is_waited_for(connection: RedisConnection) -> None:
    assert connection.wait(LONGER_THAN_SILENCE) is False
    assert connection.reusable
    assert connection.call("PING") == b"PONG"


def test_a_server_that_went_without_a_sign_is_an_outage(
    connection: RedisConnection, proxy: Proxy
) -> None:
    began = time.monotonic()
    proxy.cut_off()
    with pytest.raises(ConnectionLost, match=r"no sign of life within 2\.5 s") as caught:
        connection.wait(60)
    assert isinstance(caught.value, Unanswered)
    assert caught.value.seconds == 2.5
    assert not connection.connected
    assert not ended_idle(caught.value, began)


def test_a_time_out_says_how_long_the_server_was_silent(
    connection: RedisConnection, proxy: Proxy
) -> None:
    """For the downtime of an outage, which began when the server was asked."""
    connection.set_timeout(0.2)
    proxy.cut_off()
    with pytest.raises(Unanswered) as caught:
        connection.call("PING")
    assert caught.value.seconds == 0.2
    began = time.monotonic()
    with pytest.raises(Unanswered) as caught:
        connection.connect()
    assert 0.2 <= caught.value.seconds <= time.monotonic() - began


def test_a_change_that_comes_with_the_sign_of_life_ends_the_wait(
    connection: RedisConnection, proxy: Proxy, redis: Redis
) -> None:
    """The invalidation is read while the connection waits for the answer to its PING."""
    seen: list[object] = []
    connection.on_change(seen.append)
    connection.track()
    connection.pipeline([("CLIENT", "CACHING", "YES"), ("GET", "a")])
    proxy.cut_off()
    redis.set("a", 1)
    healing = threading.Timer(LONGER_THAN_SILENCE, proxy.restore)
    healing.start()
    assert connection.wait(60) is True
    healing.join()
    assert seen == [[b"a"]]
    assert connection.reusable


def test_a_wait_for_a_reply_neither_asks_nor_spins(
    connection: RedisConnection, proxy: Proxy
) -> None:
    proxy.cut_off()
    connection.send(("PING",))
    used = time.thread_time()
    assert connection.wait(LONGER_THAN_SILENCE) is False
    assert time.thread_time() - used < 0.5
    proxy.restore()
    assert connection.read() == b"PONG"
