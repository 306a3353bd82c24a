"""How the end of a failed job reaches Redis: with the next fetch, and when a processor waits."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import closing, suppress
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq.child.failure.ends import Ending, Ends, Outcome, sendings
from forkq.child.failure.retry import Retry
from forkq.child.fetch.channel import FetchChannel
from forkq.child.fetch_turn import Hand
from forkq.store.connection import Call, RedisConnection, ResponseError
from forkq.store.dead_set import DeadSetLimits
from forkq.store.scripts import RETRY
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from tests.redis.in_process_child import InProcessChild, ProcessorThreads
from tests.redis.test_processor import (
    INFLIGHT,
    LIST,
    clean,  # noqa: F401 - the fixture
    failing,
    payload,
    settled,
)
from tests.support.server import Server
from tests.support.waiting import wait_until

KEYS = Keys()
JOBS = 200


@pytest.fixture
def sends(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many exchanges asked for jobs, or for none, and how many ends they moved."""
    found: Counter[str] = Counter()
    send = FetchChannel.send

    def counted(channel: FetchChannel, want: int, *args: Any, **keys: Any) -> None:
        send(channel, want, *args, **keys)
        found["asked" if want else "asked for none"] += 1
        found["moved"] += len(channel.under_way.sent.endings) if channel.under_way else 0

    monkeypatch.setattr(FetchChannel, "send", counted)
    return found


@pytest.mark.parametrize(("retry", "target"), [(True, "retry"), (0, "dead")])
def test_a_failed_job_costs_no_exchange_of_its_own(
    redis: Redis, redis_server: Server, sends: Counter[str], retry: Any, target: str
) -> None:
    """Nor a second connection: its end travels with the fetch for the next job."""
    failing(ValueError("boom"))
    redis.lpush(LIST, *(payload("Bad", jid=f"{n}", retry=retry) for n in range(JOBS)))
    before = redis.info("stats")["total_connections_received"]
    with InProcessChild(redis_server.url, concurrency=1):
        settled(redis)
    assert redis.zcard(target) == JOBS
    assert sends["moved"] == JOBS
    assert sends["asked for none"] < JOBS / 4
    assert sends["asked"] <= JOBS + 2
    assert redis.info("stats")["total_connections_received"] - before == 1


def test_no_job_waits_for_a_processor_that_handles_a_failure(
    redis: Redis, redis_server: Server
) -> None:
    """It has told the failure, and is not free all the same."""
    failing(ValueError("boom"))
    handles, runs, gate = threading.Event(), threading.Event(), threading.Event()

    @forkq.on_error
    def slow(error: BaseException, context: dict[str, Any]) -> None:
        handles.set()
        gate.wait(30)

    @forkq.job(name="Long")
    def long() -> None:
        runs.set()
        gate.wait(30)

    with InProcessChild(redis_server.url, concurrency=2):
        redis.lpush(LIST, payload("Bad"))
        assert handles.wait(10)
        wait_until(lambda: redis.zcard("retry") == 1, what="the retry, which the other one sends")
        redis.lpush(LIST, payload("Long"), payload("Long"))
        assert runs.wait(10)
        wait_until(lambda: redis.hlen(INFLIGHT) == 1, what="the lease of the job that runs alone")
        assert redis.llen(LIST) == 1
        gate.set()
        settled(redis)


def test_a_processor_is_free_again_whatever_its_handlers_raise(
    redis: Redis, redis_server: Server
) -> None:
    failing(ValueError("boom"))

    @forkq.on_error
    def broken(error: BaseException, context: dict[str, Any]) -> None:
        raise SystemExit

    with InProcessChild(redis_server.url, concurrency=2) as child:
        redis.lpush(LIST, *(payload("Bad", jid=f"{n}") for n in range(20)))
        settled(redis)
        wait_until(lambda: child.leases.count().free == 2, what="two free processors")
    assert redis.zcard("retry") == 20


def _retry(child: ProcessorThreads, unit: UnitOfWork, told: list[Outcome]) -> Ending:
    ending = child.ends.retry(unit, Retry(5.5, unit.payload))
    ending.told = told.append
    return ending


