"""A cancelled job ends wherever it is, once, and no other job does."""

from __future__ import annotations

import builtins
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import api, cancelling, default_client, middleware, registry
from forkq.child.heartbeat.beat import Heartbeat
from forkq.child.heartbeat.cancelled import WatchCancelled
from forkq.child.heartbeat.stats import Totals
from forkq.child.heartbeat.tasks import Snapshot
from forkq.clock.cancelled_jobs import CancelledJobs
from forkq.config.shards import Shard
from forkq.errors import ForkqError
from forkq.features.cancel.parts import MOST, REMEMBERED, Mark, effects, field_of_jid
from forkq.features.effects import packed
from forkq.limits.rules import Rate, Rules
from forkq.sharded_client import ShardedClient
from forkq.store import scripts
from forkq.store.connection import RedisConnection
from forkq.store.outage import Outage
from forkq.wire.keys import Keys
from forkq.wire.payload import dumps
from forkq.wire.times import now
from tests.redis.in_process_child import InProcessChild
from tests.redis.in_process_clock import InProcessClock
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.waiting import wait_until, within

QUEUE, SUSPECTS, INFLIGHT = "queue:default", "{queue:default}:suspects", "{queue:default}:inflight"
CANCELLED, LATELY, ENDS = "forkq:cancelled", "forkq:cancelled:ended", "forkq:totals:ends"

ran: list[int] = []


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(registry, "death_handlers", [])
    monkeypatch.setattr(registry, "error_handlers", [])
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    ran.clear()


@pytest.fixture
def leader(redis: Redis, redis_server: Server) -> Iterator[CancelledJobs]:
    with closing(RedisConnection(redis_server.url)) as connection:
        connection.connect()
        yield CancelledJobs(Keys(), connection, RecordedLog())


def work() -> Any:
    """A job that notes its arguments."""

    def perform(number: int) -> None:
        ran.append(number)

    registry._jobs.pop("Work", None)
    return forkq.job(name="Work", retry=3)(perform)


def payload(jid: str, name: str = "Work", **keys: Any) -> bytes:
    made = {"class": name, "args": [1], "queue": "default", "jid": jid, "created_at": now() - 1}
    return dumps({**made, **keys})


def passes(leader: CancelledJobs, count: int) -> None:
    """So many passes of the leader, whatever the pause between them."""
    for _ in range(count):
        leader.load(watch=False)
        if leader.next_due() is None:
            return
        leader.work()
        while leader._pass is not None:
            leader.work()


def jids(redis: Redis, key: str) -> list[str]:
    kind = redis.type(key)
    found: Any = redis.zrange(key, 0, -1) if kind == b"zset" else redis.lrange(key, 0, -1)
    return [json.loads(each)["jid"] for each in found]


def open_notes(redis: Redis) -> list[str]:
    found: Any = redis.hkeys(CANCELLED)
    return sorted(field.decode() for field in found)


# Where it waits


def test_the_history_of_a_periodic_job_has_the_end_of_one_that_waited(
    client: forkq.Client, redis: Redis, leader: CancelledJobs
) -> None:
    """The child notes the others. The next tick may come then, whatever its ``overlap``."""
    redis.sadd("queues", "default")
    redis.hset("forkq:cron:pending", "nightly", "j1")
    redis.lpush(QUEUE, payload("j1", forkq={"cron": "nightly", "tick": 1700000000}), payload("j2"))
    api.cancel_jobs(["j1", "j2"])
    passes(leader, 1)
    assert redis.llen(QUEUE) == 0
    [line] = [json.loads(each) for each in redis.lrange("forkq:cron:runs:nightly", 0, -1)]
    assert (line["event"], line["jid"]) == ("cancelled", "j1")
    assert not redis.exists("forkq:cron:pending")


