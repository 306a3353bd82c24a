"""How ``forkq metrics`` serves, what it refuses, and what it tells of a Redis that is silent."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from redis import Redis

from forkq.cli.main import cli
from forkq.errors import ConfigError, ForkqError
from tests.redis.proxy import Proxy
from tests.redis.scrape import NOW, OPENMETRICS, CountingChild, exposition, samples
from tests.support.documents import redis_rights
from tests.support.server import Server
from tests.support.waiting import wait_until

pytest.importorskip("prometheus_client", reason="missing: pip install --group test")
from forkq.metrics import server
from forkq.metrics.exposition import Exposition
from forkq.metrics.server import MetricsServer, address_of


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may stand still for seconds."""
    monkeypatch.setattr("forkq.metrics.scraper._LONGEST", 60.0)
    monkeypatch.setattr("forkq.cli.metrics._TIMEOUT", 30.0)


@pytest.fixture
def child(redis: Redis, redis_server: Server) -> Iterator[CountingChild]:
    with closing(CountingChild(redis_server.url)) as found:
        yield found


def test_a_redis_that_is_gone_or_silent_is_told_in_time(redis_server: Server) -> None:
    with Proxy(redis_server.port) as proxy, exposition(proxy.url, timeout=0.3) as found:
        proxy.cut_off()
        begun = time.monotonic()
        text = found.render().body.decode()
        assert time.monotonic() - begun < 30
        assert "forkq_up 0.0" in text
        assert "forkq_queues" not in text
        assert found.error
        proxy.restore()
    with exposition("redis://127.0.0.1:1/0") as found:
        assert "forkq_up 0.0" in found.render().body.decode()


def test_what_redis_says_to_all_commands_is_told_without_the_password(
    redis: Redis, redis_server: Server
) -> None:
    redis_server.cli("ACL", "SETUSER", "scraper", "on", ">hunter2", "~*", "+@all", "-time")
    try:
        for password in ("hunter2", "hunter2wrong"):
            with exposition(redis_server.url.replace("://", f"://scraper:{password}@")) as found:
                text = found.render().body.decode()
                assert "forkq_up 0.0" in text
                assert found.error
                assert "hunter2" not in found.error + found.check() + text
    finally:
        redis_server.cli("ACL", "DELUSER", "scraper")


def test_the_documented_rights_are_enough_and_a_missing_one_is_told(
    child: CountingChild, redis: Redis, redis_server: Server
) -> None:
    child.tally.count_done("A", 0.1)
    child.tally.count_wait("mail", NOW - 0.1, NOW)
    child.ended = {"crash|oom": 1}
    child.flush()
    redis.lpush("queue:mail", "{}")
    redis.sadd("queues", "mail")
    redis.set("forkq:leader", "host:1:abc ref")
    host = socket.gethostname()
    info = json.dumps({"hostname": host, "pid": 1, "started_at": 1.0, "version": "forkq 1"})
    redis.hset(f"{host}:1:0123456789ab", mapping={"info": info, "concurrency": "9"})
    redis.sadd("processes", f"{host}:1:0123456789ab")
    redis_server.cli("ACL", "SETUSER", "scraper", *redis_rights("scraper"))
    url = redis_server.url.replace("://", "://scraper:x@")
    try:
        limited = samples(url)
        redis_server.cli("ACL", "SETUSER", "scraper", "-info")
        assert limited.keys() - samples(url).keys() == {
            ("forkq_redis_memory_used_bytes", ()),
            ("forkq_redis_memory_max_bytes", ()),
        }
        redis_server.cli("ACL", "SETUSER", "scraper", "-llen")
        with exposition(url) as found:  # no zeros in place of what it may not read
            assert "forkq_queue_size" not in found.render().body.decode()
            assert "llen" in found.error
    finally:
        redis_server.cli("ACL", "DELUSER", "scraper")
    assert limited.keys() == samples(redis_server.url).keys()
    assert limited["forkq_children", ("default", host)] == 1


