"""At most one job waits: a push takes its place (`on_duplicate` is "replace" or "latest")."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

import forkq
import forkq.testing
from forkq import api, middleware, registry
from forkq.child.failure.settle import Settler, Unasked
from forkq.client import transactions
from tests.redis.in_process_child import InProcessChild
from tests.redis.in_process_clock import InProcessClock
from tests.support.server import Server
from tests.support.waiting import wait_until

QUEUE, ENDS, INFLIGHT = "queue:default", "forkq:totals:ends", "{queue:default}:inflight"
DOUBTED = b"forkq:unique:doubt"
ran: list[Any] = []
failing: set[int] = set()
gate = threading.Event()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    monkeypatch.setattr(middleware, "pushes", middleware.Chain())
    ran.clear()
    failing.clear()
    gate.clear()
    yield
    gate.set()


def index(on_duplicate: Any = "latest", **options: Any) -> Any:
    """A job of which version 0 runs until the gate is open."""

    def perform(doc: int, version: int = 1) -> None:
        job = forkq.current_job()
        assert job is not None
        ran.append((doc, version, job.jid))
        if version == 0:
            gate.wait(30)
        if version in failing:
            raise ValueError(version)

    registry._jobs.pop("Index", None)
    made = {"unique_for": 60, "unique_by": ["doc"], "on_duplicate": on_duplicate, **options}
    return forkq.job(name="Index", **made)(perform)


def lock_of(redis: Redis) -> dict[str, str]:
    """What stands in the one lock; nothing if there is none."""
    found = locks_of(redis) or [{}]
    [lock] = found
    return lock


def locks_of(redis: Redis) -> list[dict[str, str]]:
    """What stands in each lock."""
    found: Any = redis.keys("forkq:unique:*")
    fields: list[Any] = [redis.hgetall(lock) for lock in found if lock != DOUBTED]
    return [{key.decode(): value.decode() for key, value in each.items()} for each in fields]


def ends(redis: Redis) -> dict[str, int]:
    found: Any = redis.hgetall(ENDS)
    return {key.decode(): int(value) for key, value in found.items()}


def nothing_is_left(redis: Redis) -> bool:
    return not redis.exists(QUEUE, INFLIGHT, "schedule", "retry", "forkq:tickets") and not lock_of(
        redis
    )


@pytest.mark.parametrize("how", ["replace", "latest"])
def test_the_newest_job_runs_in_the_place_of_the_first(
    client: forkq.Client, redis: Redis, redis_server: Server, how: str
) -> None:
    job = index(how)
    other = forkq.job(name="Other")(lambda: ran.append("other"))
    jids = [job.perform_async(7, 1)]
    other.perform_async()
    jids += [job.perform_async(7, version) for version in (2, 3)]
    assert len(set(jids)) == 3
    assert redis.llen(QUEUE) == 2
    assert ends(redis) == {"Index|replaced": 2}
    with InProcessChild(redis_server.url, concurrency=1) as child:
        wait_until(lambda: nothing_is_left(redis), what="the ends")
    assert ran == [(7, 3, jids[2]), "other"]
    assert ends(redis) == {"Index|replaced": 2}
    told = [more["jid"] for _, event, more in child.log.lines if event == "replaced"]
    assert told == jids[:1]


def test_latest_waits_until_the_one_that_runs_has_ended(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = index()
    first = job.perform_async(7, 0)
    with InProcessChild(redis_server.url, concurrency=2):
        wait_until(lambda: ran, what="the start")
        jids = [job.perform_async(7, version) for version in (1, 2, 3)]
        assert redis.llen(QUEUE) == 0
        assert lock_of(redis)["next_jid"] == jids[2]
        assert job.perform_async(8, 1)  # another document
        wait_until(lambda: len(ran) == 2, what="the other document")
        gate.set()
        wait_until(lambda: nothing_is_left(redis), what="the ends")
    assert ran == [(7, 0, first), (8, 1, ran[1][2]), (7, 3, jids[2])]
    assert ends(redis) == {"Index|replaced": 2}


def test_replace_lets_one_wait_while_another_runs(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = index("replace")
    first = job.perform_async(7, 0)
    with InProcessChild(redis_server.url, concurrency=1):
        wait_until(lambda: ran, what="the start")
        jids = [job.perform_async(7, version) for version in (1, 2)]
        assert redis.llen(QUEUE) == 1
        gate.set()
        wait_until(lambda: nothing_is_left(redis), what="the ends")
    assert ran == [(7, 0, first), (7, 2, jids[1])]


@pytest.mark.parametrize("how", ["replace", "latest"])
def test_a_scheduled_job_is_replaced_with_its_time(
    client: forkq.Client, redis: Redis, redis_server: Server, how: str
) -> None:
    job = index(how)
    job.perform_in(900, 7, 1)
    later = job.perform_in(1800, 7, 2)
    [entry] = api.ScheduledSet()
    assert (entry.jid, entry.args) == (later, [7, 2])
    now = job.perform_async(7, 3)
    assert not redis.exists("schedule")
    [queued] = api.Queue("default")
    assert queued.jid == now
    again = job.perform_in(1800, 7, 4)  # its ticket is in the queue, and goes to the schedule
    with InProcessChild(redis_server.url):
        wait_until(lambda: redis.zcard("schedule") and not redis.exists(INFLIGHT), what="the move")
    [entry] = api.ScheduledSet()
    assert (entry.jid, entry.args, ran) == (again, [7, 4], [])
    assert ends(redis) == {"Index|replaced": 3}


@pytest.mark.parametrize("how", ["replace", "latest"])
def test_a_push_goes_before_the_retry_of_a_failed_job(
    client: forkq.Client, redis: Redis, redis_server: Server, how: str
) -> None:
    failing.add(1)
    job = index(how)
    job.perform_async(7, 1)
    with InProcessChild(redis_server.url):
        wait_until(lambda: redis.zcard("retry"), what="the retry")
        second = job.perform_async(7, 2)
        wait_until(lambda: nothing_is_left(redis), what="the ends")
    assert [each[1:] for each in ran[1:]] == [(2, second)]
    assert ends(redis) == {"Index|replaced": 1}


def test_a_job_that_fails_while_a_newer_one_waits_is_not_retried(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    failing.add(0)
    job = index()
    job.perform_async(7, 0)
    with InProcessChild(redis_server.url):
        wait_until(lambda: ran, what="the start")
        job.perform_async(7, 2)
        gate.set()
        wait_until(lambda: nothing_is_left(redis), what="the ends")
    assert [version for _, version, _ in ran] == [0, 2]
    assert ends(redis) == {"Index|replaced": 1}


def test_the_newest_job_goes_to_its_own_queue(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = index()
    job.perform_async(7, 1)
    jid = job.set(queue="other").perform_async(7, 2)
    with InProcessChild(redis_server.url), InProcessClock(redis_server.url):
        wait_until(lambda: redis.llen("queue:other"), what="the move")
    [raw] = redis.lrange("queue:other", 0, -1)
    assert (json.loads(raw)["jid"], ran) == (jid, [])


def test_no_newest_job_waits_for_a_ticket_in_a_queue_that_no_process_serves(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    """After a deploy that gives the class another queue. The leader ends the ticket; what else
    waits there keeps its place."""
    job, other = index(queue="old"), forkq.job(name="Other", queue="old")(lambda *_arguments: None)
    others = [other.perform_async()]
    job.perform_async(7, 1)
    others += [other.perform_async()]
    jid = index(queue="new").perform_async(7, 2)
    with InProcessClock(redis_server.url):
        wait_until(lambda: redis.llen("queue:new"), what="the newest job in its queue")
        [newest] = redis.lrange("queue:new", 0, -1)
        wait_until(lambda: not redis.exists("forkq:unique:doubt"), what="the end of the search")
    left = [json.loads(raw)["jid"] for raw in redis.lrange("queue:old", 0, -1)]
    assert (json.loads(newest)["jid"], left[::-1]) == (jid, others)
    assert (lock_of(redis)["jid"], ends(redis)) == (jid, {"Index|replaced": 1})


def test_a_newest_job_waits_for_no_crashed_one_in_a_queue_that_no_process_serves(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    """A crash has given the job back that ran, so its lock says that it runs."""
    index(queue="old").perform_async(7, 1)
    [lock] = redis.keys("forkq:unique:*")
    redis.hset(lock, "state", "running")
    job = index(queue="new")
    job.perform_async(7, 2)
    assert not redis.exists(DOUBTED)  # it may run, as far as the push knows
    redis.hset(lock, "sure", 0)
    jid = job.perform_async(7, 3)
    with InProcessClock(redis_server.url):
        wait_until(lambda: redis.llen("queue:new"), what="the newest job in its queue")
    [newest] = redis.lrange("queue:new", 0, -1)
    assert (json.loads(newest)["jid"], redis.exists("queue:old")) == (jid, 0)
    assert ends(redis) == {"Index|replaced": 2}


def test_a_bulk_and_a_commit_push_the_newest(
    client: forkq.Client, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = index()
    jids = job.perform_bulk([(7, 1), (8, 1), (7, 2)])
    assert len(set(jids)) == 3
    assert (redis.llen(QUEUE), ends(redis)) == (2, {"Index|replaced": 1})
    waiting: list[Any] = []
    monkeypatch.setattr(transactions, "on_commit", waiting.append)
    later = job.perform_async_on_commit(7, 3)
    [send] = waiting
    send()
    [newest] = [lock for lock in locks_of(redis) if "next_jid" in lock]
    assert newest["next_jid"] == later


def test_a_push_that_is_sent_again_changes_nothing(client: forkq.Client, redis: Redis) -> None:
    job = index()
    job.perform_async(7, 1)
    again = {**job.payload(7, 2), "jid": "b" * 24}
    assert client.push(again) == client.push(again) == "b" * 24
    assert (redis.llen(QUEUE), ends(redis)) == (1, {"Index|replaced": 1})


def test_ticks_of_a_periodic_job_take_the_place_of_the_one_that_waits(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = index()
    job.perform_async(7, 5)
    api.cron.add("often", "* * * * * *", job, args=[7, 6])
    with InProcessClock(redis_server.url):
        wait_until(lambda: lock_of(redis).get("next"), what="a tick")
    assert json.loads(lock_of(redis)["next"])["args"] == [7, 6]
    assert redis.llen(QUEUE) == 1


def test_a_full_server_refuses_the_push_and_keeps_the_one_before(
    client: forkq.Client, redis: Redis
) -> None:
    job = index()
    first = job.perform_in(900, 7, 1)
    redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(forkq.ServerRefused):
            job.perform_async(7, 2)
    finally:
        redis.config_set("maxmemory", 0)
    [entry] = api.ScheduledSet()
    assert (entry.jid, lock_of(redis)["jid"]) == (first, first)


@pytest.mark.parametrize(
    ("how", "until", "other"),
    [
        ("latest", "start", "replace"),
        ("latest", "expiry", ""),
        ("replace", "end", "latest"),
        ("replace", "expiry", ""),
    ],
)
def test_a_pair_that_cannot_be_is_refused_with_both_names(
    client: forkq.Client, how: str, until: str, other: str
) -> None:
    with pytest.raises(forkq.InvalidJob, match=r"`on_duplicate` is .* `unique_until` is") as raised:
        index(how, unique_until=until)
    assert (f'on_duplicate="{other}"' in str(raised.value)) == bool(other)
    options = {"unique_for": 9, "on_duplicate": how, "unique_until": until}
    with pytest.raises(forkq.InvalidJob, match="`unique_until`"):
        client.push({"class": "Far", "args": [], **options})


def test_a_person_who_deletes_the_entry_deletes_the_newest_job(
    client: forkq.Client, redis: Redis
) -> None:
    job = index()
    job.perform_async(7, 1)
    job.perform_async(7, 2)
    [entry] = api.Queue("default")
    assert entry.delete()
    assert nothing_is_left(redis)


def test_a_child_that_cannot_ask_gives_the_job_back(
    client: forkq.Client, redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not run beside another one."""
    asked: list[Any] = []

    def refuse(self: Settler, unit: Any) -> Any:
        asked.append(unit)
        if len(asked) == 1:
            raise Unasked("away")
        return which(self, unit)

    which = Settler.which
    monkeypatch.setattr(Settler, "which", refuse)
    jid = index().perform_async(7, 1)
    with InProcessChild(redis_server.url):
        wait_until(lambda: nothing_is_left(redis), what="the end")
    assert (ran, len(asked)) == ([(7, 1, jid)], 2)