def test_an_end_is_told_at_once_though_a_fetch_is_under_way(
    redis: Redis, redis_server: Server
) -> None:
    """The fetch was sent before the job had ended."""
    redis.lpush("queue:q", "1", "2")
    child, told = ProcessorThreads(redis_server.url), list[Outcome]()
    unit = child.take()
    assert unit is not None
    child.fetch.channel.send(1, child.leases)
    ending = _retry(child, unit, told)
    child.fetcher.done(unit, ending)
    assert child.fetcher.flush(ending)
    assert (told, redis.zcard("retry")) == (["moved"], 1)
    child.fetcher.give_back()


def test_a_dead_processor_ends_its_job_once(redis: Redis, redis_server: Server) -> None:
    """It had ended it before it died, and Redis does not know yet."""
    redis.lpush("queue:q", "1")
    child, told = ProcessorThreads(redis_server.url), list[Outcome]()
    hand = Hand()
    unit = child.take(hand)
    assert unit is not None
    child.fetcher.done(unit, _retry(child, unit, told))
    child.fetch.turn.abandon(hand)
    assert child.fetcher.flush()
    assert (told, unit.lost) == (["moved"], False)
    assert (redis.zcard("retry"), redis.llen("queue:q"), child.leases.count().ended) == (1, 0, 0)
    child.fetcher.give_back()


def test_what_redis_had_refused_moves_at_the_stop_if_it_can(
    redis: Redis, redis_server: Server
) -> None:
    """Though its pause is not over: else the job would go back to its queue, and run again."""
    redis.set("retry", "another program's")
    redis.lpush("queue:q", "1", "2")
    child, told = ProcessorThreads(redis_server.url), list[Outcome]()
    for _ in range(2):
        unit = child.take()
        assert unit is not None
        child.fetcher.done(unit, _retry(child, unit, told))
    assert child.fetcher.flush()
    assert (told, child.leases.count().parked) == (["refused"] * 2, 2)
    redis.delete("retry")
    child.fetcher.quiet()
    assert child.fetcher.give_back()
    assert (redis.zcard("retry"), redis.llen("queue:q"), redis.hlen("{queue:q}:inflight")) == (
        2,
        0,
        0,
    )


def test_what_redis_still_refuses_at_the_stop_goes_back(redis: Redis, redis_server: Server) -> None:
    redis.set("retry", "another program's")
    redis.lpush("queue:q", "1")
    child, told = ProcessorThreads(redis_server.url), list[Outcome]()
    unit = child.take()
    assert unit is not None
    child.fetcher.done(unit, _retry(child, unit, told))
    assert child.fetcher.flush()
    child.fetcher.quiet()
    assert child.fetcher.give_back()
    assert redis.lrange("queue:q", 0, -1) == [b"1"]
    assert (redis.hlen("{queue:q}:inflight"), child.leases.count().parked) == (0, 0)


