"""What a monitoring system reads of forkq: from a real Redis, by Prometheus' own parsers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from redis import Redis

from forkq.child.failure.retry import Bury, Drop
from forkq.child.heartbeat import stats_flush
from forkq.child.heartbeat.stats import MOST_QUEUES, OTHER, Tally, total
from tests.redis.scrape import NOW, OPENMETRICS, CountingChild, exposition, samples
from tests.support.documents import ROOT
from tests.support.server import Server

pytest.importorskip("prometheus_client", reason="missing: pip install --group test")
from forkq.features.batch.parts import COUNTED
from forkq.metrics import collect
from forkq.metrics.families import CRASHES, RESTARTS

HOSTILE = ('Bad"Class\\', "Two\nLines", "x" * 5000, "Esc\x1b[2J", "naïve→", "a|n", "{}", "")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may stand still for seconds."""
    monkeypatch.setattr("forkq.metrics.scraper._LONGEST", 60.0)


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
    child.ran_twice = {"A": 2, "Elsewhere": 1}
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
        assert found["forkq_jobs_ran_twice_total", ("A",)] == 2
        assert found["forkq_jobs_ran_twice_total", ("Elsewhere",)] == 1


def test_names_beyond_the_bound_count_together_and_stay_there(
    child: CountingChild, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats_flush, "_MOST_CLASSES", 2)
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


def test_each_end_that_redis_counts_is_an_outcome_that_the_page_names(
    redis: Redis, redis_server: Server
) -> None:
    wire, page = ((ROOT / "docs" / name).read_text() for name in ("wire.md", "metrics.md"))
    [row] = [each for each in wire.splitlines() if each.startswith("| `forkq:totals:ends`")]
    outcomes = {*re.findall(r"`([a-z]+)`", row), "damaged"} - {"once"}  # an option
    assert outcomes > {"expired", "snoozed", "duplicate", "repeated"}
    assert {each for each in outcomes if f"`{each}`" not in page} == set()
    redis.hset("forkq:totals:ends", mapping={f"A|{each}": 2 for each in outcomes})
    found = samples(redis_server.url)
    assert {each: found["forkq_jobs_total", ("A", each)] for each in outcomes} == dict.fromkeys(
        outcomes, 2
    )


def test_ends_of_children_are_0_before_the_first_one(redis: Redis, redis_server: Server) -> None:
    """So that rate() sees the first event."""
    found = samples(redis_server.url, OPENMETRICS)
    ends = ("forkq_child_restarts_total", "forkq_child_crashes_total")
    reasons = {labels[0]: value for (name, labels), value in found.items() if name in ends}
    assert reasons == dict.fromkeys((*RESTARTS, *CRASHES), 0)
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert [reason for reason in reasons if f"`{reason}`" not in page] == []


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


def test_suspects_count_in_the_size_and_the_latency_of_their_queue(
    redis: Redis, redis_server: Server
) -> None:
    """KEDA scales on them; a queue that was deleted is shown while it has some."""
    old, older = (
        f'{{"class": "A", "args": [], "enqueued_at": {time.time() - late}}}' for late in (100, 500)
    )
    redis.sadd("queues", "mail")
    redis.lpush("queue:mail", old)
    redis.lpush("{queue:mail}:suspects", older, older)
    redis.lpush("{queue:gone}:suspects", old)
    redis.sadd("forkq:suspects", "mail", "gone")
    found = samples(redis_server.url)
    sizes = [found["forkq_queue_size", (name,)] for name in ("mail", "gone")]
    suspects = [found["forkq_queue_suspects", (name,)] for name in ("mail", "gone")]
    late = [found["forkq_queue_latency_seconds", (name,)] // 100 for name in ("mail", "gone")]
    assert (sizes, suspects, late) == ([3, 1], [2, 1], [5, 1])
    redis.set("{queue:mail}:suspects", "another program's")
    assert samples(redis_server.url)["forkq_queue_size", ("mail",)] == 1
    redis.set("forkq:suspects", "another program's")
    redis.sadd("queues", "gone")
    assert samples(redis_server.url)["forkq_queue_suspects", ("gone",)] == 1


def test_what_is_due_and_not_moved_is_late(redis: Redis, redis_server: Server) -> None:
    redis.zadd("schedule", {"a": time.time() - 50, "b": time.time() + 50})
    redis.zadd("retry", {"a": time.time() - 70})
    found = samples(redis_server.url)
    assert 70 <= found["forkq_clock_lateness_seconds", ()] < 1000
    assert (found["forkq_scheduled_size", ()], found["forkq_retry_size", ()]) == (2, 1)
    assert found["forkq_leaders", ()] == 0


def test_batches_are_those_of_the_leaders_last_look(redis: Redis, redis_server: Server) -> None:
    """They are 0 before the first one, so that an alert on the first broken batch fires."""
    none = samples(redis_server.url)
    assert [none["forkq_batches", (state,)] for state in COUNTED] == [0] * 5
    redis.hset("forkq:batches:counts", mapping={"broken": 2, "standing": 1, "lost": 7, "odd": "x"})
    redis.xadd("forkq:notes", {"to": "mail"})
    found = samples(redis_server.url)
    assert [found["forkq_batches", (state,)] for state in COUNTED] == [0, 2, 0, 1, 0]
    assert found["forkq_batch_members_lost_total", ()] == 7
    assert found["forkq_notes_size", ()] == 1


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
    record: Any = {
        "info": info,
        "concurrency": "9",
        "busy": huge,
        "rss": "x",
        "beat": "1e999",
    }
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
