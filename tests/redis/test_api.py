"""The API: what runs, what is queued, where a job is; reading and changing periodic jobs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest
from redis import Redis

import forkq
from forkq import api, default_client, middleware, registry
from forkq.api.cron_entries import Run
from forkq.cron.entry import Entry
from forkq.cron.history import line
from forkq.errors import ForkqError, InvalidJob, InvalidSchedule, ServerUnavailable
from forkq.wire.lease import Progress
from tests.support.server import Server
from tests.support.tree import CHECKOUT

JID = "7ff3cf34efff6d76635f23dd"
WHO = "host:17:0123456789ab"


@pytest.fixture(autouse=True)
def client(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> Iterator[forkq.Client]:
    """The process's client, on an empty server, with no job registered."""
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    monkeypatch.setattr(default_client, "_default", None)
    client = forkq.configure(redis_server.url, environ={})
    yield client
    client.close()


def payload(jid: str = JID, **more: Any) -> str:
    return json.dumps({"class": "Mail", "args": ["secret"], "queue": "mail", "jid": jid, **more})


def beat(redis: Redis, identity: str = WHO, **fields: Any) -> None:
    """A process's record, as Sidekiq 7.2 writes it."""
    host, pid, _ = identity.split(":")
    info = {
        "hostname": host, "started_at": 1700000000.5, "pid": int(pid), "tag": "shop",
        "concurrency": 5, "queues": ["mail", "default"], "weights": [{"mail": 0, "default": 0}],
        "labels": ["a"], "identity": identity, "version": "7.2.4", "embedded": False,
    }  # fmt: skip
    record: dict[Any, Any] = {
        "info": json.dumps(info), "busy": 2, "beat": 1700000010.25, "rtt_us": 123,
        "quiet": "false", "rss": 40_000, "concurrency": 5, **fields,
    }  # fmt: skip
    redis.sadd("processes", identity)
    redis.hset(identity, mapping=record)


def runs_since(
    redis: Redis, thread: str, ago: float, identity: str = WHO, key: str = "work", **more: Any
) -> None:
    """Writes that a thread runs a job since ``ago`` seconds."""
    work = {"queue": "mail", "payload": payload(), "run_at": int(time.time() - ago), **more}
    redis.hset(f"{identity}:{key}", thread, json.dumps(work))


# Processes


def test_every_process_with_a_record_is_listed(redis: Redis) -> None:
    beat(redis, "b:2:000000000000", quiet="true")
    beat(redis)
    redis.sadd("processes", "killed:3:000000000000", b"\xff")
    redis.set("odd:4:000000000000", "no hash")
    redis.sadd("processes", "odd:4:000000000000")
    beat(redis, "young:5:000000000000", info="{}")
    first, second = api.processes()
    assert (first.hostname, first.quiet, second.quiet) == ("b", True, False)
    assert second == api.Process(
        identity=WHO, hostname="host", pid=17, tag="shop", queues=("mail", "default"),
        concurrency=5, busy=2, quiet=False, started_at=1700000000.5, beat=1700000010.25,
        rss=40_000, rtt_us=123, labels=("a",), version="7.2.4",
    )  # fmt: skip


def test_a_ruby_process_of_a_later_sidekiq_is_listed(redis: Redis) -> None:
    """From 8.1.2 on ``concurrency`` is a field of its own; 9 is to drop ``queues`` and ``weights``
    from ``info``. Keys as in the record of a real 8.1.7."""
    capsules = {"default": {"concurrency": 5, "mode": "weighted", "weights": {"mail": 2, "low": 1}}}
    info = {
        "hostname": "ruby", "started_at": 1700000000.5, "pid": 18, "tag": "", "capsules": capsules,
        "labels": [], "identity": "ruby:18:0123456789ab", "version": "8.1.7", "embedded": False,
    }  # fmt: skip
    beat(redis, "ruby:18:0123456789ab", info=json.dumps(info), concurrency=5)
    [found] = api.processes()
    assert (found.hostname, found.concurrency, found.queues) == ("ruby", 5, ("mail", "low"))


# Running jobs


