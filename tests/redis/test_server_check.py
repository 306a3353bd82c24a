"""What `forkq start` checks of a server before it forks."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from forkq.client import Client
from forkq.errors import ConfigError, NotPermitted, ServerReadOnly, ServerUnavailable
from forkq.store.connection import ConnectionLost, RedisConnection
from forkq.store.refusals import failure, refuses
from forkq.store.server_check import check_files, check_rights, check_usable, server_info
from forkq.wire.keys import Keys
from tests.support.cluster import Cluster
from tests.support.documents import redis_rights
from tests.support.sentinels import Sentinel
from tests.support.server import Server
from tests.support.tls_server import TlsServer, certify
from tests.support.tree import CHECKOUT
from tests.support.waiting import wait_until

# What only commands and the API use, and what a tree can do without.
NOT_ASKED_FOR = {
    "+client|caching", "+client|tracking", "+exec", "+hello", "+sismember", "+unwatch",
    "+watch", "~*-marks", "~deploylock-*",
}  # fmt: skip


LEAST = redis_rights("forkq")
RIGHTS = [rule for rule in LEAST if rule[0] in "+~" and rule not in NOT_ASKED_FOR]


@pytest.fixture
def least(redis_server: Server, redis: Redis) -> Iterator[str]:
    """The URL of a user with the documented rights, and no more."""
    redis_server.cli("ACL", "SETUSER", "least", "reset", *LEAST)
    yield redis_server.url.replace("redis://", "redis://least:x@")
    redis_server.cli("ACL", "DELUSER", "least")


def check(url: str, prefix: str = "") -> None:
    connection = RedisConnection(url)
    try:
        connection.connect()
        check_rights(connection, Keys(prefix))
        connection.connect()  # that check closes it
        check_usable(server_info(connection), connection)
    finally:
        connection.close()


def test_the_documented_rights_are_enough(least: str, redis_server: Server, redis: Redis) -> None:
    check(least)
    check(redis_server.url)
    assert redis.keys("*") == []


def test_each_right_that_is_missing_is_named(least: str, redis_server: Server) -> None:
    for right in RIGHTS:
        rules = [rule for rule in LEAST if rule != right]
        redis_server.cli("ACL", "SETUSER", "least", "reset", *rules)
        with pytest.raises(NotPermitted) as caught:
            check(least)
        named = str(caught.value).partition("needs: ")[2].partition(";")[0]
        assert named == right
        assert "docs/redis.md" in str(caught.value)
        assert ":x@" not in str(caught.value)


def test_one_error_names_all_missing_rights_with_the_prefix(redis_server: Server) -> None:
    rules = [rule for rule in LEAST if rule not in ("+zadd", "+ltrim", "~queue:*")]
    redis_server.cli("ACL", "SETUSER", "least", "reset", *rules)
    url = redis_server.url.replace("redis://", "redis://least:x@")
    with pytest.raises(NotPermitted, match=r"needs: \+ltrim \+zadd ~queue:\*;"):
        check(url)
    with pytest.raises(NotPermitted, match=r"~app:queues ~app:queue:\* "):
        check(url, prefix="app:")
    redis_server.cli("ACL", "DELUSER", "least")


def test_a_full_server_is_not_taken_for_a_missing_right(own_server: Server) -> None:
    own_server.cli("CONFIG", "SET", "maxmemory", 1)
    check(own_server.url)


def test_a_server_without_transactions_keeps_its_jobs(own_server: Server) -> None:
    """The check sends DEL of each key, in a transaction that is never executed. Where MULTI was
    refused, Redis did as it was told: waiting jobs, retries and leases were gone."""
    jobs = own_server.client()
    jobs.lpush("queue:q", "job")
    jobs.zadd("retry", {"failed": 1})
    jobs.sadd("queues", "q")
    own_server.cli("ACL", "SETUSER", "least", "reset", *[one for one in LEAST if one != "+multi"])
    with pytest.raises(NotPermitted, match=r"\+multi"):
        check(own_server.url.replace("redis://", "redis://least:x@"))
    assert sorted(jobs.keys("*")) == [b"queue:q", b"queues", b"retry"]


def test_the_documented_rights_of_a_pusher_are_enough(redis_server: Server, redis: Redis) -> None:
    redis_server.cli("ACL", "SETUSER", "pusher", "reset", *redis_rights("pusher"))
    client = Client(redis_server.url.replace("redis://", "redis://pusher:x@"))
    client.push({"class": "MyJob", "args": []})
    client.push_bulk({"class": "MyJob", "args": [[1]], "at": 60})
    client.close()
    redis_server.cli("ACL", "DELUSER", "pusher")
    assert redis.llen("queue:default") == redis.zcard("schedule") == 1


def test_every_command_that_a_script_sends_is_redis_rights() -> None:
    scripts = [path.read_text() for path in (CHECKOUT / "forkq/store/scripts").rglob("*.lua")]
    sends = re.compile(r"(?:call|read|refused|added|size_of)\((?:queue, \d, )?'(\w+)'")
    sent = {command.lower() for text in scripts for command in sends.findall(text)}
    assert {"ltrim", "hmget", "llen", "bitfield"} <= sent
    page = (CHECKOUT / "docs/redis.md").read_text()
    by_hand = re.findall(r"\+(\w+)", page.partition("the user also needs")[2].partition("\n")[0])
    assert by_hand
    assert sent <= {rule[1:] for rule in LEAST if rule[0] == "+"} | set(by_hand)


# Servers on which no job can run


def test_a_replica_is_refused(own_server: Server) -> None:
    own_server.cli("REPLICAOF", "127.0.0.1", 1)
    with pytest.raises(ServerReadOnly, match=r"replica of 127\.0\.0\.1:1, .*address of the master"):
        check(own_server.url)


def test_a_node_of_a_cluster_is_refused_under_its_own_address() -> None:
    cluster = Cluster(1).start()
    try:
        with pytest.raises(
            ServerUnavailable,
            match=r"node of a Redis Cluster.*write cluster://HOST.*a prefix with a name",
        ):
            check(cluster.primaries[0].url)
    finally:
        cluster.close()


def test_a_sentinel_is_refused(own_server: Server) -> None:
    server = Sentinel(own_server).start()
    try:
        with pytest.raises(ServerUnavailable, match=r"is a Sentinel.*sentinel://HOST"):
            check(server.url)
    finally:
        server.close()


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate for localhost that signs itself."""
    folder = tmp_path_factory.mktemp("tls")
    if not certify(folder):
        pytest.skip("there is no openssl here")
    return folder


