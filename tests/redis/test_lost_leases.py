"""A host that was cut off and comes back: what was taken from it, it neither settles nor hides."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from forkq import api
from forkq.child.failure.retry import Bury, Retry
from forkq.child.failure.settle import Settler
from forkq.child.fetch import channel, fetcher
from forkq.child.heartbeat.lost_leases import LostLeases
from forkq.client import Client
from forkq.limits.rules import Rules
from forkq.store.connection import RedisConnection
from forkq.store.crash_record import ProcessDeath
from forkq.store.dead_set import DeadSetLimits
from forkq.store.pool import RedisPool
from forkq.store.recovery import Recovery
from forkq.store.steps import carry_out
from forkq.wire import times
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from forkq.wire.times import now
from tests.redis.in_process_child import IDENTITY, ProcessorThreads, is_waiting
from tests.redis.proxy import Proxy
from tests.support.server import Server
from tests.support.waiting import wait_until

LIST, INFLIGHT, NOTE = "queue:q", "{queue:q}:inflight", Keys().lost(IDENTITY)
TAKEN, TWICE = "lease lost: others were given the job", "ran on two hosts"


@pytest.fixture
def connection(redis: Redis, redis_server: Server) -> Iterator[RedisConnection]:
    connection = RedisConnection(redis_server.url)
    connection.connect()
    yield connection
    connection.close()


@pytest.fixture
def child(redis: Redis, redis_server: Server) -> Iterator[ProcessorThreads]:
    """It leases nothing ahead, since a rule is in force."""
    child = ProcessorThreads(redis_server.url, concurrency=3, rules={"q": Rules(limit=100)})
    yield child
    child.stop()


@pytest.fixture
def losses(child: ProcessorThreads) -> LostLeases:
    return losses_of(child)


def losses_of(child: ProcessorThreads) -> LostLeases:
    return LostLeases(IDENTITY, Keys(), child.fetch, child.log)


def push(redis: Redis, *jids: str) -> None:
    jobs = [json.dumps({"class": "J", "args": ["secret"], "jid": jid}) for jid in jids]
    redis.lpush(LIST, *jobs)


def take(child: ProcessorThreads) -> UnitOfWork:
    unit = child.take()
    assert unit is not None
    return unit


def take_away(connection: RedisConnection) -> None:
    """What another host's sweep does once this one seems lost."""
    crash = ProcessDeath(reason="host lost", of_tree=True)
    recovery = Recovery(DeadSetLimits(Keys()))
    carry_out(connection, recovery.recover(["q"], IDENTITY, crash, may_return=True))


def told(child: ProcessorThreads) -> list[tuple[str, str]]:
    lines = child.log.lines
    return [(event, values["job"]) for _, event, values in lines if event in (TAKEN, TWICE)]


def settle(redis: Redis, child: ProcessorThreads) -> None:
    """Lets the child go until all that it holds is settled."""
    child.fetcher.quiet()
    assert child.fetcher.give_back()


def test_a_job_that_still_runs_learns_of_it_and_its_late_end_changes_nothing(
    child: ProcessorThreads, losses: LostLeases, connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "1", "2")
    one, two = take(child), take(child)
    take_away(connection)
    losses.look(connection)
    assert (one.lost, two.lost, losses.ran_twice()) == (True, True, {})
    child.fetcher.done(one)
    settle(redis, child)
    assert losses.ran_twice() == {"J": 1}
    assert told(child) == [(TAKEN, "J 1"), (TAKEN, "J 2"), (TWICE, "J 1")]
    assert (redis.llen(LIST), redis.hlen(INFLIGHT)) == (2, 0)
    assert redis.exists(NOTE) == 0


