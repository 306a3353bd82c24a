"""What a sentinel:// URL leads to, and what is said when it leads nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forkq.client import Client
from forkq.errors import ServerRefused, ServerUnavailable, WrongPassword
from forkq.store.connection import ConnectionLost, RedisConnection, ResponseError
from forkq.store.outage import ended_idle
from forkq.store.redis_py import exceptions
from forkq.store.refusals import failure, refuses
from forkq.store.sentinel import MasterLost, SentinelView, UnknownMaster
from forkq.store.server_check import check_rights, check_usable, server_info
from forkq.wire.keys import Keys
from forkq.wire.password_source import PasswordSource
from tests.redis.proxy import Proxy
from tests.support.documents import redis_rights
from tests.support.sentinels import Sentinel
from tests.support.server import Server, client_of
from tests.support.waiting import wait_until

# The first of three: a port on which nothing listens.
NOWHERE = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Ports are used again: what Sentinels said in another test must not be remembered."""
    yield
    SentinelView._by_url.clear()


@pytest.fixture
def sentinel(own_server: Server) -> Iterator[Sentinel]:
    server = Sentinel(own_server).start()
    yield server
    server.close()


def url_of(*places: str, name: str = "main", before: str = "", after: str = "") -> str:
    return f"sentinel://{before}{','.join(places)}/{name}/0{after}"


def place(server: Server) -> str:
    return f"127.0.0.1:{server.port}"


def connected(url: str) -> RedisConnection:
    connection = RedisConnection(url)
    connection.connect()
    return connection


def refusal(url: str) -> Exception:
    with pytest.raises((*ConnectionLost, ResponseError)) as caught:
        connected(url)
    return caught.value


def test_the_master_is_found_also_behind_sentinels_that_are_away(
    sentinel: Sentinel, own_server: Server
) -> None:
    connection = connected(url_of(NOWHERE, place(sentinel)))
    try:
        assert connection.call("CONFIG", "GET", "port")[b"port"] == str(own_server.port).encode()
        check_usable(server_info(connection), connection)
    finally:
        connection.close()


def test_a_client_pushes_through_sentinels(sentinel: Sentinel, own_server: Server) -> None:
    client = Client(url_of(place(sentinel)))
    client.push({"class": "MyJob", "args": []})
    client.close()
    assert own_server.cli("LLEN", "queue:default") == 1


def test_a_master_that_hangs_up_is_no_server_that_ends_idle_connections(
    sentinel: Sentinel, own_server: Server
) -> None:
    """A failover ends them, too: it is told of, and the next try waits a moment."""
    connection = connected(url_of(place(sentinel)))
    own_server.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert connection.wait(20)
    with pytest.raises(MasterLost, match=rf"the master at {place(own_server)}: .*closed") as caught:
        connection.read_changes()
    assert not ended_idle(caught.value, began=0.0)


def test_a_sentinel_that_answers_slowly_costs_little(sentinel: Sentinel) -> None:
    """It takes connections and says nothing; the next one is asked."""
    with Proxy(sentinel.port) as proxy:
        proxy.cut_off()
        connected(url_of(f"127.0.0.1:{proxy.port}", place(sentinel))).close()


def test_no_sentinel_at_all_is_an_outage_that_names_each(own_server: Server) -> None:
    url = url_of(NOWHERE, "127.0.0.1:2", before="u:sesame@")
    error = refusal(url)
    assert isinstance(error, MasterLost)
    assert not refuses(error)
    told = str(failure(error, url))
    assert "no Sentinel names the master main: the Sentinel 127.0.0.1:1: " in told
    assert "the Sentinel 127.0.0.1:2: " in told
    assert "sesame" not in told


def test_an_unknown_name_is_told_and_is_no_outage(sentinel: Sentinel) -> None:
    url = url_of(place(sentinel), name="mian")
    error = refusal(url)
    assert isinstance(error, UnknownMaster)
    told = failure(error, url)
    assert isinstance(told, ServerRefused)
    assert f"the Sentinel {place(sentinel)} watches no master named mian" in str(told)


def test_a_server_that_is_no_sentinel_is_told(own_server: Server) -> None:
    error = refusal(url_of(place(own_server)))
    assert not isinstance(error, ConnectionLost)
    assert f"the Sentinel {place(own_server)}: " in str(error)


def test_the_password_of_the_master_may_come_from_a_file(
    own_server: Server, tmp_path: Path
) -> None:
    """It is read at each connect. The Sentinels do not get it."""
    file = tmp_path / "password"
    file.write_text("first\n")
    own_server.cli("CONFIG", "SET", "requirepass", "first")
    sentinel = Sentinel(own_server, more=("sentinel auth-pass main first",)).start()
    connection = RedisConnection(url_of(place(sentinel)), password_source=PasswordSource(file))
    try:
        connection.connect()
        admin = client_of(own_server.url.replace("//", "//:first@"))
        admin.config_set("requirepass", "second")
        admin.close()
        assert connection.call("PING") == b"PONG", "a connection that is logged in stays"
        connection.close()
        with pytest.raises(exceptions.AuthenticationError) as caught:
            connection.connect()
        assert f"password of password_file {file}" in str(caught.value)
        assert "first" not in str(failure(caught.value, connection.url))
        file.write_text("second\n")
        connection.connect()
        assert connection.call("PING") == b"PONG"
    finally:
        connection.close()
        sentinel.close()