@pytest.fixture(scope="module")
def tls_port(certificates: Path) -> Iterator[int]:
    """The port on which a server speaks TLS."""
    yield from tls_server(certificates, "--tls-auth-clients", "no")


@pytest.fixture(scope="module")
def mutual_tls_port(certificates: Path) -> Iterator[int]:
    """As ``tls_port``, of a server that asks its clients for a certificate, too."""
    ca = str(certificates / "cert.pem")
    yield from tls_server(certificates, "--tls-auth-clients", "yes", "--tls-ca-cert-file", ca)


def tls_server(certificates: Path, *extra: str) -> Iterator[int]:
    cert, key = str(certificates / "cert.pem"), str(certificates / "key.pem")
    server = TlsServer(extra=("--tls-cert-file", cert, "--tls-key-file", key, *extra))
    try:
        server.start()
    except RuntimeError:
        server.close()
        pytest.skip("this server has no TLS")
    yield server.tls_port
    server.close()


def failed(url: str) -> Exception:
    with pytest.raises(ConnectionLost) as caught:
        check(url)
    return caught.value


def test_tls_with_the_right_certificate_works(tls_port: int, certificates: Path) -> None:
    check(f"rediss://localhost:{tls_port}/0?ssl_ca_certs={certificates}/cert.pem")