def test_a_job_that_ran_twice_has_a_note_for_a_day(
    child: ProcessorThreads,
    losses: LostLeases,
    connection: RedisConnection,
    redis: Redis,
    client: Client,
) -> None:
    """Also when the other run is over. One that only was taken over has none."""
    push(redis, "1", "2")
    one, _ = take(child), take(child)
    take_away(connection)
    losses.look(connection)
    child.fetcher.done(one)
    settle(redis, child)
    before = now()
    assert api.ran_twice("1") is None
    losses.tell(connection)
    found = api.ran_twice("1")
    assert found is not None
    assert found.identity == IDENTITY
    assert before - 60 < found.at <= now()
    assert 0 < redis.ttl(Keys().ran_twice_of("1")) <= 86_400
    assert api.ran_twice("2") is None
    redis.delete(Keys().ran_twice_of("1"))
    losses.tell(connection)
    assert api.ran_twice("1") is None, "it was written a second time"
    redis.set(Keys().ran_twice_of("1"), "another program's")
    assert api.ran_twice("1") is None


def test_a_job_that_ended_before_the_child_knew_is_counted_at_its_acknowledgement(
    child: ProcessorThreads, losses: LostLeases, connection: RedisConnection, redis: Redis
) -> None:
    """Without a reconnection or a heartbeat: an acknowledgement that finds no lease asks why."""
    push(redis, "1", "2")
    one, two = take(child), take(child)
    take_away(connection)
    child.fetcher.done(one)
    with child:
        wait_until(losses.ran_twice, what="the count")
        assert two.lost
        assert told(child)[:2] == [(TWICE, "J 1"), (TAKEN, "J 2")]


def test_the_note_is_taken_when_the_line_is_open_again(
    child: ProcessorThreads, losses: LostLeases, connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "1")
    unit = take(child)
    child.fetcher._backoff._first = 0.02
    with child:
        wait_until(lambda: is_waiting(child.fetcher), what="the child to wait")
        take_away(connection)
        redis.delete(LIST)
        redis.client_kill_filter(_type="normal", skipme=True)
        wait_until(lambda: unit.lost, what="the news")
    assert redis.exists(NOTE) == 0


def test_an_acknowledgement_sent_again_after_a_lost_reply_did_not_run_twice(
    redis: Redis, redis_server: Server
) -> None:
    push(redis, "1")
    with Proxy(redis_server.port) as proxy:
        child = ProcessorThreads(proxy.url)
        losses = losses_of(child)
        unit = take(child)
        child.fetcher._backoff._first = 0.02
        proxy.cut(b"EVALSHA")
        child.fetcher.done(unit)
        with child:
            wait_until(lambda: proxy.cuts, what="a lost reply")
            wait_until(lambda: is_waiting(child.fetcher), what="the child to wait again")
    assert "redis is back" in child.log.events()
    assert (losses.ran_twice(), unit.lost, told(child)) == ({}, False, [])


def test_a_job_of_which_we_never_heard_did_not_run_here(redis: Redis, redis_server: Server) -> None:
    """Its lease was taken by a fetch whose answer was lost, and then from us by the sweep."""
    push(redis, "1")
    with Proxy(redis_server.port) as proxy:
        child = ProcessorThreads(proxy.url, concurrency=1)
        losses = losses_of(child)
        child.fetch.channel.open()
        child.leases.must_compare = False
        proxy.cut(b"EVALSHA")
        assert not child.fetcher._exchange()
        assert redis.hlen(INFLIGHT) == 1
        direct = RedisConnection(redis_server.url)
        direct.connect()
        take_away(direct)
        direct.close()
        redis.delete(LIST)
        assert child.fetcher._exchange()
    assert (losses.ran_twice(), told(child)) == ({}, [])
    assert redis.hgetall(NOTE) == {b"1": b"J 1"}, "no other child reads it; it expires"


def test_a_second_look_at_the_same_note_counts_nothing_again(
    child: ProcessorThreads, losses: LostLeases, connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "1", "2")
    one, two = take(child), take(child)
    child.fetcher.done(one)
    take_away(connection)
    note: Any = redis.hgetall(NOTE)
    for _ in range(2):
        redis.hset(NOTE, mapping=note)
        losses.look(connection)
    child.fetcher.done(two)
    redis.hset(NOTE, mapping=note)
    losses.look(connection)
    assert losses.ran_twice() == {"J": 2}
    assert told(child) == [(TWICE, "J 1"), (TAKEN, "J 2"), (TWICE, "J 2")]


