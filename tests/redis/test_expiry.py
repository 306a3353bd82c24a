"""A job that expires is run in time or not at all, wherever it waits; no plain job is touched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import api, default_client, middleware, registry
from forkq.clock.due_jobs import DueJobMover
from forkq.clock.expired_jobs import ExpiredJobs
from forkq.config.load import load
from forkq.errors import ConfigError
from forkq.features.marked import MOST
from forkq.limits.rules import Rate, Rules
from forkq.store import scripts
from forkq.store.connection import RedisConnection
from forkq.wire.keys import Keys
from forkq.wire.marks import VERSION
from forkq.wire.payload import dumps
from forkq.wire.times import now
from tests.redis.in_process_child import InProcessChild
from tests.redis.in_process_clock import InProcessClock
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.waiting import wait_until

QUEUE, MARKED, ENDS = "queue:default", "forkq:marked", "forkq:totals:ends"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(registry, "death_handlers", [])
    monkeypatch.setattr(registry, "error_handlers", [])
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    monkeypatch.setattr(middleware, "pushes", middleware.Chain())
    ran.clear()


@pytest.fixture
def log() -> RecordedLog:
    return RecordedLog()


@pytest.fixture
def looker(redis: Redis, redis_server: Server, log: RecordedLog) -> Iterator[ExpiredJobs]:
    connection = RedisConnection(redis_server.url)
    connection.connect()
    yield ExpiredJobs(Keys(), connection, log)
    connection.close()


ran: list[int] = []


def stale() -> Any:
    """A job that notes its arguments, and fails with a negative one."""

    def perform(number: int) -> None:
        ran.append(number)
        if number < 0:
            raise ValueError(number)

    registry._jobs.pop("Stale", None)
    return forkq.job(name="Stale", expires_in=60, retry=3)(perform)


def payload(expires_at: object, *, jid: str = "m1", **keys: Any) -> bytes:
    marks = {"v": 1, "needs": {"expires_at": expires_at}}
    made = {"class": "Stale", "args": [1], "queue": "default", "jid": jid, **keys}
    return dumps({**made, "forkq": marks})


def look(looker: ExpiredJobs) -> None:
    """As the leader does, without its rests: page after page while a look is due."""
    looker.load(watch=False)
    while (due := looker.next_due()) is not None and due <= max(now(), looker._rests_until):
        looker.work()


def in_queue(redis: Redis, queue: str = QUEUE) -> list[Any]:
    found: Any = redis.lrange(queue, 0, -1)
    return [json.loads(each) for each in found]


def members(redis: Redis, key: str) -> list[tuple[bytes, float]]:
    found: Any = redis.zrange(key, 0, -1, withscores=True)
    return list(found)


def ended(redis: Redis) -> dict[bytes, bytes]:
    found: Any = redis.hgetall(ENDS)
    return dict(found)


# The push


def test_the_payload_has_the_moment_in_the_time_of_redis(
    client: forkq.Client, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This host's clock is an hour slow, and the job does not expire at once."""
    monkeypatch.setattr("forkq.client.now", lambda: now() - 3600)
    client.push({"class": "Stale", "args": [], "expires_in": 60})
    [job] = in_queue(redis)
    seconds, micros = redis.time()
    assert seconds + micros / 1e6 - 5 < job["expiry"] - 60 <= seconds + micros / 1e6
    assert list(job)[-1] == "forkq"
    assert job["forkq"] == {"v": 1, "needs": {"expires_at": job["expiry"]}}
    assert redis.zscore(MARKED, "default") == job["expiry"]
    assert "expires_in" not in job


@pytest.mark.parametrize("given", [60, 60.0, timedelta(minutes=1)])
def test_a_definition_and_a_push_take_seconds_or_a_timedelta(
    client: forkq.Client, redis: Redis, given: Any
) -> None:
    @forkq.job(name="Stale", expires_in=given)
    def stale() -> None: ...

    stale.perform_async()
    stale.set(queue="other", expires_in=0).perform_async()
    [job], [other] = in_queue(redis), in_queue(redis, "queue:other")
    assert 59 < job["expiry"] - job["enqueued_at"] < 65
    assert not {"forkq", "expiry", "expires_in"} & other.keys()
    assert redis.zscore(MARKED, "other") is None