def test_many_refusals_cost_one_more_round_trip(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In which the damaged key is found, once for all of them."""
    redis.set("retry", "another program's")
    redis.script_load(RETRY.text)  # a test before may have had the server forget all scripts
    redis.lpush("queue:q", *range(40))
    child, told = ProcessorThreads(redis_server.url, concurrency=40), list[Outcome]()
    units = [unit for _ in range(40) if (unit := child.take()) is not None]
    for unit in units:
        child.fetcher.done(unit, _retry(child, unit, told))
    sends: list[int] = []
    send = RedisConnection.send

    def counted(connection: RedisConnection, *commands: Any) -> None:
        sends.append(len(commands))
        send(connection, *commands)

    monkeypatch.setattr(RedisConnection, "send", counted)
    assert child.fetcher.flush()
    assert told == ["refused"] * 40
    assert len(sends) == 2, "the exchange, and the search for the damaged key"
    assert "retry" in child.log.lines[-1][2]["error"]
    child.fetcher.give_back()


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_job_that_is_dropped_is_told_before_the_handlers_run(
    redis: Redis, redis_server: Server, concurrency: int
) -> None:
    """They may take long, or kill the process: the job must not run again then."""
    failing(ValueError("boom"))
    left: list[int] = []

    def look() -> None:
        with suppress(AssertionError):
            wait_until(lambda: redis.hlen(INFLIGHT) == 0, deadline=2, what="the end in Redis")
        left.append(redis.hlen(INFLIGHT))

    forkq.on_error(lambda error, context: look())
    forkq.on_death(lambda job, error: look())
    with InProcessChild(redis_server.url, concurrency=concurrency):
        redis.lpush(LIST, payload("Bad", retry=False))
        wait_until(lambda: len(left) == 2, what="the handlers")
        settled(redis)
    assert left == [0, 0]


def test_no_death_handler_runs_for_a_job_that_another_process_has(
    redis: Redis, redis_server: Server
) -> None:
    """Its lease was taken while it ran here: it is not dead."""
    dead: list[str] = []
    forkq.on_death(lambda job, error: dead.append(job["jid"]))

    @forkq.job(name="Bad")
    def bad(takes: int) -> None:
        if takes:
            redis.delete(INFLIGHT)
        raise ValueError("boom")

    with InProcessChild(redis_server.url, concurrency=1):
        redis.lpush(LIST, payload("Bad", 1, jid="taken", retry=0))
        redis.lpush(LIST, payload("Bad", 0, jid="dead", retry=0))
        wait_until(lambda: "dead" in dead, what="the death of the other job")
        settled(redis)
    assert (dead, redis.zcard("dead")) == (["dead"], 1)


def test_death_handlers_run_though_redis_refuses_the_burial(
    redis: Redis, redis_server: Server
) -> None:
    """Once: the app is told now, and Redis gets the job when it takes it."""
    failing(ValueError("boom"))
    dead: list[str] = []
    forkq.on_death(lambda job, error: dead.append(job["jid"]))
    redis.set("dead", "another program's")
    with InProcessChild(redis_server.url, concurrency=1) as child:
        redis.lpush(LIST, payload("Bad", retry=0))
        wait_until(lambda: dead, what="the handler")
        assert redis.hlen(INFLIGHT) == 1
        redis.delete("dead")
        assert child.again() is False
    assert (dead, redis.zcard("dead")) == (["m1"], 1)


def ending(number: int, queue: str = "default", **needs: Any) -> Ending:
    """The end of a job that is done, leased under that number."""
    unit = UnitOfWork(1, queue, number, b"")
    unit.marked = {"class": "Load", "jid": f"j{number}", "queue": queue, "forkq": {"needs": needs}}
    made = Ends("vm:7:0123456789ab", KEYS, DeadSetLimits(KEYS)).done(unit, "done")
    assert made is not None
    return made


def test_jobs_of_a_queue_end_in_one_call_and_each_as_if_it_were_alone(
    redis: Redis, redis_server: Server
) -> None:
    """One has no lease any more, a key of one is damaged, and the script fails at one."""
    lock = {"lock": "d4", "for": 60.0, "until": "end"}
    endings = [ending(number, result_ttl=60) for number in range(40)]
    endings[4] = ending(4, unique=lock, batch={"bid": "b1", "i": 0}, result_ttl=60)
    broken = endings[7].make()
    endings[7].make = lambda: Call(
        broken.script, broken.keys, (*broken.arguments[:4], '[4,["no",5]]')
    )
    others = [ending(number, "other", result_ttl=60) for number in range(50, 52)]
    for each in (*endings, *others):
        redis.hset(
            KEYS.inflight(each.unit.queue_name), f"vm:7:0123456789ab/{each.unit.sequence}", "x"
        )
    redis.hdel(KEYS.inflight("default"), "vm:7:0123456789ab/2")
    redis.rpush(KEYS.result("j9"), "x")
    redis.hset(KEYS.unique("d4"), mapping={"jid": "j4"})
    redis.hset(KEYS.batch("b1"), mapping={"state": "open", "total": 3})
    redis.set(KEYS.awaited("default"), 1)
    sent = sendings([*endings[:20], *others, *endings[20:]]).calls
    assert sorted(len(each.endings) for each in sent) == [2, 15, 25]
    with closing(RedisConnection(redis_server.url)) as connection:
        connection.connect()
        replies = connection.exchange([one.call for one in sent])
    for one, reply in zip(sent, replies, strict=True):
        one.answered(reply)
    found = {each.unit.sequence: each.reply for each in (*endings, *others)}
    assert (found.pop(2), type(found.pop(7))) == (0, ResponseError)
    assert found.pop(9) == [1, KEYS.result("j9").encode()]
    assert set(found.values()) == {1}
    assert all(redis.exists(KEYS.result(f"j{number}")) for number in found)
    assert not redis.exists(KEYS.result("j2"), KEYS.unique("d4"), KEYS.awaited("default"))
    assert (redis.hget(KEYS.batch("b1"), "done"), redis.hlen(KEYS.inflight("default"))) == (b"1", 0)