def test_the_end_of_a_job_during_a_look_is_not_missed(
    child: ProcessorThreads, losses: LostLeases, connection: RedisConnection, redis: Redis
) -> None:
    push(redis, *map(str, range(300)))
    for _ in range(100):
        units = [take(child) for _ in range(3)]
        take_away(connection)
        redis.delete(LIST)
        ends = [threading.Thread(target=child.fetcher.done, args=[unit]) for unit in units]
        looks = [threading.Thread(target=look_from_elsewhere, args=[losses, connection.url])]
        for thread in (*ends[:1], *looks, *ends[1:]):
            thread.start()
        for thread in (*ends, *looks):
            thread.join(10)
        redis.delete(NOTE)
        push(redis, "1", "2", "3")
    losses.look(
        connection
    )  # as the next fetch does: the last jobs may have ended after the last look
    assert losses.ran_twice() == {"J": 300}


def look_from_elsewhere(losses: LostLeases, url: str) -> None:
    """As the heartbeat does."""
    connection = RedisConnection(url)
    connection.connect()
    losses.look(connection)
    connection.close()


def test_another_programs_value_at_the_notes_key_keeps_no_job_from_being_fetched(
    child: ProcessorThreads, losses: LostLeases, connection: RedisConnection, redis: Redis
) -> None:
    redis.set(NOTE, "something else")
    push(redis, "1", "2")
    with child:
        child.wait_runs(2)
    losses.look(connection)
    assert child.log.events() == ["cannot read which leases were lost"]


# Failures: a retry or a burial that finds no lease


@pytest.fixture
def parked() -> list[None]:
    return []


def settler(child: ProcessorThreads, url: str, parked: list[None]) -> Settler:
    """That of a child that fetches nothing more."""
    pool = RedisPool(url, size=1, timeout=5, connect_timeout=2)
    weakref.finalize(child, pool.close)
    child.fetcher.pause(on=True)
    return Settler(child.fetch, pool, on_parked=lambda: parked.append(None))


def settle_failure(settler: Settler, unit: UnitOfWork, decision: Retry | Bury) -> None:
    if isinstance(decision, Retry):
        settler.retry(unit, decision)
    else:
        settler.bury(unit, decision)


def again(child: ProcessorThreads, settler: Settler) -> bool:
    """What the heartbeat does after the pause."""
    child.leases.endings.hurry()
    return settler.again_in_time()


DECISIONS: list[Any] = [Retry(5.5, b"again"), Bury(b"dead", None)]


@pytest.mark.parametrize("decision", DECISIONS, ids=["retry", "burial"])
def test_a_failure_that_finds_no_lease_adds_nothing_and_is_counted(
    child: ProcessorThreads,
    losses: LostLeases,
    connection: RedisConnection,
    redis: Redis,
    decision: Retry | Bury,
    parked: list[None],
) -> None:
    push(redis, "1")
    unit = take(child)
    take_away(connection)
    settle_failure(settler(child, connection.url, parked), unit, decision)
    losses.look(connection)
    assert (unit.lost, losses.ran_twice(), told(child)) == (True, {"J": 1}, [(TWICE, "J 1")])
    assert child.leases.units() == {}
    assert (redis.zcard("retry"), redis.zcard("dead"), redis.llen(LIST)) == (0, 0, 1)


