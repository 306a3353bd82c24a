"""What a monitoring system reads of forkq: from a real Redis, by Prometheus' own parsers."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from redis import Redis

from forkq.child.failure.retry import Bury, Drop
from forkq.child.heartbeat import all_time
from forkq.child.heartbeat.stats import MOST_QUEUES, OTHER, Tally, total
from forkq.child.heartbeat.stats_flush import StatsFlusher
from forkq.cli.main import cli
from forkq.client import Client
from forkq.errors import ConfigError
from forkq.store.connection import RedisConnection
from forkq.wire.keys import Keys
from tests.redis.proxy import Proxy
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server

pytest.importorskip("prometheus_client", reason="missing: pip install -e '.[test]'")
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse

from forkq.metrics import collect
from forkq.metrics.exposition import Exposition
from forkq.metrics.server import MetricsServer, address_of

NOW = 1_800_000_000.0
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
HOSTILE = ('Bad"Class\\', "Two\nLines", "x" * 5000, "Esc\x1b[2J", "naïve→", "a|n", "{}", "")


class CountingChild:
    """The counts of one child, which end in Redis with each ``flush``."""

    def __init__(self, url: str, identity: str = "host:1:abc") -> None:
        self.tally = Tally()
        self.ended: dict[str, int] = {}
        self._connection = RedisConnection(url, timeout=5)
        self._flusher = StatsFlusher(identity, Keys(), RecordedLog())

    def flush(self) -> None:
        self._connection.connect()
        self._flusher.flush(self._connection, total([self.tally], 0, self.ended))

    def close(self) -> None:
        self._connection.close()


@contextmanager
def exposition(url: str, timeout: float = 5.0) -> Iterator[Exposition]:
    client = Client(url, timeout=timeout, connect_timeout=timeout)
    try:
        yield Exposition(lambda: client)
    finally:
        client.close()


def samples(url: str, accept: str = "") -> dict[tuple[str, tuple[str, ...]], float]:
    """Name and label values in the order of the labels' names -> value."""
    with exposition(url) as found:
        text = found.render(accept).body.decode()
        assert found.error == ""
    families: Iterable[Any] = (parse_openmetrics if accept else parse)(text)
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.fixture
def child(redis: Redis, redis_server: Server) -> Iterator[CountingChild]:
    with closing(CountingChild(redis_server.url)) as found:
        yield found


def test_counts_of_children_add_up_and_outlive_them_and_the_minutes(
    child: CountingChild, redis: Redis, redis_server: Server
) -> None:
    child.tally.count_done("A", 0.25)
    child.tally.count_done("A", 500.0)
    child.tally.count_failed("A")
    child.tally.count_failed("A", Bury(b"x", None))
    child.tally.count_failed("A", Drop(None))
    child.tally.count_wait("mail", NOW - 2.0, NOW)
    child.tally.count_wait("mail", NOW + 3.0, NOW)  # the clocks of two hosts differ
    child.ended = {"crash|SIGSEGV": 1, "restart|max_jobs": 2}
    child.flush()
    child.flush()
    with closing(CountingChild(redis_server.url, "host:2:def")) as other:
        other.tally.count_done("A", 0.01)
        other.flush()
    for key in (*redis.scan_iter("j|*"), *redis.scan_iter("h|*"), *redis.scan_iter("forkq:f*")):
        redis.delete(key)  # as if it had expired
    for accept in ("", OPENMETRICS):
        found = samples(redis_server.url, accept)
        for outcome, count in {"done": 3, "retried": 1, "dead": 1, "dropped": 1}.items():
            assert found["forkq_jobs_total", ("A", outcome)] == count
        assert found["forkq_job_run_seconds_bucket", ("A", "0.02")] == 1
        assert found["forkq_job_run_seconds_bucket", ("A", "0.225")] == 1
        assert found["forkq_job_run_seconds_bucket", ("A", "0.5")] == 2
        assert found["forkq_job_run_seconds_bucket", ("A", "335.0")] == 2
        assert found["forkq_job_run_seconds_count", ("A",)] == 3
        assert found["forkq_job_run_seconds_sum", ("A",)] == pytest.approx(500.26)
        assert found["forkq_job_wait_seconds_bucket", ("1.0", "mail")] == 1
        assert found["forkq_job_wait_seconds_bucket", ("5.0", "mail")] == 2
        assert found["forkq_job_wait_seconds_sum", ("mail",)] == 2
        assert found["forkq_child_crashes_total", ("SIGSEGV",)] == 1
        assert found["forkq_child_restarts_total", ("max_jobs",)] == 2
        assert found["forkq_jobs_processed_total", ()] == 6