@pytest.mark.parametrize("given", [-1, "60", True, float("nan"), 1e10, [60]])
def test_another_value_is_refused_where_it_is_written(given: Any) -> None:
    with pytest.raises(forkq.InvalidJob, match=r"`expires_in` is .*a number of seconds from 0"):
        forkq.job(name="Stale", expires_in=given)(lambda: None)


def test_a_raw_push_with_a_bad_value_is_refused(client: forkq.Client, redis: Redis) -> None:
    with pytest.raises(forkq.InvalidJob, match="expires_in"):
        client.push({"class": "Stale", "args": [], "expires_in": "soon"})
    assert not redis.exists(QUEUE)


def test_a_scheduled_job_expires_after_its_due_time(client: forkq.Client, redis: Redis) -> None:
    stale().perform_in(100, 1)
    [(member, due)] = members(redis, "schedule")
    job = json.loads(member)
    assert job["expiry"] == job["forkq"]["needs"]["expires_at"] == pytest.approx(due + 60)
    assert not redis.exists(MARKED)


def test_a_bulk_push_has_the_moment_in_each_payload_and_in_one_call(
    client: forkq.Client, redis: Redis
) -> None:
    jids = stale().perform_bulk([(number,) for number in range(2500)])
    jobs = in_queue(redis)
    assert [job["jid"] for job in reversed(jobs)] == jids
    assert [job["args"] for job in reversed(jobs)] == [[number] for number in range(2500)]
    assert {list(job)[-1] for job in jobs} == {"forkq"}
    assert redis.zscore(MARKED, "default") == min(job["expiry"] for job in jobs)


def test_a_server_that_does_not_know_the_script_gets_its_text(
    client: forkq.Client, redis: Redis
) -> None:
    redis.script_flush()
    stale().perform_async(1)
    redis.script_flush()
    stale().perform_bulk([(number,) for number in range(4000)])
    assert redis.llen(QUEUE) == 4001


def test_a_push_that_waits_for_a_commit_counts_from_the_commit(
    client: forkq.Client, redis: Redis
) -> None:
    sent: list[Any] = []
    jid = client.push_later(stale().payload(1), sent.append)
    later = redis.time()[0] + 1
    wait_until(lambda: redis.time()[0] >= later, what="the next second")
    sent[0]()
    [job] = in_queue(redis)
    assert job["jid"] == jid
    assert job["expiry"] >= later + 60
    assert job["expiry"] == pytest.approx(job["enqueued_at"] + 60, abs=0.5)


def test_a_queue_of_another_type_refuses_its_jobs_and_no_others(
    client: forkq.Client, redis: Redis
) -> None:
    redis.set("queue:odd", "x")
    with pytest.raises(forkq.ServerRefused, match="queue:odd") as refused:
        stale().set(queue="odd").perform_async(1)
    assert (refused.value.pushed, refused.value.unknown) == ((), ())
    stale().perform_async(2)
    assert redis.llen(QUEUE) == 1


def test_a_full_server_refuses_the_push(client: forkq.Client, redis: Redis) -> None:
    redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(forkq.ServerRefused, match="nothing was pushed"):
            stale().perform_async(1)
    finally:
        redis.config_set("maxmemory", 0)
    assert not redis.exists(QUEUE)


def test_names_that_redis_does_not_take_are_told_and_the_jobs_are_in(
    client: forkq.Client, redis: Redis
) -> None:
    """As with a plain push: the caller learns that the queue may be seen by nobody yet."""
    redis.set("queues", "x")
    with pytest.raises(forkq.ServerRefused) as refused:
        stale().perform_async(1)
    [job] = in_queue(redis)
    assert refused.value.pushed == (job["jid"],)


def test_too_many_needs_are_refused(client: forkq.Client) -> None:
    needs = {"note": "x" * MOST}
    with pytest.raises(forkq.InvalidJob, match="features need has"):
        client.push({"class": "Stale", "args": [], "forkq": {"needs": needs}})