def test_a_scrape_that_takes_too_long_is_given_up(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkq.metrics.scraper._LONGEST", -1.0)
    with exposition(redis_server.url) as found:
        assert "forkq_up 0.0" in found.render().body.decode()
        assert "too long" in found.error


@contextmanager
def serving(found: Exposition) -> Iterator[str]:
    with MetricsServer(("127.0.0.1", 0), found) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def connect(stack: ExitStack, url: str) -> socket.socket:
    where = urlsplit(url)
    assert where.port
    return stack.enter_context(socket.create_connection((where.hostname, where.port), 30))


def get(url: str, accept: str = "") -> tuple[int, str, str]:
    """Status, type and text."""
    where = urlsplit(url)
    with closing(HTTPConnection(where.netloc, timeout=30)) as connection:
        connection.request("GET", f"{where.path}?{where.query}", headers={"Accept": accept})
        reply = connection.getresponse()
        return reply.status, reply.getheader("Content-Type", ""), reply.read().decode()


def test_the_server_answers_a_scraper_and_the_probes(redis: Redis, redis_server: Server) -> None:
    with exposition(redis_server.url) as found, serving(found) as url:
        status, kind, text = get(f"{url}/metrics", OPENMETRICS)
        assert (status, kind.split(";")[0]) == (200, "application/openmetrics-text")
        assert "forkq_up 1.0" in text
        assert "forkq_up 1.0" in get(f"{url}/metrics?name=x")[2]
        assert get(f"{url}/livez")[::2] == get(f"{url}/readyz")[::2] == (200, "ok\n")
        assert get(f"{url}/")[0] == 404
    with exposition("redis://127.0.0.1:1/0") as found, serving(found) as url:
        assert get(f"{url}/livez")[0] == get(f"{url}/metrics")[0] == 200
        status, _, text = get(f"{url}/readyz")
        assert status == 503
        assert "127.0.0.1:1" in text


def test_a_flood_of_half_heads_keeps_no_scraper_out() -> None:
    with exposition("redis://127.0.0.1:1/0") as found, serving(found) as url, ExitStack() as stack:
        threads = threading.active_count()
        for _ in range(3 * server._MOST):
            connect(stack, url).send(b"GET /livez HTTP/1.1\r\nX-Slow: ")
        assert [get(f"{url}/livez")[0] for _ in range(10)] == [200] * 10
        wait_until(
            lambda: threading.active_count() <= threads + server._MOST + 1,
            what="the end of the clients that were too many",
        )


@pytest.mark.parametrize("begins", [b"", b"GET /livez HTTP/1.1\r\nX-Slow: "])
def test_a_head_that_is_never_whole_is_ended(
    begins: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a client that sends a byte now and then."""
    monkeypatch.setattr(server, "_PATIENCE", 0.3)
    monkeypatch.setattr(server._Handler, "timeout", 60.0)
    with exposition("redis://127.0.0.1:1/0") as found, serving(found) as url, ExitStack() as stack:
        client = connect(stack, url)
        client.settimeout(0.02)
        client.send(begins)

        def is_closed() -> bool:
            try:
                client.send(b"x" if begins else b"")
                return client.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        wait_until(is_closed, what="the end of the connection")


def test_more_scrapes_at_once_than_it_answers_are_told_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on = threading.Event()
    asked = threading.Semaphore(0)

    def slow(self: Exposition) -> str:
        asked.release()
        go_on.wait(30)
        return ""

    monkeypatch.setattr(Exposition, "check", slow)
    monkeypatch.setattr(server, "_MOST", 3)
    with exposition("redis://127.0.0.1:1/0") as found, serving(found) as url, ExitStack() as stack:
        first = [connect(stack, url) for _ in range(3)]
        for client in first:
            client.send(b"GET /readyz HTTP/1.1\r\n\r\n")
            assert asked.acquire(timeout=30)
        assert get(f"{url}/readyz")[0] == get(f"{url}/metrics")[0] == 503
        assert get(f"{url}/livez")[0] == 200
        go_on.set()
        assert all(b" 200 " in client.recv(4096) for client in first)
        wait_until(lambda: get(f"{url}/readyz")[0] == 200, what="room for another one")


@pytest.mark.parametrize("listen", ["0.0.0.0:9394", "[::]:9394", "192.0.2.1:80", "example.org:80"])
def test_it_listens_beyond_this_host_only_when_told_so(listen: str) -> None:
    with pytest.raises(ConfigError, match="--allow-remote"):
        address_of(listen, allow_remote=False)
    assert address_of(listen, allow_remote=True)[1] in {80, 9394}


@pytest.mark.parametrize("listen", ["9394", ":9394", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000"])
def test_an_address_that_is_none_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        address_of(listen, allow_remote=True)


def test_loopback_has_several_names() -> None:
    hosts = [address_of(f"{host}:1", allow_remote=False)[0] for host in ("localhost", "[::1]")]
    assert hosts == ["localhost", "::1"]


def test_a_port_that_is_taken_is_one_error(redis_server: Server) -> None:
    with (
        exposition(redis_server.url) as found,
        pytest.raises(ForkqError, match="in use"),
    ):
        MetricsServer(("127.0.0.1", redis_server.port), found)


def test_the_command_prints_the_page_once(redis: Redis, redis_server: Server) -> None:
    environ = {"FORKQ_REDIS": redis_server.url}
    done = CliRunner().invoke(cli, ["metrics", "--once"], env=environ, standalone_mode=False)
    assert "forkq_up 1.0" in done.output
    done = CliRunner().invoke(cli, ["metrics", "--listen", "0.0.0.0:1"], env=environ)
    assert "--allow-remote" in str(done.exception)