def test_running_jobs_are_listed_the_longest_first_without_their_arguments(redis: Redis) -> None:
    at = time.time()
    progress = {"done": 3, "total": 10, "note": "pages", "at": at - 5}
    beat(redis)
    beat(redis, "b:2:000000000000")
    runs_since(redis, "t1", 60)
    runs_since(redis, "t2", 7200, progress=progress)
    of_6 = {"key": "workers", "payload": json.loads(payload())}
    runs_since(redis, "t3", 30, "b:2:000000000000", **of_6)
    found = api.running()
    assert [job.thread for job in found] == ["t2", "t1", "t3"]
    assert [job.identity for job in found] == [WHO, WHO, "b:2:000000000000"]
    assert found[0].progress == Progress(3, 10, "pages", at - 5)
    assert (found[0].jid, found[0].job, found[0].queue) == (JID, "Mail", "mail")
    assert found[0].elapsed == pytest.approx(7200, abs=3)
    assert found[0].started_at == pytest.approx(at - 7200, abs=3)
    assert found[1].progress is None
    assert "secret" not in repr(found)


def test_running_may_be_asked_for_the_long_ones_only(redis: Redis) -> None:
    beat(redis)
    runs_since(redis, "t1", 60)
    runs_since(redis, "t2", 7200)
    assert [job.thread for job in api.running(3600)] == ["t2"]
    assert [job.thread for job in api.running(timedelta(seconds=30))] == ["t2", "t1"]
    assert api.running(timedelta(hours=3)) == []


def test_a_job_that_began_this_second_is_running(redis: Redis) -> None:
    beat(redis)
    runs_since(redis, "t1", -60)  # its host's clock is ahead of ours
    [job] = api.running()
    assert job.elapsed == 0


@pytest.mark.parametrize("wrong", [3600, -3600])
def test_a_host_with_a_wrong_clock_tells_the_right_elapsed_time(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    beat(redis)
    runs_since(redis, "t1", 60)
    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() + wrong)
    [job] = api.running()
    assert job.elapsed == pytest.approx(60, abs=3)
    assert api.stuck(10) == []


@pytest.mark.parametrize("wrong", [3600, -3600])
def test_an_entry_added_or_resumed_by_a_host_with_a_wrong_clock_ticks(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() + wrong)
    api.cron.add("hourly", "@hourly", "Report")
    assert api.cron.get("hourly").last == pytest.approx(true(), abs=3)
    api.cron.pause("hourly")
    redis.hset("forkq:cron:last", "hourly", int(true()) - 100)
    api.cron.resume("hourly")
    assert api.cron.get("hourly").last == pytest.approx(true(), abs=3)


def test_stuck_jobs_have_reported_no_progress_for_minutes(redis: Redis) -> None:
    """For a job that never reports, its start counts."""
    at = time.time()
    beat(redis)
    runs_since(redis, "silent", 1200)
    runs_since(
        redis, "asleep", 7200, progress={"done": 1, "total": None, "note": "", "at": at - 1800}
    )
    runs_since(redis, "lively", 7200, progress={"done": 1, "total": 2, "note": "", "at": at - 5})
    runs_since(redis, "young", 30)
    assert [job.thread for job in api.stuck(10)] == ["asleep", "silent"]
    assert [job.thread for job in api.stuck(25)] == ["asleep"]
    assert api.stuck(60) == []
    assert api.stuck(25)[0].silent_for == pytest.approx(1800, abs=3)


def leases(redis: Redis, identity: str, *payloads: str, queue: str = "mail") -> None:
    """Jobs in flight."""
    redis.sadd("queues", queue)
    for number, leased in enumerate(payloads):
        redis.hset(f"{{queue:{queue}}}:inflight", f"{identity}/{number}", leased)


def test_a_heartbeat_that_comes_while_it_is_looked_says_nothing_of_a_start(redis: Redis) -> None:
    """It may tell of the job, which then began before it."""
    leases(redis, WHO, payload("a", enqueued_at=(time.time() - 60) * 1000))
    beat(redis)
    redis.hset(WHO, "beat", time.time() + 1)
    [job] = api.running()
    assert job.elapsed == pytest.approx(60, abs=3)