@pytest.mark.parametrize("form", ["rediss://localhost:{port}/0",
                                  "rediss://127.0.0.1:{port}/0?ssl_ca_certs={folder}/cert.pem"],
                         ids=["unknown to the system", "another host's"])  # fmt: skip
def test_a_certificate_that_is_not_trusted_is_no_outage(
    tls_port: int, certificates: Path, form: str
) -> None:
    url = form.format(port=tls_port, folder=certificates)
    error = failed(url)
    assert refuses(error)
    assert "certificate verify failed" in str(failure(error, url)).lower()
    assert "docs/redis.md" in str(failure(error, url))


def test_mutual_tls_works_with_a_certificate_of_forkqs_own(
    mutual_tls_port: int, certificates: Path
) -> None:
    ca = f"ssl_ca_certs={certificates}/cert.pem"
    own = f"ssl_certfile={certificates}/cert.pem&ssl_keyfile={certificates}/key.pem"
    check(f"rediss://localhost:{mutual_tls_port}/0?{ca}&{own}")


def test_mutual_tls_needs_a_certificate(mutual_tls_port: int, certificates: Path) -> None:
    """With TLS 1.3 the server refuses only after the handshake. Often its reason is lost then."""
    url = f"rediss://localhost:{mutual_tls_port}/0?ssl_ca_certs={certificates}/cert.pem"
    wait_until(lambda: refuses(failed(url)), what="a refusal with its reason", every=0)


def test_sentinels_and_the_master_speak_tls(
    mutual_tls_port: int, certificates: Path, own_server: Server
) -> None:
    """The certificate is localhost's, and the Sentinel tells the master's IP address."""
    own = f"ssl_certfile={certificates}/cert.pem&ssl_keyfile={certificates}/key.pem"
    url = f"127.0.0.1:{{}}/main/0?{own}&ssl_ca_certs={certificates}/cert.pem"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    files = ["--tls-port", str(port), "--tls-cert-file", f"{certificates}/cert.pem",
             "--tls-key-file", f"{certificates}/key.pem",
             "--tls-ca-cert-file", f"{certificates}/cert.pem"]  # fmt: skip
    sentinel = Sentinel(own_server, extra=files).start()
    try:
        sentinel.cli("SENTINEL", "REMOVE", "main")
        sentinel.cli("SENTINEL", "MONITOR", "main", "127.0.0.1", mutual_tls_port, 1)
        check(f"sentinels://{url.format(port)}&ssl_check_hostname=false")
        error = failed(f"sentinels://{url.format(port)}")
        assert refuses(error)
        assert f"the Sentinel 127.0.0.1:{port}: " in str(error)
    finally:
        sentinel.close()


def test_a_server_that_is_away_is_an_outage_by_tls_too() -> None:
    assert not refuses(failed("rediss://127.0.0.1:1/0"))


def test_a_port_without_tls_is_asked_about(redis_server: Server) -> None:
    """Such a server waits for the rest of a command that it never gets."""
    url = redis_server.url.replace("redis://", "rediss://")
    connection = RedisConnection(url, connect_timeout=0.2)
    with pytest.raises(ConnectionLost) as caught:
        connection.connect()
    assert "does that port speak TLS" in str(failure(caught.value, url))


def test_a_file_of_the_url_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("")
    check_files(f"rediss://h?ssl_ca_certs={tmp_path}/ca.pem&ssl_ca_path={tmp_path}")
    for option, name, why in (
        ("ssl_ca_certs", tmp_path / "none.pem", "No such file"),
        ("ssl_certfile", tmp_path, "it is a folder"),
        ("ssl_ca_path", tmp_path / "ca.pem", "it is no folder"),
    ):
        with pytest.raises(ConfigError, match=f"{option} names {name}: {why}"):
            check_files(f"rediss://h?{option}={name}")