# Tests of apps


def test_a_test_without_redis_keeps_the_newest_job_in_its_place() -> None:
    with forkq.testing.fake() as jobs:
        job = index()
        job.perform_async(7, 1)
        job.perform_async(8, 1)
        newest = job.perform_async(7, 2)
        assert [one.args for one in jobs] == [[7, 2], [8, 1]]
        forkq.testing.drain()
        assert ran[0] == (7, 2, newest)
        job.perform_in(900, 7, 3)
        job.perform_async(7, 4)
        assert [one.args for one in jobs] == [[7, 4]]


def test_a_test_without_redis_does_not_retry_a_job_behind_which_a_newer_one_waits() -> None:
    with forkq.testing.fake() as jobs:

        def perform(doc: int, version: int) -> None:
            if version == 1:
                again.perform_async(doc, 2)
                raise ValueError(version)

        again: Any = forkq.job(
            name="Again", unique_for=60, unique_by=["doc"], on_duplicate="latest"
        )(perform)
        again.perform_async(7, 1)
        forkq.testing.drain()
        assert list(jobs) == []


def test_inline_the_newest_job_runs_after_the_one_that_pushes_it() -> None:
    order: list[str] = []

    def perform(doc: int, version: int) -> None:
        order.append(f"begin {version}")
        if version == 1:
            for newer in (2, 3):
                job.perform_async(doc, newer)
        order.append(f"end {version}")

    with forkq.testing.inline():
        job: Any = forkq.job(
            name="Inline", unique_for=60, unique_by=["doc"], on_duplicate="latest"
        )(perform)
        job.perform_async(7, 1)
    assert order == ["begin 1", "end 1", "begin 3", "end 3"]