def test_a_lease_whose_owner_sends_no_heartbeat_is_running_and_stuck(redis: Redis) -> None:
    """The record of the first is gone, that of the second is stale; the third beats, and its job
    has begun after that."""
    gone, stale, well = "gone:1:000000000000", "stale:2:000000000000", "well:3:000000000000"
    leases(redis, gone, payload("a", enqueued_at=(time.time() - 60) * 1000), "no JSON")
    leases(redis, stale, payload("b"), payload("c"), queue="default")
    leases(redis, well, payload("d"))
    for identity, ttl in ((stale, 29), (well, 50)):
        beat(redis, identity)
        redis.expire(identity, ttl)
    redis.hset(well, "beat", time.time() - 10)
    runs_since(redis, "t1", 30, stale, payload=payload("b"))
    redis.sadd("queues", b"\xff", "odd")
    redis.set("{queue:odd}:inflight", "no hash")
    found = {job.jid: job for job in api.running()}
    assert set(found) == {"a", "", "b", "c", "d"}
    assert [job.jid for job in found.values() if job.heartbeat] == ["d"]
    assert (found["a"].identity, found["a"].queue, found["a"].job) == (gone, "mail", "Mail")
    assert (found["a"].thread, found["b"].thread) == ("", "t1")
    assert found["a"].elapsed == pytest.approx(60, abs=3)
    assert found["b"].elapsed == pytest.approx(30, abs=3)
    assert {job.jid for job in api.stuck(60)} == set(found) - {"d"}
    assert "secret" not in repr(found)


def test_what_has_begun_since_the_last_heartbeat_is_running(redis: Redis) -> None:
    """A child begins its jobs in order: what stands behind as many as it has threads was leased
    ahead. The job is as old as the heartbeat at most, however long it waited."""
    at = time.time()
    since = {"enqueued_at": int((at - 7200) * 1000)}
    leases(redis, WHO, *(payload(f"j{number:02}", **since) for number in range(12)))
    redis.hdel("{queue:mail}:inflight", *(f"{WHO}/{number}" for number in range(7)))
    beat(redis, beat=at - 4, concurrency=4)
    redis.expire(WHO, 50)
    runs_since(redis, "t1", 60, payload=payload("j07"))
    found = api.running()
    assert [(job.jid, job.thread) for job in found[:1]] == [("j07", "t1")]
    assert {(job.jid, job.thread) for job in found[1:]} == {("j08", ""), ("j09", ""), ("j10", "")}
    assert all(job.heartbeat and job.queue == "mail" for job in found)
    assert all(job.elapsed == pytest.approx(4, abs=3) for job in found[1:])
    assert api.stuck(5) == []


def test_a_job_that_has_ended_since_the_last_heartbeat_is_not_running(redis: Redis) -> None:
    """Its lease is gone, and so is that of a job that runs again under another one. Also in a queue
    that was deleted while its jobs run."""
    begun = int((time.time() - 30) * 1000)
    leases(redis, WHO, payload("ended"), payload("runs"), payload("again", enqueued_at=begun))
    beat(redis, beat=time.time() - 8)
    redis.expire(WHO, 50)
    for lease, jid in enumerate(("ended", "runs", "again")):
        runs_since(redis, f"t{lease}", 600, payload=payload(jid), lease=lease)
    inflight = "{queue:mail}:inflight"
    redis.hdel(inflight, f"{WHO}/0")
    redis.hset(inflight, f"{WHO}/7", cast("bytes", redis.hget(inflight, f"{WHO}/2")))
    redis.hdel(inflight, f"{WHO}/2")
    redis.srem("queues", "mail")
    redis.zadd("forkq:fetched", {"mail": time.time()})
    runs, again = api.running()
    assert (runs.jid, runs.thread, again.jid, again.thread) == ("runs", "t1", "again", "")
    assert again.elapsed == pytest.approx(8, abs=3)
    assert [job.jid for job in api.stuck(1)] == ["runs"]