@pytest.mark.parametrize("decision", DECISIONS, ids=["retry", "burial"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_failure_settled_although_its_reply_was_lost_is_no_loss(
    redis: Redis, redis_server: Server, decision: Retry | Bury, times: int, parked: list[None]
) -> None:
    """The second try finds no lease because the first did it; so does one much later."""
    push(redis, "1")
    with Proxy(redis_server.port) as proxy:
        child = ProcessorThreads(proxy.url)
        losses = losses_of(child)
        unit, settling = take(child), settler(child, proxy.url, parked)
        proxy.cut(b"EVALSHA", times)
        settle_failure(settling, unit, decision)
        assert proxy.cuts == times
        assert len(parked) == times - 1
        assert not again(child, settling)
    assert (unit.lost, losses.ran_twice(), told(child)) == (False, {}, [])
    assert redis.zcard("retry") + redis.zcard("dead") == 1
    assert child.leases.units() == {}


@pytest.mark.parametrize("decision", DECISIONS, ids=["retry", "burial"])
def test_the_first_failure_that_redis_takes_ends_the_outage(
    redis: Redis, redis_server: Server, decision: Retry | Bury, parked: list[None]
) -> None:
    """Those that are parked are tried again later."""
    push(redis, "1", "2")
    with Proxy(redis_server.port) as proxy:
        child = ProcessorThreads(proxy.url)
        first, second, settling = take(child), take(child), settler(child, proxy.url, parked)
        proxy.cut(b"EVALSHA", times=2)
        settle_failure(settling, first, decision)
        assert (parked, child.log.events()) == ([None], ["redis lost"])
        settle_failure(settling, second, decision)
        assert child.log.events() == ["redis lost", "redis is back"]
        assert not again(child, settling)
    assert child.log.events() == ["redis lost", "redis is back"]


def test_a_refused_retry_leaves_no_doubt(
    child: ProcessorThreads,
    losses: LostLeases,
    connection: RedisConnection,
    redis: Redis,
    parked: list[None],
) -> None:
    """It did nothing: so if the lease is gone the next time, it was taken."""
    push(redis, "1")
    unit, settling = take(child), settler(child, connection.url, parked)
    redis.set("retry", "something else")
    settling.retry(unit, Retry(5.5, b"again"))
    assert parked == [None]
    redis.delete("retry")
    take_away(connection)
    assert not again(child, settling)
    assert (unit.lost, losses.ran_twice(), redis.zcard("retry")) == (True, {"J": 1}, 0)


def suspend(monkeypatch: pytest.MonkeyPatch) -> None:
    """This host was suspended for a minute: monotonic time stood still."""
    for module in (fetcher, channel):
        monkeypatch.setattr(module, "steady", lambda: times.steady() + 60)


def test_a_job_that_has_not_begun_does_not_begin_once_its_lease_is_lost(
    child: ProcessorThreads,
    losses: LostLeases,
    connection: RedisConnection,
    redis: Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This host stood still, and another one has the jobs."""
    push(redis, "1", "2", "3")
    assert jid(take(child)) == "1"
    take_away(connection)
    redis.delete(LIST)
    push(redis, "4")
    suspend(monkeypatch)
    assert jid(take(child)) == "4"
    assert losses.ran_twice() == {}
    assert sorted(map(jid, child.leases.units().values())) == ["1", "4"]


@pytest.mark.parametrize("at_once", [False, True])
def test_leases_in_doubt_are_compared_once_for_all(
    child: ProcessorThreads,
    losses: LostLeases,
    redis: Redis,
    monkeypatch: pytest.MonkeyPatch,
    at_once: bool,
) -> None:
    """Each time would cost a new connection."""
    push(redis, "0", "1", "2")
    assert jid(take(child)) == "0"
    suspend(monkeypatch)
    before = connections(redis)
    threads = [threading.Thread(target=take, args=[child]) for _ in range(2)]
    for thread in threads:
        thread.start()
        if not at_once:
            thread.join(20)
    for thread in threads:
        thread.join(20)
    assert len(child.leases.units()) == 3
    assert not child.leases.count().ready
    assert connections(redis) == before + 1


def connections(redis: Redis) -> int:
    """How many the server has taken so far."""
    found: Any = redis.info("stats")
    return int(found["total_connections_received"])


def jid(unit: UnitOfWork) -> str:
    return str(json.loads(unit.payload)["jid"])