# Cancel


@pytest.mark.parametrize("by", ["jid", "class"])
def test_the_newest_job_is_cancelled_where_it_waits(
    client: forkq.Client, redis: Redis, redis_server: Server, by: str
) -> None:
    """Its ticket runs nothing, and the next push takes it."""
    job = index()
    job.perform_async(7, 1)
    jid = job.perform_async(7, 2)
    forkq.cancel(jid) if by == "jid" else api.cancel_class("Index")
    with InProcessClock(redis_server.url):
        wait_until(lambda: not redis.exists("forkq:cancelled"), what="the end of the job")
    assert ends(redis)["Index|cancelled"] >= 1
    with InProcessChild(redis_server.url):
        wait_until(lambda: nothing_is_left(redis), what="the end of the ticket")
        assert ran == []
        later = job.perform_async(7, 3)
        wait_until(lambda: nothing_is_left(redis), what="the end")
    assert ran == [(7, 3, later)]


def test_nothing_of_a_cancelled_newest_job_stays_in_its_lock(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    """A push of that very job, by a person or an outbox, is a push; a cancel finds no job."""
    job = index()
    job.perform_async(7, 1)
    again = {**job.payload(7, 2), "jid": "b" * 24}
    client.push(dict(again))
    forkq.cancel("b" * 24)
    with InProcessClock(redis_server.url):
        wait_until(lambda: not redis.exists("forkq:cancelled"), what="the end of the job")
    assert not {"next_jid", "next_at", "next_queue"} & lock_of(redis).keys()
    assert ends(redis) == {"Index|replaced": 1, "Index|cancelled": 1}
    assert job.cancel(7) == ""
    client.push(again)
    with InProcessChild(redis_server.url):
        wait_until(lambda: nothing_is_left(redis), what="the end")
    assert ran == [(7, 2, "b" * 24)]


def test_the_newest_job_is_cancelled_while_the_other_one_runs(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = index()
    job.perform_async(7, 0)
    with InProcessChild(redis_server.url):
        wait_until(lambda: ran, what="the start")
        forkq.cancel(job.perform_async(7, 2))
        with InProcessClock(redis_server.url):
            wait_until(lambda: not redis.exists("forkq:cancelled"), what="the end of the job")
        gate.set()
        wait_until(lambda: nothing_is_left(redis), what="the end")
    assert [version for _, version, _ in ran] == [0]