def test_a_job_that_ends_or_goes_back_between_two_looks_is_not_running(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases(redis, WHO, payload("short"), payload("long"))
    beat(redis, beat=time.time())
    rest = time.sleep

    def sleep(seconds: float) -> None:
        redis.hdel("{queue:mail}:inflight", f"{WHO}/0")
        rest(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    assert [job.jid for job in api.running()] == ["long"]


def test_the_heartbeat_tells_of_large_and_of_damaged_jobs(redis: Redis) -> None:
    """Of a process that sends none, they are told from their leases."""
    large = payload("large", args=["x" * (256 << 10)])
    leases(redis, WHO, large, "no JSON", payload("a"))
    beat(redis, beat="nan", concurrency="3")
    assert [job.jid for job in api.running()] == ["a"]
    redis.hset(WHO, "concurrency", "odd")
    assert api.running() == []
    redis.expire(WHO, 20)
    assert {job.jid for job in api.running()} == {"large", "", "a"}


def test_a_child_that_is_missing_in_the_list_of_processes_is_still_read(redis: Redis) -> None:
    """Its lease leads to its record."""
    beat(redis)
    redis.srem("processes", WHO)
    leases(redis, WHO, payload())
    runs_since(redis, "t1", 60)
    assert [(job.thread, job.heartbeat) for job in api.running()] == [("t1", True)]


def test_unreadable_values_are_left_out(redis: Redis) -> None:
    beat(redis)
    runs_since(redis, "t1", 60)
    runs_since(redis, "t2", 60, payload="no JSON")
    for number, odd in enumerate((b"\xff", b"", b"[]", b"{}", b'{"queue":1}')):
        redis.hset(f"{WHO}:work", f"odd{number}", odd)
    redis.sadd("processes", "odd:4:000000000000")
    redis.set("odd:4:000000000000:work", "no hash")
    assert [job.thread for job in api.running()] == ["t1"]


# One job


@pytest.mark.parametrize(
    ("key", "alive"),
    [
        ("queue:mail", True),
        ("{queue:mail}:inflight", True),
        ("schedule", True),
        ("retry", True),
        ("dead", False),
        (None, False),
    ],
)
def test_a_job_is_alive_if_it_runs_or_will(redis: Redis, key: str | None, alive: bool) -> None:
    redis.sadd("queues", "mail")
    if key == "queue:mail":
        redis.lpush(key, payload())
    elif key == "{queue:mail}:inflight":
        redis.hset(key, f"{WHO}/1", payload())
    elif key is not None:
        redis.zadd(key, {payload(): 5})
    assert api.is_alive(JID) is alive
    assert (api.find(JID) is not None) is (key is not None)
    assert api.is_alive("a" * 24) is False


def test_a_pushed_job_is_alive(client: forkq.Client) -> None:
    for more in ({}, {"at": 60}):
        jid = client.push({"class": "Mail", "args": [], **more})
        assert jid is not None
        assert api.is_alive(jid)


# Figures


def test_stats_count_what_was_done_and_what_waits(redis: Redis, client: forkq.Client) -> None:
    redis.mset({"stat:processed": 17, "stat:failed": 3, "forkq:stat:ran_twice": 1})
    beat(redis)
    redis.zadd("schedule", {"a": 1, "b": 2})
    redis.zadd("retry", {"a": 1})
    redis.zadd("dead", {"a": 1, "b": 2, "c": 3})
    redis.sadd("queues", "mail", "wrong", "empty", b"\xff")
    redis.set("queue:wrong", "text")
    redis.rpush("queue:mail", payload(), payload(enqueued_at=int((time.time() - 90) * 1000)))
    client.push({"class": "Mail", "args": [], "queue": "odd"})
    redis.rpush("queue:odd", "no job")
    found = api.stats()
    assert (found.processed, found.failed, found.ran_twice) == (17, 3, 1)
    assert (found.scheduled, found.retry, found.dead) == (2, 1, 3)
    assert (found.processes, found.busy, found.enqueued) == (1, 2, 4)
    assert [(queue.name, queue.size) for queue in found.queues] == [
        ("empty", 0),
        ("mail", 2),
        ("odd", 2),
    ]
    assert [round(queue.latency) for queue in found.queues] == [0, pytest.approx(90, abs=3), 0]


def test_a_missing_right_raises_and_does_not_show_zeros(
    redis: Redis, redis_server: Server, client: forkq.Client
) -> None:
    redis.acl_setuser(
        "pusher", enabled=True, nopass=True, keys=["queues", "queue:*"], commands=["+@all"]
    )
    pusher = forkq.configure(redis_server.url.replace("redis://", "redis://pusher:x@"))
    try:
        with pytest.raises(forkq.NotPermitted):
            api.stats()
    finally:
        pusher.close()
        redis.acl_deluser("pusher")


def test_stats_of_an_empty_server_are_zeros() -> None:
    assert api.stats() == api.Stats(0, 0, 0, {}, 0, 0, 0, 0, 0, ())
    assert [(day.processed, day.failed) for day in api.history(3)] == [(0, 0)] * 3


def test_history_goes_back_from_today(redis: Redis) -> None:
    today = datetime.now(timezone.utc).date()
    yesterday = today - timedelta(days=1)
    redis.mset({f"stat:processed:{today}": 5, f"stat:failed:{yesterday}": 2})
    assert api.history(2) == [api.Day(today, 5, 0), api.Day(yesterday, 0, 2)]
    for wrong in (0, 100_000):
        with pytest.raises(ForkqError, match=str(wrong)):
            api.history(wrong)


# Periodic jobs


def runs(redis: Redis, *services: str) -> None:
    """Announces these services, as their clocks do."""
    for service in services:
        redis.set(f"forkq:cron:origin:{service}", "runs", ex=60)


def define(redis: Redis, name: str = "nightly", origin: str = "code:shop", **more: Any) -> Entry:
    """A periodic job that an app has published."""
    entry = Entry.make(
        name=name,
        cron=more.pop("cron", "0 3 * * *"),
        job={"class": "Report", "args": [7], "queue": "low", "retry": 3},
        origin=origin,
        **more,
    )
    redis.hset("forkq:cron", name, entry.encode())
    return entry


def test_periodic_jobs_are_listed_by_name(redis: Redis) -> None:
    """With their pause and their last tick. An unreadable definition is left out."""
    nightly = define(redis, tz="Europe/Berlin")
    define(redis, "hourly", enabled=False)
    redis.hset("forkq:cron", "odd", "{}")
    redis.hset("forkq:cron:last", "nightly", 1700000000)
    redis.sadd("forkq:cron:paused", "nightly")
    hourly, found = api.cron.list()
    assert (hourly.name, hourly.paused, hourly.resting, hourly.last) == (
        "hourly",
        False,
        True,
        None,
    )
    assert (found.entry, found.paused, found.last) == (nightly, True, 1700000000)
    assert found == api.cron.get("nightly")
    with pytest.raises(InvalidSchedule):
        api.cron.get("odd")


def test_the_next_ticks_lie_ahead(redis: Redis) -> None:
    define(redis)
    ticks = api.cron.get("nightly").ticks(3)
    assert [tick % 86_400 for tick in ticks] == [3 * 3600] * 3
    assert time.time() < ticks[0] <= time.time() + 86_400


@pytest.mark.parametrize(
    "ask",
    [
        api.cron.get,
        api.cron.pause,
        api.cron.resume,
        api.cron.run,
        api.cron.history,
        api.cron.remove,
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(
    redis: Redis, ask: Callable[[str], Any]
) -> None:
    with pytest.raises(ForkqError, match="no periodic job 'nightli'; there are none at all"):
        ask("nightli")
    define(redis)
    with pytest.raises(ForkqError, match="no periodic job 'nightli'; the nearest is 'nightly'"):
        ask("nightli")
    with pytest.raises(ForkqError, match="there are: 'nightly'"):
        ask("unlike")
    define(redis, "nightly-2")
    with pytest.raises(ForkqError, match="the nearest are 'nightly', 'nightly-2'"):
        ask("nightli")
    for number in range(12):
        define(redis, f"job {number:02}")
    with pytest.raises(ForkqError, match="'job 09' and 4 more"):
        ask("unlike")
    assert sorted(redis.keys("*")) == [b"forkq:cron"]


def test_a_periodic_job_may_be_added_at_run_time(redis: Redis) -> None:
    """It gets the options of its job, if the job is registered here; its ticks start from now."""

    @forkq.job(name="Report", queue="low", retry=3)
    def report(number: int) -> None: ...

    before = int(time.time())
    added = api.cron.add("weekly", "@weekly", report, args=[7], tz="Europe/Berlin", jitter=5)
    assert added.entry.origin == "api"
    assert added.entry.schedule.tz == "Europe/Berlin"
    assert added.entry.job == {
        "class": "Report", "args": [7], "queue": "low", "retry": 3
    }  # fmt: skip
    assert added.last is not None
    assert before <= added.last <= time.time()
    other = api.cron.add("ruby", "* * * * *", "Ruby::Job", args=("a",), queue="rails", tags=["x"])
    assert other.entry.job == {
        "class": "Ruby::Job", "args": ["a"], "queue": "rails", "retry": True, "tags": ["x"]
    }  # fmt: skip
    assert [periodic.name for periodic in api.cron.list()] == ["ruby", "weekly"]


def test_an_added_entry_may_be_replaced_and_keeps_its_last_tick(redis: Redis) -> None:
    """If its schedule changes, its ticks start from now."""
    api.cron.add("weekly", "@weekly", "Report")
    redis.hset("forkq:cron:last", "weekly", 1700000000)
    assert api.cron.add("weekly", "@weekly", "Report", args=[1]).last == 1700000000
    moved = api.cron.add("weekly", "@daily", "Report")
    assert moved.last == pytest.approx(time.time(), abs=3)
    assert moved.entry.job["args"] == []


@pytest.mark.parametrize(
    ("arguments", "more", "error", "text"),
    [
        (("a", "61 * * * *", "Report"), {}, InvalidSchedule, "minute"),
        (("a", "* * * * *", "Report"), {"tz": "Mars/Base"}, InvalidSchedule, "Mars/Base"),
        ((" a", "* * * * *", "Report"), {}, InvalidSchedule, "name"),
        (("a", "* * * * *", "Report"), {"overlap": "maybe"}, InvalidSchedule, "overlap"),
        (("a", "* * * * *", "Report"), {"missed": -1}, InvalidSchedule, "missed"),
        (("a", "* * * * *", "Report"), {"args": [(1, 2)]}, InvalidJob, "tuple"),
        (("a", "* * * * *", "Report"), {"retry": "3"}, InvalidJob, "retry"),
        (("a", "* * * * *", "Report"), {"args": ["x" * 2**24]}, InvalidJob, "max_payload_size"),
        (("a", "* * * * *", "Known"), {"args": [1, 2]}, InvalidJob, "takes 1 argument, but"),
        (("a", "* * * * *", "Known"), {"jittr": 4}, InvalidJob, "'jittr'; the nearest is 'jitter'"),
        (("a", "* * * * *", "Ruby"), {"quue": "a"}, InvalidJob, "'quue'; the nearest is 'queue'"),
        (("a", "* * * * *", lambda: None), {}, InvalidJob, "lambda> is no job: pass a function"),
        (("a", "* * * * *", int), {}, InvalidJob, "int is no job"),
        (("a", "* * * * *", None), {}, InvalidJob, "None is no job"),
        (("a", "* * * * *", "R"), {"tz": timezone.utc}, InvalidSchedule, "pass an IANA name"),
    ],
)
def test_an_entry_that_could_never_run_is_refused(
    redis: Redis, arguments: Any, more: Any, error: type[ForkqError], text: str
) -> None:
    @forkq.job(name="Known")
    def known(number: int) -> None: ...

    with pytest.raises(error, match=text):
        api.cron.add(*arguments, **more)
    assert redis.dbsize() == 0


def test_the_entry_of_an_app_that_runs_is_neither_replaced_nor_removed(redis: Redis) -> None:
    """It may be removed once its app does not run."""
    entry = define(redis)
    define(redis, "filed", "file:books")
    runs(redis, "shop", "books")
    with pytest.raises(ForkqError, match="'nightly' is defined by the code of shop, which runs"):
        api.cron.add("nightly", "@daily", "Report")
    with pytest.raises(ForkqError, match=r"forkq\.toml of books, which runs: change it there or"):
        api.cron.remove("filed")
    assert api.cron.get("nightly").entry == entry
    redis.delete("forkq:cron:origin:shop")
    with pytest.raises(ForkqError, match="which does not run: remove it first"):
        api.cron.add("nightly", "@daily", "Report")
    api.cron.remove("nightly")
    assert [periodic.name for periodic in api.cron.list()] == ["filed"]


def test_an_entry_whose_app_does_not_run_is_asleep(redis: Redis) -> None:
    define(redis)
    define(redis, "filed", "file:books")
    api.cron.add("weekly", "@weekly", "Report")
    runs(redis, "books")
    found = {one.name: (one.asleep, one.resting) for one in api.cron.list()}
    assert found == {
        "nightly": (True, True),
        "filed": (False, False),
        "weekly": (False, False),
    }


def test_each_periodic_job_has_its_latest_run(redis: Redis) -> None:
    define(redis)
    define(redis, "fresh")
    define(redis, "odd")
    redis.set("forkq:cron:runs:odd", "no list")
    redis.lpush("forkq:cron:runs:nightly", line("done", jid="a", elapsed=2.0), line("skipped"))
    found = {one.name: one.latest for one in api.cron.list()}
    assert (found["fresh"], found["odd"]) == (None, None)
    assert found["nightly"] is not None
    assert found["nightly"].event == "skipped"


def test_a_zone_may_be_a_zoneinfo(redis: Redis) -> None:
    added = api.cron.add("weekly", "@weekly", "Report", tz=ZoneInfo("Europe/Berlin"))
    assert added.entry.schedule.tz == "Europe/Berlin"


def test_whether_a_clock_leads(redis: Redis) -> None:
    assert api.cron.has_leader() is False
    redis.set("forkq:leader", "vm:1:aaaaaaaaaaaa", ex=12)
    assert api.cron.has_leader() is True


def test_payload_keys_of_your_own_may_be_added(redis: Redis) -> None:
    added = api.cron.add("weekly", "@weekly", "Report", cattr={"tenant": 7}, region=9)
    assert added.entry.job["cattr"] == {"tenant": 7}


def test_a_removed_periodic_job_leaves_no_key(redis: Redis) -> None:
    api.cron.add("weekly", "@weekly", "Report", enabled=False)
    api.cron.pause("weekly")
    redis.hset("forkq:cron:pending", "weekly", JID)
    redis.lpush("forkq:cron:runs:weekly", line("skipped"))
    api.cron.remove("weekly")
    assert redis.dbsize() == 0


def test_a_definition_that_an_app_publishes_meanwhile_is_not_overwritten(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app publishes between our read and our write."""
    from forkq.api import cron  # noqa: PLC0415 - the module itself

    written = cron._written

    def late(*arguments: Any) -> bool:
        monkeypatch.setattr(cron, "_written", written)
        define(redis, "weekly")
        runs(redis, "shop")
        return written(*arguments)

    monkeypatch.setattr(cron, "_written", late)
    with pytest.raises(ForkqError, match="defined by the code of shop"):
        api.cron.add("weekly", "@weekly", "Report")
    assert api.cron.get("weekly").entry.origin == "code:shop"


def test_pause_and_resume(redis: Redis) -> None:
    """Ticks of the pause are left out: the last tick moves to now, and never back."""
    define(redis)
    redis.hset("forkq:cron:last", "nightly", 1700000000)
    assert api.cron.resume("nightly") is False
    assert (api.cron.pause("nightly"), api.cron.pause("nightly")) == (True, False)
    assert redis.smembers("forkq:cron:paused") == {b"nightly"}
    assert api.cron.get("nightly").last == 1700000000
    assert api.cron.resume("nightly") is True
    assert redis.exists("forkq:cron:paused") == 0
    assert api.cron.get("nightly").last == pytest.approx(time.time(), abs=3)
    ahead = int(time.time()) + 30
    redis.hset("forkq:cron:last", "nightly", ahead)
    api.cron.pause("nightly")
    api.cron.resume("nightly")
    assert api.cron.get("nightly").last == ahead


def test_run_pushes_the_job_now_and_leaves_the_schedule_alone(redis: Redis) -> None:
    define(redis)
    api.cron.pause("nightly")
    redis.hset("forkq:cron:last", "nightly", 1700000000)
    jid = api.cron.run("nightly")
    [pushed] = [json.loads(raw) for raw in redis.lrange("queue:low", 0, -1)]
    assert (pushed["class"], pushed["args"], pushed["jid"]) == ("Report", [7], jid)
    assert pushed["retry"] == 3
    assert pushed["forkq"] == {"cron": "nightly", "by_hand": True}
    assert api.cron.get("nightly").last == 1700000000
    [run] = api.cron.history("nightly")
    assert (run.event, run.jid, run.by_hand, run.tick) == ("run by hand", jid, True, None)
    assert redis.ttl("forkq:cron:runs:nightly") > 80 * 86_400
    assert redis.exists("forkq:cron:pending") == 0


def test_run_returns_an_empty_jid_after_a_veto(redis: Redis) -> None:
    define(redis)
    middleware.client.append(lambda job, call: None)
    assert api.cron.run("nightly") == ""
    assert api.cron.history("nightly") == []


def test_history_merges_the_lines_of_one_job(redis: Redis) -> None:
    define(redis)
    for told in (
        line("done", jid="trimmed", elapsed=2.0),
        line("enqueued", tick=1700000000, jid="a"),
        line("skipped", tick=1700000060, running="a"),
        line("retry", jid="a", elapsed=0.5),
        line("missed", tick=1700000300, count=3, since=1700000120),
        line("done", jid="b", elapsed=0.1),
        line("enqueued", tick=1700000360, jid="b"),
        line("run by hand", jid="c"),
        line("dead", jid="a", elapsed=1.5),
        b"no JSON",
        b'{"event":"of tomorrow","at":1.5}',
        line("enqueued", tick=1700000420, jid="d"),
    ):
        redis.lpush("forkq:cron:runs:nightly", told)
    runs = api.cron.history("nightly")
    assert [(run.event, run.jid, run.tick, run.elapsed) for run in runs] == [
        ("enqueued", "d", 1700000420, None),
        ("run by hand", "c", None, None),
        ("done", "b", 1700000360, 0.1),
        ("missed", "", 1700000300, None),
        ("skipped", "", 1700000060, None),
        ("dead", "a", 1700000000, 1.5),
        ("done", "trimmed", None, 2.0),
    ]
    by_event: dict[str, Run] = {run.event: run for run in runs}
    assert (by_event["missed"].count, by_event["skipped"].why) == (3, "a")
    assert by_event["dead"].ended_at is not None
    assert by_event["run by hand"].by_hand
    assert api.cron.history("nightly", limit=2) == runs[:2]


# What it costs processes that do not use it


def test_the_api_loads_the_redis_library_with_the_first_command() -> None:
    program = "import sys, forkq.api; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    loaded = set(run.stdout.split())
    assert "forkq.api.cron" in loaded
    assert not loaded & {"redis", "click", "psutil", "structlog", "forkq.child", "forkq.clock"}


# Errors


@pytest.mark.parametrize(
    "ask",
    [
        api.processes, api.running, api.stuck, api.stats, api.history, api.cron.list,
        lambda: api.find(JID), lambda: api.is_alive(JID), lambda: api.cron.get("x"),
        lambda: api.cron.add("x", "@daily", "Job"), lambda: api.cron.remove("x"),
    ],
)  # fmt: skip
def test_an_unreachable_redis_is_named_without_its_password(ask: Callable[[], Any]) -> None:
    client = forkq.configure("redis://:sesame@127.0.0.1:1/0", environ={})
    with pytest.raises(ServerUnavailable, match=re.escape("127.0.0.1:1")) as caught:
        ask()
    client.close()
    assert "sesame" not in str(caught.value)


def test_a_damaged_counter_is_zero_and_named(redis: Redis) -> None:
    redis.lpush("stat:processed", "no counter")
    assert api.stats().processed == 0
    assert api.damaged_keys() == ["stat:processed"]


def test_the_progress_of_one_job(redis: Redis) -> None:
    """A page asks for it once a second: no queue is read."""
    at = time.time()
    beat(redis)
    runs_since(redis, "t1", 60, progress={"done": 3, "total": 10, "note": "x", "at": at})
    redis.config_resetstat()
    assert api.progress(JID) == Progress(3, 10, "x", at)
    stats: Any = redis.info("commandstats")
    assert not {"cmdstat_lrange", "cmdstat_hkeys", "cmdstat_hvals"} & stats.keys()
    assert api.progress("no such job") is None