def test_needs_that_this_forkq_does_not_know_wait_for_a_newer_one(
    client: forkq.Client, redis: Redis
) -> None:
    client.push({"class": "Stale", "args": [], "forkq": {"needs": {"wings": 2}}})
    [job] = in_queue(redis)
    assert job["forkq"]["v"] == VERSION + 1


@pytest.mark.parametrize("given", ["soon", [1], 10**400, -5, True])
def test_a_bad_value_below_forkq_is_refused_too(
    client: forkq.Client, redis: Redis, given: Any
) -> None:
    """A raw push may write the option where the payload has it."""
    with pytest.raises(forkq.InvalidJob, match="expires_in"):
        client.push({"class": "Stale", "args": [], "forkq": {"needs": {"expires_in": given}}})
    assert not redis.exists(QUEUE)


def test_a_push_that_may_not_load_its_script_ends(redis: Redis, redis_server: Server) -> None:
    """A user of Redis who may call scripts and not load them."""
    redis.acl_setuser(
        "p", enabled=True, passwords=["+p"], keys=["*"], commands=["+@all", "-script"]
    )
    redis.script_flush()
    client = forkq.Client(redis_server.url.replace("//", "//p:p@", 1))
    try:
        with pytest.raises(forkq.ServerRefused, match=r"script\|load.*nothing was pushed"):
            client.push({"class": "Stale", "args": [], "expires_in": 60})
    finally:
        client.close()
        redis.acl_deluser("p")
    assert not redis.exists(QUEUE)


def test_arguments_that_look_like_needs_do_not_hide_those_of_the_job(
    client: forkq.Client, redis: Redis, looker: ExpiredJobs
) -> None:
    at = now()
    args = [{"needs": {"expires_at": at + 9000}}]
    client.push({"class": "Stale", "args": args, "expires_in": 60})
    [job] = in_queue(redis)
    assert redis.zscore(MARKED, "default") == job["expiry"] < at + 9000
    redis.lpush(QUEUE, payload(at - 1, args=args))
    redis.zadd(MARKED, {"default": 1})
    look(looker)
    assert in_queue(redis) == [job]


# The start


