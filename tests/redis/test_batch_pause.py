"""A batch that is paused: its members wait, whoever fetches them, until it goes on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import api, default_client, middleware, registry
from forkq.api.features.steps import waiting_jobs
from forkq.clock.cancelled_jobs import CancelledJobs
from forkq.features.batch.parts import LIVES
from forkq.features.batch.pause import BatchPause, read_pauses
from forkq.limits.rules import Rate, Rules
from forkq.store.connection import RedisConnection
from forkq.wire.keys import Keys
from forkq.wire.times import now
from tests.redis.in_process_child import InProcessChild
from tests.redis.in_process_clock import InProcessClock
from tests.redis.prefix_shards import config_at
from tests.redis.shell import Shell
from tests.redis.test_cancel import HearingChild, passes
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.waiting import wait_until

KEYS, QUEUE = Keys(), "queue:default"
CANCELLED = "forkq:cancelled"
ran: list[Any] = []
gate = threading.Event()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    monkeypatch.setattr(middleware, "pushes", middleware.Chain())
    ran.clear()
    gate.clear()
    forkq.job(name="Told")(ran.append)
    yield
    gate.set()


def load(**options: Any) -> Any:
    registry._jobs.pop("Load", None)
    return forkq.job(name="Load", **{"retry": 0, **options})(ran.append)


def told(word: str) -> forkq.PreparedJob:
    return forkq.PreparedJob({"class": "Told", "args": [word]})


def made(job: Any, *numbers: int, **more: Any) -> api.Batch:
    with forkq.Batch("import", **more) as batch:
        job.perform_bulk([[number] for number in numbers])
    return api.Batch(batch.bid)


def scheduled(redis: Redis) -> list[tuple[dict[str, Any], float]]:
    found: Any = redis.zrange("schedule", 0, -1, withscores=True)
    return [(json.loads(raw), at) for raw, at in found]


def is_idle(redis: Redis) -> bool:
    return not redis.exists(QUEUE, "{queue:default}:inflight")


def work(redis: Redis, url: str, **more: Any) -> None:
    """Fetches what waits in the queue, as a child does that knows what is paused."""
    child = InProcessChild(url, **more)
    child.limits.paused.update(read_pauses(redis.hgetall(CANCELLED)))  # type: ignore[arg-type]
    with child:
        wait_until(lambda: is_idle(redis), what="the end of all that can be run")


def test_members_wait_while_their_batch_is_paused(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    """Also those that are pushed meanwhile. A job of no batch runs, and what ran goes on."""

    def wait(number: int) -> None:
        assert gate.wait(30)
        ran.append(number)

    job, slow = load(), forkq.job(name="Slow")(wait)
    with HearingChild(redis_server.url) as child, InProcessClock(redis_server.url):
        with forkq.Batch("import", on_finish=told("over")) as batch:
            slow.perform_async(0)
            wait_until(lambda: redis.hlen("{queue:default}:inflight"), what="the first member")
            one = api.Batch(batch.bid)
            one.pause()
            wait_until(lambda: child.limits.paused, what="the pause to be heard")
            job.perform_bulk([[number] for number in range(1, 40)])
        job.perform_async(100)
        gate.set()
        wait_until(lambda: is_idle(redis), what="the end of all that can be run")
        assert sorted(ran) == [0, 100]
        report = one.report()
        assert (report.state, report.waiting) == ("waiting", 39)
        assert now() - 30 < report.paused_at <= now() + 1
        assert one.resume().done == 39
        wait_until(lambda: "over" in ran, what="the callback")
        wait_until(lambda: not child.limits.paused, what="the end of the pause to be heard")
    assert sorted(ran[2:-1]) == [*range(1, 40)]
    assert (one.report().state, one.report().paused_at) == ("succeeded", 0.0)


def test_a_member_is_put_off_as_one_that_was_not_run(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    """It keeps its attempts and its lock, and gives the token of its queue's rate back. It comes
    again by itself, so the end of a pause that no process tells it is not missed."""
    job = load(unique_for=60)
    batch = made(job, 1)
    batch.pause()
    rules = {"default": Rules(rate=Rate(1, 3600))}
    began = now()
    work(redis, redis_server.url, rules=rules)
    [(payload, at)] = scheduled(redis)
    assert ran == []
    assert began + 5 < at <= now() + 10
    assert payload["forkq"]["paused"] == batch.bid
    assert list(payload)[-1] == "forkq"
    assert "retry_count" not in payload
    [lock] = redis.scan_iter("forkq:unique:*")
    assert redis.hget(lock, "jid") == payload["jid"].encode()
    assert batch.resume().done == 1
    work(redis, redis_server.url, rules=rules)
    assert ran == [1]
    assert not redis.exists(lock)


def test_the_longer_a_pause_lasts_the_more_rarely_its_members_are_looked_at() -> None:
    pause = BatchPause("b", 1_000.0)
    assert [pause.lasts(1_000.0 + after) for after in (0, 60, 500, 86_400)] == [10, 60, 500, 600]


def test_batches_within_a_paused_one_wait_with_their_callbacks(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = load()
    with forkq.Batch("outer", on_finish=told("outer")) as outer:
        made(job, 1, on_finish=told("first"))
        second = made(job, 2, on_finish=told("second"))
    work(redis, redis_server.url)  # the callbacks within are due now
    assert sorted(ran) == [1, 2]
    api.Batch(outer.bid).pause()
    with InProcessClock(redis_server.url):
        wait_until(lambda: redis.llen(QUEUE) == 2, what="the callbacks")
    work(redis, redis_server.url)
    assert sorted(ran) == [1, 2]
    assert second.report().paused_at == 0
    assert api.Batch(outer.bid).resume().done == 2
    with InProcessClock(redis_server.url):
        work(redis, redis_server.url)
        wait_until(lambda: redis.llen(QUEUE) == 1, what="the last callback")
    work(redis, redis_server.url)
    assert sorted(ran[2:4]) == ["first", "second"]
    assert ran[4:] == ["outer"]


def test_the_callback_of_a_paused_batch_itself_runs(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    """Its time has come before, or nothing of the batch was left."""
    batch = made(load(), 1, on_death=told("dead"), on_finish=told("over"))
    redis.hset(CANCELLED, f"paused:{batch.bid}", now())
    work(redis, redis_server.url)
    assert ran == []
    api.ScheduledSet().delete_all()
    with InProcessClock(redis_server.url):
        wait_until(lambda: redis.llen(QUEUE), what="the callback")
    work(redis, redis_server.url)
    assert ran == ["over"]


def test_what_is_over_ends_although_its_batch_is_paused(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    """It has expired, or the batch is cancelled: then it is paused no more."""
    made(load(expires_in=0.001), 1).pause()
    other = made(load(), 2)
    other.pause()
    work(redis, redis_server.url)
    assert [payload["args"] for payload, _ in scheduled(redis)] == [[2]]
    other.cancel()
    assert other.report().paused_at == 0
    with closing(RedisConnection(redis_server.url)) as connection:
        connection.connect()
        passes(CancelledJobs(KEYS, connection, RecordedLog()), 1)
    assert (scheduled(redis), ran) == ([], [])
    with pytest.raises(forkq.ForkqError, match=r"has ended \(cancelled\): nothing to pause"):
        other.pause()


def test_a_member_that_has_run_since_is_not_sent_to_its_queue_by_the_next_resume(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    """It sleeps now because it has said so."""

    def perform(number: int) -> None:
        raise forkq.Snooze(900)

    registry._jobs.pop("Load", None)
    batch = made(forkq.job(name="Load")(perform), 1)
    batch.pause()
    work(redis, redis_server.url)
    assert batch.resume().done == 1
    work(redis, redis_server.url)
    batch.pause()
    assert batch.resume().done == 0
    [(_, at)] = scheduled(redis)
    assert at > now() + 600


def test_a_member_that_is_put_off_after_its_wait_does_not_wait_any_more(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    def perform(number: int) -> None:
        ran.append(forkq.wait_for("approved", timeout=0.001))

    registry._jobs.pop("Load", None)
    batch = made(forkq.job(name="Load")(perform), 1)
    work(redis, redis_server.url)
    [(job, _)] = scheduled(redis)
    assert job["forkq"]["needs"]["waits"] == "approved"
    batch.pause()
    api.ScheduledSet().add_all_to_queue(api.Filter(job="Load"))
    work(redis, redis_server.url)
    [(job, _)] = scheduled(redis)
    assert job["forkq"]["paused"] == batch.bid
    assert waiting_jobs() == []
    assert batch.resume().done == 1
    work(redis, redis_server.url)
    assert ran == [None]


def test_a_pause_ends_with_the_life_of_its_batch(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    redis.hset(CANCELLED, mapping={"paused:old": now() - LIVES - 1, "paused:new": now()})
    redis.hset(CANCELLED, mapping={"paused:odd": "x", "jid:j": f"{now():.6f}"})
    with closing(RedisConnection(redis_server.url)) as connection:
        connection.connect()
        leader = CancelledJobs(KEYS, connection, RecordedLog())
        passes(leader, 3)
    left: Any = redis.hkeys(CANCELLED)
    assert sorted(left) == [b"paused:new", b"paused:odd"]  # and a note of no job is closed


def test_the_command_pauses_and_resumes(
    environment: None, client: forkq.Client, redis: Redis, redis_server: Server, shell: Shell
) -> None:
    batch = made(load(), 1, 2)
    assert shell(f"batches pause {batch.bid}") == 0
    assert f"forkq batches resume {batch.bid}" in shell.out
    work(redis, redis_server.url)
    assert shell("batches") == 0
    assert "waiting, paused" in shell.out
    assert shell(f"batches show {batch.bid}") == 0
    assert f"its members wait: `forkq batches resume {batch.bid}`" in shell.out
    jid = scheduled(redis)[0][0]["jid"]
    assert shell(f"find {jid}") == 0
    assert f"of {batch.bid}; put off, since {batch.bid} is paused" in shell.out
    assert shell(f"batches resume {batch.bid}") == 0
    assert "2 members that had been put off sent to the queue" in shell.out
    work(redis, redis_server.url)
    assert sorted(ran) == [1, 2]
    assert shell(f"batches pause {batch.bid}") == 1
    assert "has ended (succeeded): nothing to pause" in shell.err


def test_each_shard_with_members_knows_the_pause(redis: Redis, redis_server: Server) -> None:
    before = default_client.swap(None)
    client = default_client.use(config_at(redis_server.url))
    try:
        with forkq.Batch("import", on_finish=told("over")) as batch:
            load().set(queue="mail").perform_async(1)
        one = api.Batch(batch.bid)
        one.pause()
        assert redis.hkeys(CANCELLED) == redis.hkeys(f"mail:{CANCELLED}")
        assert one.report().paused_at > 0
        one.resume()
        assert not redis.exists(CANCELLED, f"mail:{CANCELLED}")
    finally:
        client.close()
        default_client.swap(before)