def test_names_beyond_the_bound_count_together_and_stay_there(
    child: CountingChild, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_time, "_MOST_CLASSES", 2)
    for name in ("A", "B", "C", "D"):
        child.tally.count_done(name, 0.1)
    child.flush()
    child.tally.count_done("C", 0.1)
    child.tally.count_done("A", 0.1)
    child.flush()
    found = samples(redis_server.url)
    counts = {key[1][0]: n for key, n in found.items() if key[0] == "forkq_job_run_seconds_count"}
    assert counts == {"A": 2, "B": 1, "(other)": 3}


def test_a_damaged_hash_of_totals_costs_no_other_count(
    child: CountingChild, redis: Redis, redis_server: Server
) -> None:
    redis.set("forkq:totals:jobs", "x")
    child.tally.count_done("A", 0.1)
    child.tally.count_wait("mail", NOW - 0.1, NOW)
    child.flush()
    found = samples(redis_server.url)
    assert found["forkq_jobs_processed_total", ()] == found["forkq_up", ()] == 1
    assert found["forkq_job_wait_seconds_count", ("mail",)] == 1


def test_hostile_names_break_no_line(
    child: CountingChild, redis: Redis, redis_server: Server
) -> None:
    for name in HOSTILE:
        child.tally.count_done(name, 0.1)
        redis.sadd("queues", name)
        redis.lpush(f"queue:{name}", "no job")
    redis.sadd("queues", b"\xff\xfe")
    child.flush()
    for accept in ("", OPENMETRICS):
        found = samples(redis_server.url, accept)
        queues = {key[1][0] for key in found if key[0] == "forkq_queue_size"}
        assert {'Bad"Class\\', "naïve→", "Two\\nLines", "Esc\\x1b[2J", "\\xff\\xfe", ""} <= queues
        assert len(queues) == len(HOSTILE) + 1
        assert max(map(len, queues)) <= 200
        assert found["forkq_jobs_total", ('Bad"Class\\', "done")] == 1