def test_a_job_that_has_expired_is_not_run(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    stale()
    redis.lpush(QUEUE, payload(now() - 1, jid="late"), payload(now() + 60, jid="soon"))
    with InProcessChild(redis_server.url) as child:
        wait_until(lambda: ran, what="the job that is in time")
        wait_until(lambda: not redis.exists("{queue:default}:inflight"), what="both ends")
    assert ran == [1]
    assert ended(redis) == {b"Stale|expired": b"1"}
    assert api.stats().ended == {"expired": 1}
    [line] = [more for _, event, more in child.log.lines if event == "expired"]
    assert (line["jid"], line["class"], line["queue"]) == ("late", "Stale", "default")
    assert child.manager.tally({}, {}).processed == 1


@pytest.mark.parametrize("odd", ["soon", None, True, [], -1, 0, 10**308, "1"])
def test_an_odd_moment_is_none(redis: Redis, redis_server: Server, odd: Any) -> None:
    stale()
    redis.lpush(QUEUE, payload(odd))
    with InProcessChild(redis_server.url):
        wait_until(lambda: ran, what="the run")


@pytest.mark.parametrize("leads", [False, True], ids=["a child alone", "beside a leader"])
def test_thousands_that_have_expired_cost_a_slow_queue_no_token(
    redis: Redis, redis_server: Server, leads: bool
) -> None:
    """A rate of one job an hour, and the job that is in time comes behind 1,000 that are late."""
    stale()
    redis.lpush(QUEUE, *(payload(now() - 1, jid=f"late{n}") for n in range(1000)))
    redis.lpush(QUEUE, payload(now() + 900))
    redis.zadd(MARKED, {"default": now() - 1})
    with ExitStack() as stack:
        if leads:
            stack.enter_context(InProcessClock(redis_server.url))
        rules = {"default": Rules(rate=Rate(1, 3600))}
        stack.enter_context(InProcessChild(redis_server.url, rules=rules))
        wait_until(lambda: ran, what="the job in time")
        wait_until(lambda: ended(redis) == {b"Stale|expired": b"1000"}, what="all ends")
    assert not redis.exists(QUEUE)
    bucket: Any = redis.get("{queue:default}:bucket")
    assert float(bucket.split()[0]) < 0.1


def test_a_retry_that_would_be_too_late_ends_the_job(redis: Redis, redis_server: Server) -> None:
    stale()
    redis.lpush(QUEUE, payload(now() + 5, args=[-1], jid="late"))
    redis.lpush(QUEUE, payload(now() + 900, args=[-2], jid="again"))
    with InProcessChild(redis_server.url) as child:
        wait_until(lambda: redis.zcard("retry") and redis.exists(ENDS), what="both ends")
    [job] = [json.loads(each) for each, _ in members(redis, "retry")]
    assert (job["jid"], list(job)[-1]) == ("again", "forkq")
    assert not redis.exists("dead", "{queue:default}:inflight")
    [line] = [m for _, e, m in child.log.lines if e == "failed" and m["jid"] == "late"]
    assert line["outcome"] == "expired"
    assert ended(redis) == {b"Stale|expired": b"1"}


def test_a_suspect_that_has_expired_needs_no_solo_child(redis: Redis, redis_server: Server) -> None:
    stale()
    job = json.loads(payload(now() - 1))
    job["forkq"]["suspect"] = True
    redis.lpush(QUEUE, dumps(job))
    with InProcessChild(redis_server.url):
        wait_until(lambda: redis.exists(ENDS), what="the end")
    assert not redis.exists("{queue:default}:suspects")


def test_a_lease_that_is_gone_ends_nothing(redis: Redis, redis_server: Server) -> None:
    connection = RedisConnection(redis_server.url)
    connection.connect()
    keys = ["{queue:q}:inflight", "{queue:q}:awaited", "{queue:q}:bucket", ENDS]
    arguments = ["vm/1", "expired", "Stale", 1]
    assert connection.script(scripts.END, keys, arguments) == 0
    redis.hset(keys[0], "vm/1", "x")
    assert connection.script(scripts.END, keys, arguments) == 1
    assert connection.script(scripts.END, keys, arguments) == 0  # a call that is sent again
    assert ended(redis) == {b"Stale|expired": b"1"}
    connection.close()


def test_a_damaged_count_keeps_no_job_from_its_end(redis: Redis, redis_server: Server) -> None:
    stale()
    redis.set(ENDS, "x")
    redis.lpush(QUEUE, payload(now() - 1))
    with InProcessChild(redis_server.url):
        wait_until(lambda: not redis.exists(QUEUE, "{queue:default}:inflight"), what="the end")
    assert redis.get(ENDS) == b"x"


def test_no_number_of_classes_makes_the_counts_grow_without_end(
    redis: Redis, redis_server: Server
) -> None:
    connection = RedisConnection(redis_server.url)
    connection.connect()
    keys = ["{queue:q}:inflight", "{queue:q}:awaited", "{queue:q}:bucket", ENDS]
    redis.hset(ENDS, mapping={f"C{number}|expired": 1 for number in range(2000)})
    redis.hset(keys[0], mapping={"vm/1": "x", "vm/2": "x"})
    connection.script(scripts.END, keys, ["vm/1", "expired", "New", 1])
    connection.script(scripts.END, keys, ["vm/2", "expired", "C7", 1])
    assert (redis.hget(ENDS, "(other)|expired"), redis.hget(ENDS, "C7|expired")) == (b"1", b"2")
    connection.close()


# The clock


def test_the_clock_ends_what_is_due_too_late(redis: Redis, redis_server: Server) -> None:
    connection = RedisConnection(redis_server.url)
    connection.connect()
    mover = DueJobMover(Keys(), connection)
    at = now()
    redis.zadd("retry", {payload(at - 1, jid="late"): at - 9, payload(at + 60, jid="soon"): at - 9})
    mover.load(watch=False)
    while (due := mover.next_due()) is not None and due <= now():
        mover.work()
    assert [job["jid"] for job in in_queue(redis)] == ["soon"]
    assert ended(redis) == {b"Stale|expired": b"1"}
    assert redis.zscore(MARKED, "default") == pytest.approx(at + 60)
    assert not redis.exists("retry", "dead")
    connection.close()


def test_expired_jobs_leave_a_paused_queue(redis: Redis, redis_server: Server) -> None:
    """By the leader, when the first of them expires; other jobs keep their places."""
    at = now()
    first, others = payload(at + 0.3, jid="first"), [payload(at + 60, jid=f"m{n}") for n in (1, 2)]
    plain = dumps({"class": "Stale", "args": [], "jid": "plain"})
    redis.sadd("paused", "default")
    redis.lpush(QUEUE, plain, first, *others)
    redis.zadd(MARKED, {"default": at + 0.3})
    with InProcessClock(redis_server.url):
        wait_until(lambda: redis.exists(ENDS), what="the end of the job")
        wait_until(lambda: redis.zscore(MARKED, "default") == pytest.approx(at + 60), what="a note")
    assert [job["jid"] for job in in_queue(redis)] == ["m2", "m1", "plain"]
    assert ended(redis) == {b"Stale|expired": b"1"}


def test_the_leader_sees_what_its_own_clock_has_put_into_a_queue(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    """Redis does not report the clock's own change of forkq:marked to it, nor the pushes of others
    after that: the key is tracked no more then."""
    redis.sadd("paused", "default")
    with InProcessClock(redis_server.url):
        stale().set(expires_in=0.2).perform_in(0.1, 1)
        wait_until(lambda: ended(redis) == {b"Stale|expired": b"1"}, what="the end of one moved")
        stale().set(expires_in=0.2).perform_async(2)
        wait_until(lambda: ended(redis) == {b"Stale|expired": b"2"}, what="the end of one pushed")
    assert not redis.exists(QUEUE)


def test_the_history_of_a_periodic_job_says_that_one_expired_where_it_waited(
    redis: Redis, looker: ExpiredJobs
) -> None:
    job: dict[str, Any] = {"class": "Stale", "args": [1], "queue": "default", "jid": "t1"}
    job["forkq"] = {"cron": "often", "tick": 1, "needs": {"expires_at": 2}}
    redis.lpush(QUEUE, json.dumps(job, separators=(",", ":")))
    redis.zadd("forkq:marked", {"default": 2})
    looker.load(watch=False)
    for _ in range(4):  # it begins, looks into both lists, and ends
        looker.work()
    [line] = [json.loads(each) for each in redis.lrange("forkq:cron:runs:often", 0, -1)]
    assert (line["event"], line["jid"]) == ("expired", "t1")
    assert (ended(redis), redis.llen(QUEUE)) == ({b"Stale|expired": b"1"}, 0)


def test_a_table_counts_for_periodic_jobs_too(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    with InProcessClock(redis_server.url, expire={"default": 60.0}):
        api.cron.add("often", "* * * * * *", "Stale", args=[1])
        wait_until(lambda: redis.llen(QUEUE), what="a tick")
    job = in_queue(redis)[-1]
    assert job["expiry"] == pytest.approx(job["enqueued_at"] + 60, abs=0.01)
    assert job["forkq"]["cron"] == "often"


def test_ten_thousand_expired_jobs_among_others_are_found(
    redis: Redis, looker: ExpiredJobs, log: RecordedLog
) -> None:
    """In suspects and list, at both ends and between; what expires later stays."""
    at, left = now(), []
    for number in range(12_000):
        if number % 6:
            redis.lpush(QUEUE, payload(at - 1, jid=f"late{number}"))
        else:
            left.append(f"m{number}")
            redis.lpush(QUEUE, payload(at + 90 + number, jid=f"m{number}"))
    redis.rpush("{queue:default}:suspects", payload(at - 1), payload(at + 70, jid="s"))
    redis.zadd(MARKED, {"default": at - 1})
    look(looker)
    assert [job["jid"] for job in reversed(in_queue(redis))] == left
    assert [job["jid"] for job in in_queue(redis, "{queue:default}:suspects")] == ["s"]
    assert ended(redis) == {b"Stale|expired": b"10001"}
    assert redis.zscore(MARKED, "default") == pytest.approx(at + 70)
    assert [more["jobs"] for _, _, more in log.lines] == [10_001]


@pytest.mark.parametrize(
    "odd",
    [
        b'{"class":"Stale","args":[{"needs":{"expires_at":1}}]}',
        b'{"class":"Stale","args":[],"note":{"forkq":{"needs":{"expires_at":1}}}}',
        b'{"needs":{"expires_at":1}',
        b'[{"needs":{"expires_at":1}}]',
        b'{"class":7,"forkq":[{"needs":{"expires_at":1}}]}',
        b'{"class":"Stale","args":[],"forkq":{"needs":{"expires_at":"1"}},"x":{"needs":{"expires_at":1}}}',
    ],
)
def test_a_text_that_only_looks_like_a_need_is_left_alone(
    redis: Redis, looker: ExpiredJobs, odd: bytes
) -> None:
    redis.lpush(QUEUE, odd)
    redis.zadd(MARKED, {"default": 1})
    look(looker)
    assert redis.lrange(QUEUE, 0, -1) == [odd]
    assert not redis.exists(ENDS)


def test_a_full_server_takes_the_removal(redis: Redis, looker: ExpiredJobs) -> None:
    redis.lpush(QUEUE, payload(now() - 1), payload(now() + 60))
    redis.zadd(MARKED, {"default": 1})
    redis.config_set("maxmemory", 1)
    try:
        looker.load(watch=False)
        looker.work()  # begins
        looker.work()  # the suspects
        looker.work()  # the list
    finally:
        redis.config_set("maxmemory", 0)
    assert redis.llen(QUEUE) == 1


def test_an_empty_queue_is_forgotten_and_one_with_a_lease_is_not(
    redis: Redis, looker: ExpiredJobs
) -> None:
    redis.zadd(MARKED, {"empty": 1, "leased": 1})
    redis.hset("{queue:leased}:inflight", "vm/1", payload(now() + 60))
    before = now()
    look(looker)
    [(name, score)] = members(redis, MARKED)
    assert name == b"leased"
    assert score >= before + 60


def test_a_job_that_comes_during_the_look_is_looked_at_in_time(
    redis: Redis, looker: ExpiredJobs
) -> None:
    redis.lpush(QUEUE, payload(now() + 600))
    redis.zadd(MARKED, {"default": 2})
    looker.load(watch=False)
    looker.work()
    redis.zadd(MARKED, {"default": 1})  # a push notes its job
    while looker._look is not None:
        looker.work()
    assert redis.zscore(MARKED, "default") == 1


def test_a_job_that_comes_during_the_look_and_expires_later_is_not_missed(
    client: forkq.Client, redis: Redis, looker: ExpiredJobs
) -> None:
    """Its expiry comes after the one for which the look began, and before the next look."""
    redis.lpush(QUEUE, payload(now() + 600))
    redis.zadd(MARKED, {"default": 2})
    looker.load(watch=False)
    looker.work()
    while looker._look is not None and looker._look.lists:
        looker.work()
    stale().set(expires_in=5).perform_async(1)
    looker.work()
    assert looker._look is None
    assert redis.zscore(MARKED, "default") == pytest.approx(now() + 5, abs=3)


def test_another_type_in_the_place_of_the_list_does_no_harm(
    redis: Redis, looker: ExpiredJobs
) -> None:
    redis.set(QUEUE, "x")
    redis.zadd(MARKED, {"default": 1})
    look(looker)
    assert redis.get(QUEUE) == b"x"


def test_a_damaged_name_delays_no_queue(redis: Redis, looker: ExpiredJobs) -> None:
    redis.zadd(MARKED, {b"\xff\xfe": 1, b"default": 2})
    redis.lpush(QUEUE, payload(now() - 1))
    look(looker)
    assert not redis.exists(QUEUE, MARKED)


def test_a_queue_is_looked_at_again_within_a_minute(redis: Redis, looker: ExpiredJobs) -> None:
    """A job that a child had leased during the look may expire long before those in the list."""
    redis.lpush(QUEUE, payload(now() + 9000))
    redis.hset("{queue:default}:inflight", "vm/1", payload(now() + 2))
    redis.zadd(MARKED, {"default": 1})
    look(looker)
    score = redis.zscore(MARKED, "default")
    assert score is not None
    assert now() < score <= now() + 61


def test_pages_leave_the_server_to_others_whatever_is_pushed(
    redis: Redis, looker: ExpiredJobs
) -> None:
    """Each push lowers the score of its queue: the next page waits all the same."""
    redis.lpush(QUEUE, *(payload(now() - 1, jid=f"m{number}") for number in range(3000)))
    redis.zadd(MARKED, {"default": 1, "other": 1})
    redis.lpush("queue:other", payload(now() - 1))
    looker.load(watch=False)
    pages = 0
    while redis.exists(QUEUE, "queue:other"):
        began = now()
        looker.work()
        redis.zadd(MARKED, {"default": 1})
        if ended(redis) and (due := looker.next_due()) is not None:
            pages += due > began
    assert pages > 3000 / 300


# People


def test_a_person_who_retries_a_dead_job_has_it_run(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    stale()
    redis.zadd("dead", {payload(now() - 900, expiry=now() - 900, error_class="E"): now()})
    [entry] = api.DeadSet()
    assert entry.retry()
    [job] = in_queue(redis)
    assert not {"forkq", "expiry"} & job.keys()
    with InProcessChild(redis_server.url):
        wait_until(lambda: ran, what="the run")


def test_a_dead_job_with_needs_that_another_program_wrote_is_retried(
    client: forkq.Client, redis: Redis
) -> None:
    job = {"class": "Stale", "args": [1], "queue": "default", "jid": "m1", "error_class": "E"}
    needs = {"expires_at": now() - 9, "wings": 1}
    redis.zadd("dead", {dumps({**job, "forkq": {"needs": needs}}): now()})
    [entry] = api.DeadSet()
    assert entry.retry()
    [retried] = in_queue(redis)
    assert retried["forkq"] == {"needs": {"wings": 1}}


def test_what_was_deleted_and_put_back_expires_as_before(
    client: forkq.Client, redis: Redis
) -> None:
    at = now() + 60
    redis.lpush(QUEUE, payload(at))
    redis.sadd("queues", "default")
    outcome = api.Queue("default").delete_all(undo=True)
    assert (outcome.done, ended(redis)) == (1, {})
    redis.delete(MARKED)
    assert api.undo(outcome.undo).done == 1
    assert redis.zscore(MARKED, "default") == pytest.approx(at)


# Tests of apps


def test_a_recorded_job_expires_too() -> None:
    import forkq.testing  # noqa: PLC0415

    with forkq.testing.fake() as jobs:
        stale().perform_async(1)
        stale().set(expires_in=1e-9).perform_async(2)
        [first, second] = jobs
        assert first.payload["expiry"] > now() + 50
        assert second.payload["forkq"]["needs"]["expires_at"] <= now()
        forkq.testing.drain()
    assert ran == [1]


# [expire]


def test_a_table_gives_the_jobs_of_a_queue_an_expiry(
    redis: Redis, redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "forkq.toml").write_text(
        '[capsules.default]\nqueues = ["*"]\n'
        '[expire]\nexports = "2h"\n"tenant-*" = 60\n"tenant-vip-*" = 90.5\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(default_client, "_default", None)
    client = forkq.configure(redis_server.url, environ={})

    def after(queue: str, **options: Any) -> float | None:
        job = {"class": "Export", "args": [], "queue": queue, **options}
        client.push(job)
        client.push_bulk({**job, "args": [[], []]})
        found = in_queue(redis, f"queue:{queue}")
        redis.delete(f"queue:{queue}")
        lasts = {
            round(one["expiry"] - one["enqueued_at"]) if "forkq" in one else 0 for one in found
        }
        return min(lasts)  # of a push that a busy machine has delayed it is more

    assert after("exports") == 7200
    assert after("exports", expires_in=30) == 30
    assert after("exports", expires_in=0) == 0
    assert after("exports", forkq={"cron": "c"}) == 7200
    assert after("tenant-7") == 60
    assert after("tenant-vip-7") in (90, 91)
    assert after("default") == 0
    client.close()


@pytest.mark.parametrize("value", ['"soon"', "0", "-5", "true", '["1h"]', "1e10"])
def test_a_table_with_another_value_is_refused_by_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    (tmp_path / "forkq.toml").write_text(f"[expire]\nexports = {value}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"forkq.toml.*expire\.exports"):
        load(None, {}, {}, tmp_path)