def test_sentinels_have_a_login_of_their_own(own_server: Server) -> None:
    own_server.cli("CONFIG", "SET", "requirepass", "of/master")
    sentinel = Sentinel(own_server, more=("sentinel auth-pass main of/master",)).start()
    sentinel.cli("ACL", "SETUSER", "default", "resetpass", ">of:sentinel")
    try:
        before, after = ":of%2Fmaster@", "?sentinel_password=of%3Asentinel"
        connected(url_of(place(sentinel), before=before, after=after)).close()
        for wrong in ("", "?sentinel_password=sesame"):
            url = url_of(place(sentinel), before=before, after=wrong)
            error = refusal(url)
            told = failure(error, url)
            assert isinstance(told, WrongPassword)
            assert refuses(error)
            assert f"the Sentinel {place(sentinel)}" in str(told)
            assert "sesame" not in str(told)
            assert "of/master" not in str(told)
            assert "of%2Fmaster" not in str(told)
    finally:
        sentinel.close()


def test_the_documented_rights_are_enough(sentinel: Sentinel, own_server: Server) -> None:
    """At the Sentinels, and at the master those of a tree, and of a process that only pushes."""
    sentinel.cli("ACL", "SETUSER", "watcher", *redis_rights("watcher"))
    own_server.cli("ACL", "SETUSER", "least", *redis_rights("forkq"))
    own_server.cli("ACL", "SETUSER", "pusher", *redis_rights("pusher"))
    after = "?sentinel_username=watcher&sentinel_password=x"
    connection = connected(url_of(place(sentinel), before="least:x@", after=after))
    try:
        check_usable(server_info(connection), connection)
        check_rights(connection, Keys())
    finally:
        connection.close()
    client = Client(url_of(place(sentinel), before="pusher:x@", after=after))
    client.push({"class": "MyJob", "args": []})
    client.close()
    for server in (sentinel, own_server):
        refused = [str(entry) for entry in server.cli("ACL", "LOG")]
        assert [entry for entry in refused if "config" not in entry] == []


def test_a_replica_is_waited_for_and_not_refused(sentinel: Sentinel, own_server: Server) -> None:
    """As in the middle of a failover: the Sentinel does not know yet."""
    own_server.cli("REPLICAOF", "127.0.0.1", 1)
    error = refusal(url_of(place(sentinel)))
    assert isinstance(error, MasterLost)
    assert not refuses(error)
    assert "as master, but it is a replica" in str(error)
    own_server.cli("REPLICAOF", "NO", "ONE")
    connected(url_of(place(sentinel))).close()


def test_a_connection_to_a_replaced_master_takes_nothing_more(
    sentinel: Sentinel, own_server: Server
) -> None:
    """The old master still answers, and still calls itself one."""
    other = Server(tcp=True).start()
    connection = connected(url_of(place(sentinel)))
    try:
        connection.call("SET", "before", 1)
        sentinel.cli("SENTINEL", "REMOVE", "main")
        sentinel.cli("SENTINEL", "MONITOR", "main", "127.0.0.1", other.port, 1)
        with pytest.raises(MasterLost, match=rf"replaced .*{own_server.port} by .*{other.port}"):
            connection.wait(20)
        assert not connection.connected
        connection.connect()
        connection.call("SET", "after", 1)
        assert other.cli("GET", "after") == b"1"
        assert own_server.cli("EXISTS", "after") == 0
    finally:
        connection.close()
        other.close()


def test_a_reader_does_not_wait_for_a_master_that_was_replaced(
    sentinel: Sentinel, own_server: Server
) -> None:
    """A frozen one gives no answer; its time-out may be long."""
    other = Server(tcp=True).start()
    connection = RedisConnection(url_of(place(sentinel)), timeout=60)
    connection.connect()
    try:
        own_server.pause()
        connection.send(("PING",))
        sentinel.cli("SENTINEL", "REMOVE", "main")
        sentinel.cli("SENTINEL", "MONITOR", "main", "127.0.0.1", other.port, 1)
        with pytest.raises(MasterLost):
            connection.read()
    finally:
        connection.close()
        other.close()


def test_a_client_follows_with_its_pooled_connection(
    sentinel: Sentinel, own_server: Server
) -> None:
    other = Server(tcp=True).start()
    client = Client(url_of(place(sentinel)))
    try:
        client.push({"class": "MyJob", "args": []})
        sentinel.cli("SENTINEL", "REMOVE", "main")
        sentinel.cli("SENTINEL", "MONITOR", "main", "127.0.0.1", other.port, 1)

        def follows() -> bool:
            client.push({"class": "MyJob", "args": []})
            return bool(other.cli("LLEN", "queue:default"))

        wait_until(follows, every=0.1, what="a push to the new master")
    finally:
        client.close()
        other.close()


def test_a_push_without_a_master_says_so(own_server: Server) -> None:
    client = Client(url_of(NOWHERE))
    with pytest.raises(ServerUnavailable, match=r"no Sentinel names the master main.*nothing was"):
        client.push({"class": "MyJob", "args": []})
    client.close()