@pytest.mark.parametrize("place", [QUEUE, SUSPECTS, "schedule", "retry"])
def test_a_job_is_removed_where_it_waits(
    client: forkq.Client, redis: Redis, redis_server: Server, place: str
) -> None:
    """Also from a queue that is paused, and 30 days before it is due; others keep their places."""
    redis.sadd("queues", "default")
    redis.sadd("paused", "default")
    waiting = [payload(f"j{number}") for number in range(5)]
    if place in ("schedule", "retry"):
        redis.zadd(place, {each: now() + 30 * 86_400 for each in waiting})
    else:
        redis.lpush(place, *waiting)
        redis.sadd("forkq:suspects", "default")
    before = jids(redis, place)
    with InProcessClock(redis_server.url):
        assert forkq.cancel("j3", wait=10) == "removed"
    assert jids(redis, place) == [jid for jid in before if jid != "j3"]
    assert open_notes(redis) == []
    assert redis.hgetall(ENDS) == {b"Work|cancelled": b"1"}
    assert api.stats().ended == {"cancelled": 1}
    assert (api.cancelled_at("j3") or 0) > now() - 60
    assert not redis.exists("dead")


def test_a_job_that_is_nowhere_is_unknown_after_two_passes(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    redis.lpush(QUEUE, payload("other"))
    redis.sadd("queues", "default")
    redis.zadd("dead", {payload("dead"): now()})
    with InProcessClock(redis_server.url):
        assert forkq.cancel("nowhere", wait=10) == "unknown"
        assert forkq.cancel("dead", wait=10) == "unknown"
    assert (jids(redis, QUEUE), jids(redis, "dead")) == (["other"], ["dead"])
    assert open_notes(redis) == []
    assert not redis.exists(ENDS, LATELY)


def test_who_cancels_a_job_again_hears_that_it_was_removed(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    """Also by `job.cancel` first, and then by its jid with `wait`. A job that was pushed again with
    that jid is not called removed before it is."""
    redis.sadd("queues", "default")
    with InProcessClock(redis_server.url):
        redis.lpush(QUEUE, payload("j1"))
        assert forkq.cancel("j1", wait=10) == "removed"
        assert forkq.cancel("j1", wait=10) == "removed"
    redis.lpush(QUEUE, payload("j1"))
    assert forkq.cancel("j1", wait=0.01) == "pending"
    with InProcessClock(redis_server.url):
        assert forkq.cancel("j1", wait=10) == "removed"
    assert not redis.exists(QUEUE)


def test_without_a_leader_it_is_pending(client: forkq.Client, redis: Redis) -> None:
    redis.lpush(QUEUE, payload("j1"))
    assert forkq.cancel("j1") == "pending"
    assert forkq.cancel("j1", wait=0.05) == "pending"
    assert api.is_being_cancelled("j1")
    assert not api.is_being_cancelled("j2")
    assert jids(redis, QUEUE) == ["j1"]


@pytest.mark.parametrize("wrong", ["", None, 7, ["j1"]])
def test_what_is_no_jid_is_refused(client: forkq.Client, wrong: Any) -> None:
    with pytest.raises(forkq.InvalidJob, match="pass what a push has returned"):
        forkq.cancel(wrong)


def test_only_the_job_of_that_id_is_removed(
    client: forkq.Client, redis: Redis, leader: CancelledJobs
) -> None:
    """Arguments, other keys and damaged entries may contain the text of a jid."""
    odd = [
        payload("a1", args=["j1"]),
        payload("a2", args=[{"jid": "j1"}]),
        payload("a3", note={"jid": "j1"}),
        b'{"class":"Work","jid":["j1"]}',
        b'{"class":"Work","args":[],"jid":"j1"',
        b'[{"jid":"j1"}]',
        b'{"jid":"j1"}',
    ]
    redis.lpush(QUEUE, *odd)
    redis.zadd("schedule", dict.fromkeys(odd, 9000000000.0))
    redis.sadd("queues", "default")
    forkq.cancel("j1")
    passes(leader, 2)
    assert redis.lrange(QUEUE, 0, -1) == odd[::-1]
    assert redis.zcard("schedule") == len(odd)
    assert open_notes(redis) == []


@pytest.mark.parametrize("jid", ['a"b', "a\\b", "é", "a b", "\u2028", "x" * 300])
def test_a_jid_may_be_any_text(
    client: forkq.Client, redis: Redis, leader: CancelledJobs, jid: str
) -> None:
    redis.sadd("queues", "default")
    escaped = json.dumps({"class": "Work", "args": [], "jid": jid})
    spaced = json.dumps({"class": "Work", "args": [], "jid": jid}, ensure_ascii=False)
    redis.lpush(QUEUE, escaped, payload("other"), spaced)
    forkq.cancel(jid)
    passes(leader, 1)
    assert jids(redis, QUEUE) == ["other"]


def test_a_job_of_any_size_is_removed(
    client: forkq.Client, redis: Redis, leader: CancelledJobs
) -> None:
    redis.sadd("queues", "default")
    for number in range(6):
        redis.lpush(QUEUE, payload(f"j{number}", args=["x" * 700_000]))
        redis.zadd("retry", {payload(f"r{number}", args=["x" * 700_000]): 9e9})
    for jid in ("j0", "j5", "r2"):
        forkq.cancel(jid)
    passes(leader, 1)
    assert jids(redis, QUEUE) == ["j4", "j3", "j2", "j1"]
    assert sorted(jids(redis, "retry")) == ["r0", "r1", "r3", "r4", "r5"]


def test_thousands_are_removed_in_one_pass(
    client: forkq.Client, redis: Redis, leader: CancelledJobs
) -> None:
    """At both ends of each page and everywhere else, while others are pushed and fetched."""
    redis.sadd("queues", "default")
    redis.lpush(QUEUE, *(payload(f"j{number}") for number in range(5000)))
    redis.zadd("schedule", {payload(f"s{number}"): 9e9 + number for number in range(3000)})
    api.cancel_class("Nothing")
    for number in range(0, 5000, 3):
        redis.hset(CANCELLED, field_of_jid(f"j{number}"), f"{now():.6f}")
        redis.hset(CANCELLED, field_of_jid(f"s{number}"), f"{now():.6f}")
    leader.load(watch=False)
    leader.work()
    while leader._pass is not None:
        redis.lpush(QUEUE, payload("new"))
        redis.rpop(QUEUE)
        leader.work()
    left = [jid for jid in jids(redis, QUEUE) if jid != "new"]
    assert len(left) > 3000
    assert [jid for jid in left if int(jid[1:]) % 3 == 0] == []
    assert len(jids(redis, "schedule")) == 2000


def test_a_job_that_moves_during_a_pass_is_found_by_the_next(
    client: forkq.Client, redis: Redis, leader: CancelledJobs
) -> None:
    """It fails between the look at the retries and the look at what runs."""
    redis.sadd("queues", "default")
    redis.hset(INFLIGHT, "vm/1", payload("j1"))
    forkq.cancel("j1")
    leader.load(watch=False)
    leader.work()  # the schedule
    leader.work()  # the retries
    redis.delete(INFLIGHT)
    redis.zadd("retry", {payload("j1"): 9e9})
    while leader._pass is not None:
        leader.work()
    assert open_notes(redis) == ["jid:j1"]
    passes(leader, 1)
    assert not redis.exists("retry")
    assert (open_notes(redis), redis.zcard(LATELY)) == ([], 1)


def test_the_note_of_a_job_on_its_way_to_another_shard_stays(
    client: forkq.Client, redis: Redis, leader: CancelledJobs
) -> None:
    """The page that it is in may go back; and the process that moves it reads the note."""
    redis.hset("forkq:moves", "default", "move 1 queued")
    redis.rpush("{queue:default}:moving", payload("j1"))
    forkq.cancel("j1")
    passes(leader, 4)
    assert (open_notes(redis), jids(redis, "{queue:default}:moving")) == (["jid:j1"], ["j1"])
    redis.rename("{queue:default}:moving", QUEUE)  # it went back
    passes(leader, 1)
    assert (open_notes(redis), redis.exists(QUEUE)) == ([], 0)


def test_the_note_of_a_job_that_runs_stays(
    client: forkq.Client, redis: Redis, leader: CancelledJobs
) -> None:
    redis.sadd("queues", "default")
    redis.hset(INFLIGHT, "vm/1", payload("j1"))
    assert forkq.cancel("j1", wait=0.01) == "asked"
    passes(leader, 4)
    assert open_notes(redis) == ["jid:j1"]
    redis.delete(INFLIGHT)  # it is done
    passes(leader, 2)
    assert open_notes(redis) == []


def test_notes_outlive_the_leader(
    client: forkq.Client, redis: Redis, redis_server: Server, leader: CancelledJobs
) -> None:
    """A leader that dies in a pass leaves the rest to the next one."""
    redis.sadd("queues", "default")
    redis.lpush(QUEUE, payload("j1"))
    redis.zadd("schedule", {payload("s1"): 9e9})
    forkq.cancel("j1")
    forkq.cancel("s1")
    leader.load(watch=False)
    leader.work()  # the schedule, and no more
    assert (redis.exists("schedule"), redis.llen(QUEUE)) == (0, 1)
    with InProcessClock(redis_server.url):
        wait_until(lambda: not redis.exists(QUEUE), what="the end of the other one")
        wait_until(lambda: not redis.exists(CANCELLED), what="the end of both notes")


def test_notes_and_locks_outlive_a_restart_of_redis(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its file: a job that is due in 30 days and one in a queue were cancelled, and a unique
    one waits."""
    monkeypatch.setattr(default_client, "_default", None)
    job = work()
    ours = forkq.job(name="Ours", queue="ours", unique_for=900)(ran.append)
    with closing(forkq.configure(own_server.url, environ={})):
        later, waits = job.perform_in(30 * 86_400, 1), job.perform_async(2)
        held = ours.perform_async(7)
        assert api.cancel_jobs([later, waits]) == {later: "pending", waits: "pending"}
        own_server.restart()
        redis = own_server.client()
        assert (redis.zcard("schedule"), redis.llen(QUEUE)) == (1, 1)
        assert ours.set(on_duplicate="return").perform_async(7) == held
        with InProcessClock(own_server.url), InProcessChild(own_server.url, queue="ours"):
            wait_until(lambda: not redis.exists(CANCELLED), what="the end of both notes")
            wait_until(lambda: not redis.keys("forkq:unique:*"), what="the end of the lock")
        assert (redis.exists("schedule", QUEUE), ran) == (0, [7])
        assert redis.hgetall(ENDS) == {b"Work|cancelled": b"2", b"Ours|duplicate": b"1"}
        assert ours.perform_async(7) not in ("", held)


def test_a_job_for_a_newer_forkq_is_left_to_that(
    client: forkq.Client, redis: Redis, leader: CancelledJobs
) -> None:
    redis.sadd("queues", "default")
    redis.lpush(QUEUE, payload("j1", forkq={"v": 99, "needs": {"wings": 2}}))
    forkq.cancel("j1")
    passes(leader, 3)
    assert (jids(redis, QUEUE), open_notes(redis)) == (["j1"], ["jid:j1"])


def test_notes_are_bounded(client: forkq.Client, redis: Redis) -> None:
    redis.hset(CANCELLED, mapping={field_of_jid(str(n)): f"{now():.6f}" for n in range(MOST)})
    with pytest.raises(forkq.ForkqError, match="cancel their class"):
        forkq.cancel("one more")
    assert redis.hlen(CANCELLED) == MOST


def test_many_are_noted_in_pages_all_or_none(client: forkq.Client, redis: Redis) -> None:
    jids = [f"j{number}" for number in range(MOST + 1)]
    with pytest.raises(forkq.ForkqError, match="cancel their class"):
        api.cancel_jobs(jids)
    assert open_notes(redis) == []
    assert set(api.cancel_jobs(jids[1:]).values()) == {"pending"}
    assert redis.hlen(CANCELLED) == MOST


def test_what_is_remembered_is_bounded(
    client: forkq.Client, redis: Redis, leader: CancelledJobs
) -> None:
    redis.sadd("queues", "default")
    redis.zadd(LATELY, {f"old{n}": now() - 2 * 86_400 for n in range(5)})
    redis.zadd(LATELY, {f"new{n}": now() - 60 for n in range(REMEMBERED)})
    redis.lpush(QUEUE, payload("j1"))
    forkq.cancel("j1")
    passes(leader, 1)
    assert redis.zcard(LATELY) == REMEMBERED
    assert redis.zscore(LATELY, "j1") is not None
    assert redis.zscore(LATELY, "old1") is None


@pytest.mark.parametrize("odd", [b"", b"soon", b"1 2 3", b"x 1"])
def test_a_note_that_is_none_cancels_nothing(
    client: forkq.Client, redis: Redis, leader: CancelledJobs, odd: bytes
) -> None:
    redis.sadd("queues", "default")
    redis.lpush(QUEUE, payload("j1"))
    redis.hset(CANCELLED, "jid:j1", odd)
    passes(leader, 2)
    assert jids(redis, QUEUE) == ["j1"]


def test_another_type_in_the_place_of_a_key_does_no_harm(
    client: forkq.Client, redis: Redis, leader: CancelledJobs
) -> None:
    redis.sadd("queues", "default", "odd")
    redis.mset({"queue:odd": "x", "{queue:odd}:suspects": "x", "{queue:odd}:inflight": "x"})
    redis.mset({"schedule": "x", LATELY: "x"})
    redis.lpush(QUEUE, payload("j1"))
    forkq.cancel("j1")
    passes(leader, 1)
    assert not redis.exists(QUEUE)
    assert open_notes(redis) == []


# A class


def test_a_class_is_cancelled_as_far_as_it_was_pushed_before(
    client: forkq.Client, redis: Redis, leader: CancelledJobs
) -> None:
    redis.sadd("queues", "default")
    wrapped = payload("w1", name="Sidekiq::Wrapper", wrapped="Work")
    redis.lpush(QUEUE, payload("j1"), payload("o1", name="Other"), wrapped)
    redis.zadd(
        "retry", {payload("r1"): 9e9, payload("r2", args=[{"class": "Work"}], name="O"): 9e9}
    )
    api.cancel_class("Work")
    redis.lpush(QUEUE, payload("j2", created_at=now() + 1))
    passes(leader, 1)
    assert (jids(redis, QUEUE), jids(redis, "retry")) == (["j2", "o1"], ["r2"])
    assert open_notes(redis) == ["class:Work"]
    passes(leader, 2)
    assert open_notes(redis) == []
    assert redis.hgetall(ENDS) == {b"Work|cancelled": b"3"}


# By the arguments of a unique job


def index(**options: Any) -> Any:
    def perform(doc: int, version: int = 1) -> None:
        ran.append(doc)

    registry._jobs.pop("Index", None)
    return forkq.job(name="Index", **{"unique_for": 60, **options})(perform)


def test_a_unique_job_is_cancelled_by_its_arguments(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = index()
    jid, other = job.perform_async(7), job.perform_in(3600, 8)
    assert job.cancel(9) == ""
    assert job.cancel(doc=7, version=1) == jid
    assert open_notes(redis) == [f"jid:{jid}"]
    with InProcessClock(redis_server.url):
        assert forkq.cancel(jid, wait=10) == "removed"
        assert job.cancel(8) == other
        assert forkq.cancel(other, wait=10) == "removed"
    assert job.cancel(7) == ""  # its lock went with it
    assert job.perform_async(7) != ""


@pytest.mark.parametrize("by", [["doc"], lambda doc, version=1: doc])
def test_arguments_that_do_not_count_may_be_left_out(
    client: forkq.Client, redis: Redis, by: Any
) -> None:
    def perform(version: int, doc: int) -> None: ...

    registry._jobs.pop("Index", None)
    if callable(by):
        job = index(unique_by=by)
        jid = job.perform_async(7, 3)
        assert job.cancel(7) == jid
        return
    job = forkq.job(name="Index", unique_for=60, unique_by=by)(perform)
    jid = job.perform_async(3, 7)
    assert job.cancel(doc=7) == jid
    with pytest.raises(forkq.InvalidJob, match="missing a required argument: 'doc'"):
        job.cancel(3)


@pytest.mark.parametrize("how", ["latest", "replace"])
def test_the_one_that_waits_and_the_one_that_runs_are_cancelled(
    client: forkq.Client, redis: Redis, redis_server: Server, how: str
) -> None:
    job = index(unique_by=["doc"], on_duplicate=how)
    job.perform_async(7, 1)
    newest = job.perform_async(7, 2)
    assert job.cancel(doc=7) == newest
    with InProcessClock(redis_server.url):
        assert forkq.cancel(newest, wait=10) == "removed"
        wait_until(lambda: not redis.exists(CANCELLED), what="the end of all notes")
    assert not redis.exists(QUEUE)
    assert job.cancel(doc=7) == ""


def test_a_class_job_is_cancelled_by_its_arguments(client: forkq.Client, redis: Redis) -> None:
    class Export(forkq.Job, unique_for=60, name="Export"):
        def perform(self, account: int) -> None: ...

    jid = Export.perform_async(4)
    assert Export.cancel(account=4) == jid
    assert Export.set(unique_until="start").cancel(4) == jid
    with pytest.raises(forkq.InvalidJob, match=r"there is no 'acount' .is 'account' meant"):
        Export.cancel(acount=4)


def _names(redis: Redis, pattern: str) -> list[str]:
    found: Any = redis.keys(pattern)
    return [key.decode() for key in found]


def test_the_holder_is_found_on_the_shard_that_has_the_lock(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the other part of a spread queue: the job went there while its own part was down."""
    url = redis_server.url
    shards = [
        Shard("default", url),
        *(Shard(name, url, prefix=f"{name}:", spread=("mail",)) for name in "ab"),
    ]
    sharded = ShardedClient(shards, "default", url)
    monkeypatch.setattr(cancelling, "default", lambda: sharded)
    job = index(queue="mail")
    try:
        jid = sharded.push(job.payload(7))
        [lock] = _names(redis, "*:forkq:unique:*")
        assert job.cancel(7) == jid
        part = lock[0]
        assert _names(redis, "*:forkq:cancelled") == [f"{part}:{CANCELLED}"]
        other = {"a": "b", "b": "a"}[part]
        redis.rename(lock, other + lock[1:])
        assert job.cancel(7) == jid
        assert redis.exists(f"{other}:forkq:cancelled")
    finally:
        sharded.close()


def test_a_job_that_is_not_unique_has_no_such_cancel(client: forkq.Client) -> None:
    with pytest.raises(forkq.InvalidJob, match="its arguments name no job: pass the jid"):
        work().cancel(1)
    with pytest.raises(forkq.InvalidJob, match="has no `unique_for`"):
        index().set(unique_for=0).cancel(1)


def test_who_retries_a_job_wants_it_to_run(
    client: forkq.Client, redis: Redis, leader: CancelledJobs
) -> None:
    redis.zadd("retry", {payload("j1"): 9e9})
    forkq.cancel("j1")
    [entry] = api.RetrySet()
    assert entry.retry()
    passes(leader, 2)
    assert (jids(redis, QUEUE), open_notes(redis)) == (["j1"], [])


# The child that fetches it


def test_a_child_ends_the_cancelled_job_that_it_fetches(redis: Redis, redis_server: Server) -> None:
    """It gives the token of the queue's rate back."""
    work()
    redis.lpush(QUEUE, payload("j1"), payload("j2", args=[2]))
    redis.hset(CANCELLED, "jid:j1", f"{now():.6f}")
    rules = {"default": Rules(rate=Rate(1, 3600))}
    marks = {"jid:j1": Mark(now())}
    with InProcessChild(redis_server.url, rules=rules, cancelled=marks) as child:
        wait_until(lambda: ran, what="the other job")
        wait_until(lambda: not redis.exists(INFLIGHT), what="both ends")
    assert ran == [2]
    assert redis.hgetall(ENDS) == {b"Work|cancelled": b"1"}
    assert (open_notes(redis), redis.zcard(LATELY)) == ([], 1)
    [line] = [more for _, event, more in child.log.lines if event == "cancelled"]
    assert (line["jid"], line["class"]) == ("j1", "Work")


def test_an_end_that_came_first_stays(redis: Redis, redis_server: Server) -> None:
    """Whichever of two scripts finds the job ends it; the other one finds nothing."""
    with closing(RedisConnection(redis_server.url)) as connection:
        connection.connect()
        names = [INFLIGHT, "{queue:default}:awaited", "{queue:default}:bucket", ENDS]
        asked = packed(effects(Keys(), "j1"), names, ENDS)
        arguments = ["vm/1", "cancelled", "Work", 0, asked]
        redis.hset(CANCELLED, "jid:j1", "1")
        assert connection.script(scripts.END, names, arguments) == 0  # it was done before
        assert (open_notes(redis), redis.exists(LATELY, ENDS)) == (["jid:j1"], 0)
        redis.hset(INFLIGHT, "vm/1", payload("j1"))
        assert connection.script(scripts.END, names, arguments) == 1
        assert connection.script(scripts.END, names, arguments) == 0
    assert (open_notes(redis), redis.hget(ENDS, "Work|cancelled")) == ([], b"1")


# Where it runs


class HearingChild:
    """A child of two processors, and the thread of a heartbeat that hears what is cancelled."""

    def __init__(self, url: str, **more: Any) -> None:
        self.child = InProcessChild(url, **more)
        limits, manager = self.child.limits, self.child.manager
        log = self.child.log
        end = lambda: limits.end_cancelled(manager.regions)  # noqa: E731
        watch = WatchCancelled(Keys(), limits.cancelled, log, end, limits.paused)
        self.connection = RedisConnection(url)
        outage, refusal = Outage(log), Outage(log, "refused", "taken")
        self.heartbeat = Heartbeat(
            self.connection,
            [watch],
            outage,
            refusal,
            log,
            snapshot=lambda: Snapshot([], Totals(), quiet=False),
            cancelled=watch,
        )

    def __enter__(self) -> InProcessChild:
        self.child.__enter__()
        self.heartbeat.start()
        self.heartbeat.open()
        wait_until(lambda: self.heartbeat.redis_at, what="the first beat")
        return self.child

    def __exit__(self, *error: object) -> None:
        self.heartbeat.stop(time.monotonic() + 10, gone=True)
        self.connection.close()
        self.child.close()


class Loop:
    """A job that runs until it is cancelled; ``after`` is what it then does."""

    def __init__(self, after: Callable[[BaseException], None] | None = None) -> None:
        self.running = threading.Semaphore(0)
        self.over = threading.Event()  # ends all at the end of a test that fails
        self.cleaned = threading.Semaphore(0)

        def perform(number: int) -> None:
            self.running.release()
            try:
                while not self.over.is_set():
                    sum(range(1000))
            except forkq.Cancelled as error:
                if after is None:
                    raise
                after(error)
            finally:
                self.cleaned.release()

        forkq.job(name="Work", retry=3)(perform)


def deaths() -> list[Any]:
    found: list[Any] = []
    forkq.on_death(lambda job, error: found.append(job))
    return found


def test_running_jobs_are_cancelled_though_all_processors_are_busy(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    """Within a second, without a beat; the neighbour runs on."""
    loop, died = Loop(), deaths()
    redis.lpush(QUEUE, payload("j1"), payload("j2"))
    redis.sadd("queues", "default")
    with HearingChild(redis_server.url) as child:
        assert loop.running.acquire(timeout=10)
        assert loop.running.acquire(timeout=10)
        began = time.monotonic()
        assert forkq.cancel("j1", wait=10) == "removed"
        assert time.monotonic() - began < within(2)
        assert loop.cleaned.acquire(timeout=10)
        assert [json.loads(each)["jid"] for each in redis.hvals(INFLIGHT)] == ["j2"]
        loop.over.set()
        wait_until(lambda: not redis.exists(INFLIGHT), what="the end of the other job")
    assert redis.hgetall(ENDS) == {b"Work|cancelled": b"1"}
    assert (open_notes(redis), died, redis.exists("retry", "dead")) == ([], [], 0)
    events = [(event, more.get("jid")) for _, event, more in child.log.lines]
    assert ("cancelling", "j1") in events
    assert ("cancelled", "j1") in events
    assert ("done", "j2") in events
    assert child.manager.counts() == (1, 0)


def raise_because(error: BaseException) -> None:
    raise ValueError("in the midst of it") from error


def raise_another(error: BaseException) -> None:
    raise ValueError("in the midst of it") from None


def raise_group(error: BaseException) -> None:
    """What a task group does with it."""
    group: Any = vars(builtins)["BaseExceptionGroup"]
    raise group("tasks", [error]) from None


@pytest.mark.parametrize(
    "after",
    [
        raise_because,
        raise_another,
        pytest.param(
            raise_group,
            marks=pytest.mark.skipif(
                sys.version_info < (3, 11), reason="Python 3.10 has no groups"
            ),
        ),
    ],
)
def test_a_job_that_fails_of_it_is_cancelled_all_the_same(
    client: forkq.Client,
    redis: Redis,
    redis_server: Server,
    after: Callable[[BaseException], None],
) -> None:

    loop = Loop(after)
    redis.lpush(QUEUE, payload("j1"))
    with HearingChild(redis_server.url):
        assert loop.running.acquire(timeout=10)
        assert forkq.cancel("j1", wait=10) == "removed"
    assert not redis.exists("retry", "dead", INFLIGHT)


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), True, "10", None])
def test_a_time_that_is_none_is_refused(client: forkq.Client, redis: Redis, bad: Any) -> None:
    with pytest.raises(ForkqError, match=r"wait is .*: pass a number of seconds"):
        forkq.cancel("j1", wait=bad)
    if bad is not None:
        with pytest.raises(ForkqError, match=r"grace is .*: pass a number of seconds"):
            api.cancel_class("Work", force=True, grace=bad)
    assert not redis.exists(CANCELLED)


def test_a_grace_without_force_is_refused(client: forkq.Client, redis: Redis) -> None:
    with pytest.raises(ForkqError, match="`grace` means nothing without `force`"):
        forkq.cancel("j1", grace=3)
    with pytest.raises(ForkqError, match="`grace` means nothing without `force`"):
        api.cancel_class("Work", grace=3)
    assert not redis.exists(CANCELLED)


def test_a_job_that_swallows_it_is_done(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    loop = Loop(lambda error: None)
    redis.lpush(QUEUE, payload("j1"))
    redis.sadd("queues", "default")
    with HearingChild(redis_server.url) as child, InProcessClock(redis_server.url):
        assert loop.running.acquire(timeout=10)
        assert forkq.cancel("j1", wait=10) == "unknown"  # neither waits nor runs
    assert not redis.exists("retry", "dead", INFLIGHT, ENDS, CANCELLED)
    assert [event for _, event, _ in child.log.lines if "swallowed" in event] != []
    assert child.manager.counts() == (1, 0)


def test_a_class_is_cancelled_where_it_runs(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    loop = Loop()
    redis.lpush(QUEUE, payload("j1"), payload("j2", created_at=now() + 60))
    with HearingChild(redis_server.url):
        assert loop.running.acquire(timeout=10)
        assert loop.running.acquire(timeout=10)
        api.cancel_class("Work")
        assert loop.cleaned.acquire(timeout=10)
        wait_until(lambda: redis.hlen(INFLIGHT) == 1, what="the end")
        loop.over.set()
    assert redis.hgetall(ENDS) == {b"Work|cancelled": b"1"}


def test_a_child_hears_it_on_a_new_connection(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    """What was cancelled while its connection was cut is read with the next beat."""
    loop = Loop()
    redis.lpush(QUEUE, payload("j1"))
    hearing = HearingChild(redis_server.url)
    with hearing:
        assert loop.running.acquire(timeout=10)
        redis.client_kill_filter(_id=_client_of(redis, hearing.connection))
        wait_until(lambda: not hearing.connection.connected, what="the cut")
        forkq.cancel("j1")
        hearing.heartbeat.soon()
        assert loop.cleaned.acquire(timeout=10)


def _client_of(redis: Redis, connection: RedisConnection) -> str:
    port = connection._open().socket.getsockname()[1]
    [found] = [one for one in redis.client_list() if one["addr"].endswith(f":{port}")]
    return str(found["id"])


def test_nothing_cancelled_costs_no_command(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    """Beats, pushes and jobs: after the first beat nothing asks what is cancelled."""
    job = work()
    hearing = HearingChild(redis_server.url)
    with hearing:
        before = _calls(redis)
        for number in range(20):
            job.perform_async(number)
            hearing.heartbeat.soon()
        wait_until(lambda: len(ran) == 20, what="all runs")
        wait_until(lambda: not redis.exists(INFLIGHT), what="all ends")
        assert _calls(redis) == before


def _calls(redis: Redis) -> dict[str, int]:
    """How often the commands were called with which a child asks."""
    found: Any = redis.info("commandstats")
    names = ("hgetall", "hget", "hlen", "client|tracking")
    return {name: found.get(f"cmdstat_{name}", {}).get("calls", 0) for name in names}
