"""An action on many jobs takes all that are there when it begins, ends, and can be cut short."""

from __future__ import annotations

import json
import time
from contextlib import closing
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import api
from forkq.api import DeadSet, Filter, JobSet, Queue, RetrySet, ScheduledSet
from forkq.cli import bulk
from forkq.errors import ForkqError, ServerUnavailable
from forkq.wire.payload import dumps
from tests.redis.proxy import Proxy
from tests.redis.shell import Shell
from tests.support.server import Server

pytestmark = pytest.mark.usefixtures("client")
MANY = 100_000  # an action without an end would go on to here
KEYS = {DeadSet: "dead", RetrySet: "retry", ScheduledSet: "schedule"}


def job(jid: object, **more: Any) -> bytes:
    return json.dumps(
        {"class": "Mail", "args": [], "queue": "mail", "jid": str(jid), **more}
    ).encode()


@pytest.mark.parametrize("kind", list(KEYS))
def test_a_job_from_a_host_whose_clock_is_ahead_is_among_all(
    kind: type[JobSet], redis: Redis
) -> None:
    ahead = time.time() + 3600
    stamps = {"created_at": ahead, "enqueued_at": ahead, "failed_at": ahead}
    redis.zadd(KEYS[kind], {job(jid, **stamps): ahead + jid for jid in range(300)})
    assert kind().delete_all(Filter(job="Mail")).done == 300
    chosen = {job("a", **stamps): ahead}
    redis.zadd(KEYS[kind], chosen)
    assert kind().retry_all(Filter(keys=[entry.key for entry in kind()])).done == 1


def test_a_queued_job_from_a_host_whose_clock_is_ahead_is_among_all(redis: Redis) -> None:
    redis.lpush("queue:mail", *(job(jid, enqueued_at=time.time() + 3600) for jid in range(300)))
    assert Queue("mail").delete_all(Filter(job="Mail")).done == 300


def test_an_action_does_not_chase_what_is_pushed_meanwhile(redis: Redis) -> None:
    redis.lpush("queue:mail", *map(job, range(500)))
    redis.zadd("schedule", {job(n): 5e9 for n in range(500)})

    def push(outcome: api.Outcome) -> None:
        if outcome.seen < MANY:
            redis.lpush("queue:mail", *(job(f"new{outcome.seen}-{n}") for n in range(200)))
            redis.zadd("schedule", {job(f"new{outcome.seen}-{n}"): 6e9 for n in range(200)})

    outcome = Queue("mail").delete_all(progress=push)
    assert (outcome.total, outcome.seen, outcome.done) == (500, 500, 500)
    outcome = Queue("mail").kill_all(Filter(job="Other"), progress=push)
    assert (outcome.total, outcome.seen) == (600, 600)
    outcome = ScheduledSet().kill_all(Filter(match='"jid": "4'), progress=push)
    assert outcome.done == 111


def test_an_action_finds_its_place_in_a_queue_when_that_job_leaves(redis: Redis) -> None:
    """It reads the first ones again, and the last ones all the same."""
    redis.lpush("queue:mail", *(job(n, **{"class": "Other"}) for n in range(300)))
    redis.lpush("queue:mail", *map(job, range(100)))

    def remove(outcome: api.Outcome) -> None:
        if outcome.seen == 200:
            redis.lrem("queue:mail", 1, job(199, **{"class": "Other"}).decode())

    assert Queue("mail").delete_all(Filter(job="Mail"), progress=remove).done == 100


def test_an_action_ends_where_jobs_are_fetched_faster_than_it_reads(redis: Redis) -> None:
    redis.lpush("queue:mail", *map(job, range(1000)))

    def fetch(outcome: api.Outcome) -> None:
        if outcome.seen < MANY:
            redis.rpop("queue:mail", 300)
            redis.lpush("queue:mail", *(job(f"new{outcome.seen}-{n}") for n in range(300)))

    assert Queue("mail").delete_all(Filter(job="Other"), progress=fetch).seen <= 2000


def test_what_was_retried_and_failed_again_is_left_out(redis: Redis) -> None:
    """Also if it stands before others that are due in years."""
    redis.zadd("retry", {job(n, retry_count=1): 1e9 + n for n in range(300)})
    redis.zadd("retry", {job(n, retry_count=1): 6e9 + n for n in range(300, 600)})

    def fail_again(outcome: api.Outcome) -> None:
        while outcome.seen < MANY and (raw := redis.rpop("queue:mail")):
            redis.zadd("retry", {json.dumps(json.loads(raw)): 5e9})  # type: ignore[arg-type]

    outcome = RetrySet().retry_all(progress=fail_again)
    assert (outcome.matched, outcome.done) == (600, 600)
    assert RetrySet().size == 600


