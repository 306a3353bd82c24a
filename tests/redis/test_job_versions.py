"""Versions of jobs: older ones are upgraded at the run, newer ones wait for newer code."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from datetime import date
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import registry
from forkq.child.heartbeat.stats import Totals
from forkq.child.heartbeat.tasks import PublishParameters, Snapshot
from forkq.store.connection import RedisConnection
from forkq.wire.keys import Keys
from forkq.wire.marks import POSTPONED_FOR, VERSION
from forkq.wire.times import now
from tests.redis.in_process_child import InProcessChild
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.waiting import wait_until

OTHER = "vm:77:0123456789ab"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})


def soon(condition: Any) -> None:
    wait_until(condition, what="the jobs have run")


def first_of(redis: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(redis.zrange(name, 0, 0)[0])
    return found


def thumbnail(version: int, got: list[Any]) -> Any:
    """A job as three deploys have it: (path), (path, width), (path, width, height)."""
    registry._jobs.pop("Thumbnail", None)

    def perform(path: str, width: int = 0, height: int = 0) -> None:
        got.append((path, width, height))

    job: Any = forkq.job(name="Thumbnail", version=version)(perform)
    if version > 1:
        job.upgrade(1)(lambda path: [path, 100])
    if version > 2:
        job.upgrade(2)(lambda path, width: (path, width, width * 2))
    return job


def test_older_jobs_are_upgraded_step_by_step(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    got: list[Any] = []
    thumbnail(1, got).perform_async("a")
    thumbnail(2, got).perform_bulk([("b", 7)])
    thumbnail(3, got).perform_in(0.001, "c", 8, 9)
    redis.lpush("queue:default", *redis.zrange("schedule", 0, -1))
    with InProcessChild(redis_server.url):
        soon(lambda: len(got) == 3)
    assert sorted(got) == [("a", 100, 200), ("b", 7, 14), ("c", 8, 9)]


def test_the_payload_says_its_version_from_the_second_on(client: Any, redis: Redis) -> None:
    thumbnail(1, []).perform_async("a")
    thumbnail(2, []).perform_async("b", 1)
    second, first = (json.loads(raw) for raw in redis.lrange("queue:default", 0, -1))
    assert "forkq" not in first
    assert second["forkq"] == {"v": VERSION, "needs": {"version": 2}}


def test_a_newer_version_waits_and_spends_no_attempt(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    thumbnail(3, []).perform_async("a", 1, 2)
    got: list[Any] = []
    thumbnail(2, got)
    with InProcessChild(redis_server.url):
        soon(lambda: redis.zcard("schedule"))
    waits = first_of(redis, "schedule")
    assert got == []
    assert "retry_count" not in waits
    assert waits["args"] == ["a", 1, 2]
    assert now() - 60 < waits["forkq"]["postponed"] <= now()
    scores: Any = redis.zrange("schedule", 0, 0, withscores=True)
    due = scores[0][1]
    assert now() < due < now() + 60
    thumbnail(3, got)
    client.push({**waits, "queue": "default"})
    with InProcessChild(redis_server.url):
        soon(lambda: got)
    assert got == [("a", 1, 2)]


def test_a_newer_version_that_no_process_has_for_a_day_is_buried(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    job = thumbnail(3, [])
    before = {"forkq": {"needs": {"version": 3}, "postponed": now() - POSTPONED_FOR - 1}}
    thumbnail(1, [])
    client.push({"class": job.name, "args": ["a", 1, 2], **before})
    with InProcessChild(redis_server.url):
        soon(lambda: redis.zcard("dead"))
    dead = first_of(redis, "dead")
    assert dead["error_class"] == "forkq.errors.UnknownVersion"
    assert dead["error_message"] == (
        "it is of version 3 of the job 'Thumbnail'; no process that fetched it in 24 hours has had "
        "that, and this one has 1"
    )


def test_a_typed_job_is_upgraded_to_its_types(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    got: list[Any] = []

    class Report(forkq.Job, name="Report", version=2, typed=True):
        """It took the number of a year before."""

        def perform(self, day: date) -> None:
            got.append(day)

    @Report.upgrade(1)
    def from_year(year: int) -> list[Any]:
        return [date(year, 1, 1)]

    client.push({"class": "Report", "args": [2024]})
    Report.perform_async(date(2026, 2, 3))
    with InProcessChild(redis_server.url):
        soon(lambda: len(got) == 2)
    assert sorted(got) == [date(2024, 1, 1), date(2026, 2, 3)]
    assert from_year(2020) == [date(2020, 1, 1)]


def test_what_cannot_be_upgraded_is_retried_with_the_remedy(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    @forkq.job(name="Bare", version=3)
    def bare(a: int) -> None: ...

    bare.upgrade(2)(lambda a: 7)
    client.push({"class": "Bare", "args": [1]})
    client.push({"class": "Bare", "args": [1], "forkq": {"needs": {"version": 2}}})
    client.push({"class": "Bare", "args": [1], "forkq": {"needs": {"version": "x"}}})
    with InProcessChild(redis_server.url):
        soon(lambda: redis.zcard("retry") == 3)
    retried: Any = redis.zrange("retry", 0, -1)
    said = {json.loads(raw)["error_message"] for raw in retried}
    assert said == {
        "job 'Bare' has version 3, and nothing upgrades one of version 1: write @job.upgrade(1)",
        "job 'Bare': upgrade(2) has returned int; return a list of the next version's arguments",
        "the version of the job is 'x', no whole number from 1 on",
    }


def test_a_class_that_only_another_process_has_waits_for_that_one(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    got: list[Any] = []
    job = thumbnail(1, got)
    publish(redis_server)
    job.perform_async("a")
    client.push({"class": "Nobody", "args": []})
    registry._jobs.clear()
    redis.sadd("processes", OTHER)
    with InProcessChild(redis_server.url):
        soon(lambda: redis.zcard("schedule") and redis.zcard("retry"))
    waits, failed = first_of(redis, "schedule"), first_of(redis, "retry")
    assert (waits["class"], "error_class" in waits) == ("Thumbnail", False)
    assert "postponed" in waits["forkq"]
    assert (failed["class"], failed["error_class"]) == ("Nobody", "forkq.errors.UnknownJob")


def test_an_unknown_job_in_the_code_of_a_job_is_a_failure_of_that_one(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    """This process and others have the job itself: it would be done again for a day."""

    @forkq.job(name="Asks")
    def asks() -> None:
        registry.lookup("Nobody")

    publish(redis_server)
    redis.sadd("processes", OTHER)
    asks.perform_async()
    with InProcessChild(redis_server.url):
        soon(lambda: redis.zcard("retry") or redis.zcard("schedule"))
    assert first_of(redis, "retry")["error_class"] == "forkq.errors.UnknownJob"


def test_after_a_day_such_a_class_is_an_error(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    thumbnail(1, [])
    publish(redis_server)
    redis.sadd("processes", OTHER)
    registry._jobs.clear()
    long_ago = {"postponed": now() - POSTPONED_FOR - 1}
    client.push({"class": "Thumbnail", "args": [], "forkq": long_ago})
    with InProcessChild(redis_server.url):
        soon(lambda: redis.zcard("retry"))
    assert first_of(redis, "retry")["error_class"] == "forkq.errors.UnknownJob"


def test_a_record_that_another_program_has_written_says_nothing(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    redis.sadd("processes", OTHER, "ruby:1:ff")
    redis.hset(OTHER, "jobs", "[1")
    redis.hset("ruby:1:ff", "info", "{}")
    client.push({"class": "Nobody", "args": []})
    with InProcessChild(redis_server.url):
        soon(lambda: redis.zcard("retry"))


def publish(server: Server) -> None:
    """A child with the jobs that are registered now says so."""
    task = PublishParameters(Keys(), OTHER, RecordedLog())
    with closing(RedisConnection(server.url, timeout=20)) as connection:
        connection.connect()
        task.attend(connection, Snapshot([], Totals(), quiet=False))


def test_the_record_that_says_which_jobs_there_are_expires(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    thumbnail(1, [])
    publish(redis_server)
    assert json.loads(redis.hget(OTHER, "jobs") or "") == ["Thumbnail"]
    assert 0 < redis.ttl(OTHER) <= 60


@pytest.mark.parametrize("version", [0, -1, "2", 2.0, False, 10**7])
def test_what_is_no_version_is_refused(version: Any) -> None:
    with pytest.raises(forkq.InvalidJob, match=r"`version` is .*; pass a whole number from 1"):
        forkq.job(name="Odd", version=version)(lambda: None)


def test_an_upgrade_that_leads_nowhere_is_refused() -> None:
    job = thumbnail(2, [])
    with pytest.raises(forkq.InvalidJob, match="two functions for upgrade"):
        job.upgrade(1)
    for version in (2, 0, "1"):
        with pytest.raises(forkq.InvalidJob, match="is for no older one; pass 1 to 1"):
            job.upgrade(version)
    with pytest.raises(forkq.InvalidJob, match="has no older version: write version=2"):
        thumbnail(1, []).upgrade(1)
    with pytest.raises(forkq.ForkqError, match=r"upgrade\(1\) of .*Odd.* is async: a call"):
        forkq.job(name="Odd", version=2)(lambda: None).upgrade(1)(asyncio.sleep)
    with pytest.raises(AttributeError, match=r"has no perform\(\)"):
        forkq.Job.upgrade(1)
