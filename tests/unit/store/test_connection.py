"""Connections: what may be sent again, what an unconnected one says, what a server should be."""

from __future__ import annotations

import pytest
from redis import exceptions

from forkq.errors import ConfigError, ServerUnavailable
from forkq.store.connection import ConnectionLost, RedisConnection, refused
from forkq.store.refusals import refuses
from forkq.store.server_check import check_usable

URL = "redis://user:secret@127.0.0.1:1/0"


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ReadOnlyError("You can't write against a read only replica."),
        exceptions.ResponseError("READONLY You can't write against a read only replica."),
        exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."),
        exceptions.ResponseError("UNBLOCKED force unblock from blocking operation"),
    ],
)
def test_what_the_server_refused_may_be_sent_again(error: Exception) -> None:
    assert refused(error)


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ConnectionError("Connection closed by server."),
        exceptions.TimeoutError("Timeout reading from socket"),
        exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        exceptions.ResponseError("WRONGTYPE Operation against a key"),
        exceptions.ResponseError("ERR it is READONLY"),
        exceptions.BusyLoadingError("Redis is loading the dataset in memory"),
        ValueError("READONLY"),
    ],
)
def test_a_command_that_may_have_been_done_may_not_be_sent_again(error: Exception) -> None:
    assert not refused(error)


def test_a_refused_login_is_not_a_lost_connection() -> None:
    assert refuses(exceptions.AuthenticationError("invalid password"))
    assert refuses(exceptions.AuthorizationError("no"))
    assert not refuses(exceptions.ConnectionError("refused"))
    assert not refuses(exceptions.TimeoutError("late"))


@pytest.mark.parametrize("url", ["http://u:secret@h", "localhost:6379", "u:secret@h", "redis//h"])
def test_a_url_of_another_kind_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a Redis URL") as caught:
        RedisConnection(url)
    assert "secret" not in str(caught.value)


def test_a_connection_never_connects_by_itself_and_never_shows_the_password() -> None:
    connection = RedisConnection(URL)
    assert not connection.connected
    assert connection.descriptors() == []
    for act in (
        lambda: connection.call("PING"),
        lambda: connection.pipeline([("PING",)]),
        lambda: connection.wait(0),
    ):
        with pytest.raises(ConnectionLost, match="no connection to") as caught:
            act()
        assert "secret" not in str(caught.value)
    connection.close()


def test_a_server_that_is_not_there_is_a_lost_connection() -> None:
    connection = RedisConnection(URL, connect_timeout=1)
    with pytest.raises(ConnectionLost):
        connection.connect()
    assert not connection.connected


@pytest.mark.parametrize("version", ["6.2.0", "6.2.14", "7.0.15", "7.2.4", "10.0.0"])
def test_a_server_of_this_version_can_be_used(version: str) -> None:
    check_usable({"redis_version": version}, RedisConnection(URL))


@pytest.mark.parametrize("version", ["6.0.16", "5.0.7", "2.8.0"])
def test_a_server_that_is_too_old_is_refused_with_its_version(version: str) -> None:
    with pytest.raises(ServerUnavailable, match=rf"Redis {version} at redis://user:\*\*\*@.*6\.2"):
        check_usable({"redis_version": version}, RedisConnection(URL))


def test_a_connection_may_reconnect_without_limit() -> None:
    """A pool of redis-py makes a hundred connections by default, and counts those that failed."""
    connection = RedisConnection(URL, connect_timeout=1)
    for _ in range(300):
        with pytest.raises(ConnectionLost, match="refused"):
            connection.connect()