# Redis is lost half-way


def test_a_lost_redis_does_not_lose_the_token(redis: Redis, proxy: Proxy) -> None:
    """Nor the jobs of the step whose reply was lost: that was done."""
    redis.zadd("dead", {job(n): n for n in range(900)})

    def cut(outcome: api.Outcome) -> None:
        if outcome.done >= 300:
            proxy.cut(b"forkq:undo")

    with closing(forkq.configure(proxy.url, environ={})):
        with pytest.raises(ServerUnavailable) as raised:
            DeadSet().delete_all(undo=True, progress=cut)
        outcome = raised.value.outcome
        assert 300 <= outcome.done < 900 - DeadSet().size  # a step more was done
        assert api.undo(outcome.undo).done > outcome.done
        assert DeadSet().size == 900
        proxy.cut(b"ZCARD")
        with pytest.raises(ServerUnavailable) as raised:
            DeadSet().delete_all(undo=True)
        assert raised.value.outcome is None


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("place", ["dead", "jobs"])
def test_a_command_that_loses_redis_says_what_it_did_and_how_to_undo_it(
    place: str, redis: Redis, proxy: Proxy, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis.sadd("queues", "mail", "pay")
    redis.zadd("dead", {job(n): n for n in range(900)})
    redis.lpush("queue:mail", *map(job, range(100)))
    redis.lpush("queue:pay", *map(job, range(900)))
    seen = [0]

    class Cutting(bulk.ActionProgress):
        def __call__(self, outcome: api.Outcome) -> None:
            super().__call__(outcome)
            if outcome.done >= 300:
                seen[0] = outcome.done
                proxy.cut(b"forkq:undo")

    monkeypatch.setattr(bulk, "ActionProgress", Cutting)
    assert shell(f"{place} delete --all --yes --redis {proxy.url}") == 6
    said, undo, why = shell.err.splitlines()
    one = {"dead": "dead", "jobs": "queued"}[place]
    assert said == f"cut short: {seen[0]} {one} jobs deleted so far, perhaps one batch more"
    assert why.startswith(f"forkq: Redis at {proxy.url}: ")
    assert shell(undo.removeprefix("to put back within ten minutes: forkq ")) == 0
    assert DeadSet().size + Queue("mail").size + Queue("pay").size == 1900
    assert shell(f"{place} retry --all --redis redis://127.0.0.1:1") != 0
    assert "cut short" not in shell.err


# Payloads without a jid, which other programs push


@pytest.mark.parametrize("place", ["schedule", "retry"])
def test_jobs_without_a_jid_stay_as_many_as_they_are(place: str, redis: Redis) -> None:
    """Two members of a set that differ in the queue alone would become one."""
    bare = [json.dumps({"class": "Mail", "args": [], "queue": name}) for name in "abc"]
    redis.zadd(place, dict.fromkeys(bare, 5e9))
    jobs = {"schedule": ScheduledSet, "retry": RetrySet}[place]()
    assert jobs.move_all("d").done == 3
    assert len({entry.jid for entry in jobs}) == 3
    assert {(entry.queue, len(entry.jid)) for entry in jobs} == {("d", 24)}


@pytest.mark.parametrize("raw", ['{"class":"Mail","args":[]}', "[1]"])
def test_equal_queued_payloads_stay_as_many_in_the_dead_set(raw: str, redis: Redis) -> None:
    redis.lpush("queue:mail", *[raw] * 3)
    assert (Queue("mail").kill_all().done, DeadSet().size) == (3, 3)


def test_a_change_that_would_meet_another_member_is_refused(redis: Redis) -> None:
    for number in (1, 2):  # as they are written when they are edited
        redis.zadd("schedule", {dumps({"class": "A", "args": [number], "jid": "a"}): number})
    first, _ = ScheduledSet()
    assert first.job["args"] == [1]
    with pytest.raises(ForkqError, match="very same job"):
        first.edit(args=[2])
    assert [entry.job["args"] for entry in ScheduledSet()] == [[1], [2]]


def test_on_a_full_server_queued_jobs_can_be_deleted(own_server: Server) -> None:
    with closing(forkq.configure(own_server.url, environ={})):
        own_server.client().lpush("queue:mail", *map(job, range(500)))
        own_server.cli("CONFIG", "SET", "maxmemory", 1)
        outcome = Queue("mail").delete_all(Filter(match='1"'))
        assert (outcome.done, Queue("mail").size) == (50, 450)
        own_server.close_clients()