def test_promtool_finds_nothing_in_the_page(
    child: CountingChild, redis: Redis, redis_server: Server
) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus): `make test-deps`")
    for name in HOSTILE:
        child.tally.count_done(name, 0.1)
        child.tally.count_wait(name, NOW - 0.1, NOW)
    child.ended = {"crash|oom": 1, "restart|reload": 1}
    child.flush()
    redis.sadd("queues", "mail")
    redis.set("forkq:leader", "host:1:abc ref")
    with exposition(redis_server.url) as found:
        page = found.render().body
    done = subprocess.run(
        [promtool, "check", "metrics"], input=page, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_many_queues_have_a_bounded_number_of_series_and_lose_no_job(
    redis: Redis, redis_server: Server
) -> None:
    """Whatever there is, each round trip asks a bounded number of questions."""
    names = [f"tenant-{number}" for number in range(2000)]
    redis.sadd("queues", *names)
    old = f'{{"class": "A", "args": [], "enqueued_at": {time.time() - 100}}}'
    with redis.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.lpush(f"queue:{name}", old)
        pipe.lpush("queue:tenant-7", *["{}"] * 5)
        pipe.hset("{queue:tenant-7}:inflight", "lease", old)
        pipe.execute()
    found = samples(redis_server.url)
    sizes = {key[1][0]: n for key, n in found.items() if key[0] == "forkq_queue_size"}
    assert len(sizes) == collect.MOST_QUEUES + 1
    assert sum(sizes.values()) == 2005
    assert sizes["tenant-7"] == 6
    assert found["forkq_queue_in_flight", ("tenant-7",)] == 1
    assert found["forkq_queue_latency_seconds", ("(other)",)] >= 100
    assert found["forkq_queues", ()] == 2000


def test_what_is_due_and_not_moved_is_late(redis: Redis, redis_server: Server) -> None:
    redis.zadd("schedule", {"a": time.time() - 50, "b": time.time() + 50})
    redis.zadd("retry", {"a": time.time() - 70})
    found = samples(redis_server.url)
    assert 70 <= found["forkq_clock_lateness_seconds", ()] < 100
    assert (found["forkq_scheduled_size", ()], found["forkq_retry_size", ()]) == (2, 1)
    assert found["forkq_leaders", ()] == 0


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
    redis.execute_command("ACL", "SETUSER", "scraper", "on", ">hunter2", "~*", "+@all", "-time")
    try:
        for password in ("hunter2", "hunter2wrong"):
            with exposition(redis_server.url.replace("://", f"://scraper:{password}@")) as found:
                text = found.render().body.decode()
                assert "forkq_up 0.0" in text
                assert found.error
                assert "hunter2" not in found.error + found.check() + text
    finally:
        redis.execute_command("ACL", "DELUSER", "scraper")


def test_figures_that_no_counter_has_are_left_out(
    child: CountingChild, redis: Redis, redis_server: Server
) -> None:
    """Each is larger than a float or Python's int() takes, or is none."""
    child.tally.count_wait("mail", -1e308, NOW)
    child.tally.count_wait("mail", 1e308, NOW)
    child.tally.count_wait("mail", 10**400, NOW)
    child.tally.count_wait("mail", "yesterday", NOW)
    child.tally.count_done("A", 0.1)
    child.flush()
    huge = "9" * 5000
    for name in ("stat:processed", "stat:failed"):
        redis.set(name, huge)
    redis.hset("forkq:totals:jobs", mapping={"A|ms": huge, "A|dead": "x", "|n": "1", "": "1"})
    info = json.dumps({"hostname": "h", "pid": 1, "started_at": 1.0, "version": "forkq 1"})
    record = {"info": info, "concurrency": "9", "busy": huge, "rss": "x", "beat": "1e999"}
    redis.hset("h:1:0123456789ab", mapping=record)
    redis.sadd("processes", "h:1:0123456789ab")
    found = samples(redis_server.url)
    assert found["forkq_jobs_processed_total", ()] == 0
    assert found["forkq_jobs_total", ("A", "done")] == 1
    assert found["forkq_job_wait_seconds_count", ("mail",)] == 2
    assert found["forkq_processors", ("default", "h")] == 9


def test_a_child_counts_a_bounded_number_of_queues_by_name() -> None:
    tally = Tally()
    for number in range(MOST_QUEUES + 50):
        tally.count_wait(f"tenant-{number}", NOW - 1, NOW)
    queues = total([tally]).queues
    assert len(queues) == MOST_QUEUES + 1
    assert sum(queues[OTHER][1:]) == 50


def test_a_scrape_that_takes_too_long_is_given_up(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkq.metrics.exposition._LONGEST", -1.0)
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
        pytest.raises(ConfigError, match="in use"),
    ):
        MetricsServer(("127.0.0.1", redis_server.port), found)


def test_the_command_prints_the_page_once(redis: Redis, redis_server: Server) -> None:
    environ = {"FORKQ_REDIS": redis_server.url}
    done = CliRunner().invoke(cli, ["metrics", "--once"], env=environ, standalone_mode=False)
    assert "forkq_up 1.0" in done.output
    done = CliRunner().invoke(cli, ["metrics", "--listen", "0.0.0.0:1"], env=environ)
    assert "--allow-remote" in str(done.exception)
