"""The rules of queues through real fetchers: limits, pause, blocking, rates, patterns, turns."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import OutOfMemoryError

from forkq.limits.rules import Rate, Rules
from forkq.store.connection import RedisConnection
from forkq.store.crash_record import ProcessDeath
from forkq.store.dead_set import DeadSetLimits
from forkq.store.recovery import Recovery
from forkq.store.scripts import BURY, REQUEUE, RETRY, Script
from forkq.store.steps import carry_out
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork, lease
from tests.redis.in_process_child import ProcessorThreads, is_waiting
from tests.redis.test_fetcher import AT_ONCE, Gate, commands, push
from tests.support.server import Server
from tests.support.waiting import wait_until

KEYS = Keys()
ONE = {"q": Rules(limit=1)}


def control(redis: Redis, queue: str, **fields: str | int) -> None:
    """Changes rules of a queue at run time, as the command does."""
    for field, value in fields.items():
        redis.hset(KEYS.control(queue), field, value)
    redis.hincrby(KEYS.controlled, queue, 1)


def wait_idle(*children: ProcessorThreads) -> None:
    """Waits until each of these children waits for a job."""
    wait_until(
        lambda: all(is_waiting(child.fetcher) for child in children), what="the children to wait"
    )


def owners(count: int) -> list[str]:
    return [f"vm:{number}:0123456789ab" for number in range(1, count + 1)]


class ConcurrencyCounter:
    """Work that counts how many processors run it at the same time."""

    def __init__(self, seconds: float) -> None:
        self.most = 0
        self._seconds = seconds
        self._now = 0
        self._lock = threading.Lock()

    def __call__(self, unit: UnitOfWork) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        threading.Event().wait(self._seconds)
        with self._lock:
            self._now -= 1


def test_no_more_jobs_run_at_a_time_than_the_limit_allows(
    redis: Redis, redis_server: Server
) -> None:
    """Four children of three processors each: at most 2 jobs at a time, and 2 at some time."""
    work = ConcurrencyCounter(0.002)
    push(redis, *range(300))
    with ExitStack() as stack:
        children = [
            stack.enter_context(
                ProcessorThreads(redis_server.url, work, concurrency=3, identity=name,
                     rules={"q": Rules(limit=2)})
            )
            for name in owners(4)
        ]  # fmt: skip
        wait_until(lambda: sum(len(child.order) for child in children) == 300, what="300 runs")
    assert work.most == 2


def test_a_process_limit_holds_in_each_child(redis: Redis, redis_server: Server) -> None:
    gates = [Gate(), Gate()]
    push(redis, *range(10))
    rules = {"q": Rules(process_limit=2)}
    with ExitStack() as stack:
        for gate, name in zip(gates, owners(2), strict=True):
            stack.enter_context(
                ProcessorThreads(redis_server.url, gate, concurrency=4, identity=name, rules=rules)
            )
            gate.wait_for(2)
        assert redis.hlen(KEYS.inflight("q")) == 4
        for gate in gates:
            gate.open()
    assert redis.hlen(KEYS.inflight("q")) == 0


def test_a_full_queue_does_not_delay_a_lower_one(redis: Redis, redis_server: Server) -> None:
    gate = Gate(*(f"low {number}".encode() for number in range(50)))
    push(redis, *(f"high {number}" for number in range(5)), queue="high")
    push(redis, *(f"low {number}" for number in range(50)), queue="low")
    queues, rules = {"high": 0, "low": 0}, {"high": Rules(limit=1)}
    with ProcessorThreads(
        redis_server.url, gate, queues=queues, concurrency=2, rules=rules
    ) as child:
        child.wait_runs(50)
        assert gate.waiting == [b"high 0"]
        gate.open()
        child.wait_runs(55)


@pytest.mark.parametrize("how", ["limit", "control", "pause", "rate"])
def test_a_child_that_waits_is_woken_by_what_it_waits_for(
    redis: Redis, redis_server: Server, how: str
) -> None:
    rules = {"q": Rules(limit=0)} if how == "limit" else {}
    if how == "control":
        control(redis, "q", limit=0)
    elif how == "pause":
        redis.sadd(KEYS.paused, "q")
    elif how == "rate":
        control(redis, "q", rate="0/1")
    with ProcessorThreads(redis_server.url, rules=rules) as child:
        push(redis, "job")
        wait_idle(child)
        assert redis.llen("queue:q") == 1
        began = time.monotonic()
        if how == "pause":
            redis.srem(KEYS.paused, "q")
        else:
            control(redis, "q", **{"rate": "none"} if how == "rate" else {"limit": "none"})
        child.wait_runs(1, deadline=AT_ONCE)
        assert time.monotonic() - began < AT_ONCE


def test_a_changed_limit_wins_over_the_configs_and_reset_goes_back(
    redis: Redis, redis_server: Server
) -> None:
    gate = Gate()
    control(redis, "q", limit=3)
    push(redis, *range(10))
    with ProcessorThreads(redis_server.url, gate, concurrency=5, rules=ONE) as child:
        gate.wait_for(3)
        wait_idle(child)
        assert redis.hlen(KEYS.inflight("q")) == 3
        redis.delete(KEYS.control("q"))
        redis.hdel(KEYS.controlled, "q")
        control(redis, "q", limit=4)
        gate.wait_for(4)
        gate.open()


def test_a_freed_slot_wakes_the_child_that_waits_for_it(redis: Redis, redis_server: Server) -> None:
    """The child that held the permit is quiet, so the other child takes the job at once."""
    gate = Gate()
    push(redis, 1, 2)
    first, second = owners(2)
    holder = ProcessorThreads(redis_server.url, gate, identity=first, rules=ONE)
    with holder:
        gate.wait_for(1)
        with ProcessorThreads(redis_server.url, identity=second, rules=ONE) as other:
            wait_idle(other)
            holder.fetcher.quiet()
            gate.open()
            other.wait_runs(1, deadline=AT_ONCE)


def test_a_dead_owners_slots_come_back_with_its_jobs(redis: Redis, redis_server: Server) -> None:
    """Recovery moves the leases and wakes the child that waits for a permit."""
    push(redis, "job")
    dead, living = owners(2)
    assert ProcessorThreads(redis_server.url, identity=dead, rules=ONE).take() is not None
    with ProcessorThreads(redis_server.url, identity=living, rules=ONE) as child:
        push(redis, "next")
        wait_idle(child)
        recover(redis_server, ["q"], dead)
        child.wait_runs(2, deadline=AT_ONCE)


@pytest.mark.parametrize("script", [RETRY, BURY, REQUEUE], ids=lambda script: str(script.name))
@pytest.mark.parametrize("waits_for", ["full", "busy"])
def test_a_lease_removed_by_another_script_wakes_the_child_that_waits(
    redis: Redis, redis_server: Server, script: Script, waits_for: str
) -> None:
    """A retry, a burial and a requeue: for a permit, and for the last job of a blocking queue."""
    queues = {"q": 0} if waits_for == "full" else {"q": 0, "later": 0}
    rules = ONE if waits_for == "full" else {"q": Rules(blocking=True, limit=1)}
    push(redis, "job")
    holder, living = owners(2)
    unit = ProcessorThreads(redis_server.url, identity=holder, rules=ONE).take()
    assert unit is not None
    with ProcessorThreads(redis_server.url, identity=living, rules=rules, queues=queues) as child:
        push(redis, "next", queue=list(queues)[-1])
        wait_until(lambda: redis.exists(KEYS.awaited("q")), what="the mark")
        wait_idle(child)
        assert child.order == []
        settle(redis_server, script, lease(holder, unit.sequence))
        child.wait_runs(2 if script is REQUEUE else 1, deadline=AT_ONCE)
    assert b"next" in child.order


def settle(server: Server, script: Script, name: str) -> None:
    """What the owner's processor does with a failed job, or its master at the deadline."""
    connection = RedisConnection(server.url)
    connection.connect()
    if script is REQUEUE:
        keys = (KEYS.queues, *KEYS.of_returns(["q"]))
        connection.script(script, keys, (name.rpartition("/")[0] + "/", 0, 1000))
    else:
        keys = (KEYS.inflight("q"), KEYS.dead, KEYS.awaited("q"), KEYS.bucket("q"))
        bounds = (1000,) if script is BURY else ()
        connection.script(script, keys, (name, 1, "payload", 0, *bounds))
    connection.close()


def test_a_process_limit_set_at_run_time_holds_and_its_end_is_noticed(
    redis: Redis, redis_server: Server
) -> None:
    """The child counts its jobs only after the script has asked it to."""
    gate = Gate()
    push(redis, *range(10))
    with ProcessorThreads(redis_server.url, gate, concurrency=6) as child:
        gate.wait_for(6)
        control(redis, "q", process_limit=2)
        gate.open()
        child.wait_runs(10)
        gate = child._work = Gate()
        push(redis, *range(10))
        gate.wait_for(2)
        wait_idle(child)
        wait_until(lambda: redis.hlen(KEYS.inflight("q")) == 2, what="the acknowledgements")
        assert len(gate.waiting) == 2
        control(redis, "q", process_limit="none")
        gate.wait_for(6)
        gate.open()
        child.wait_runs(20)


def test_a_child_that_keeps_its_slot_sends_one_fetch_per_job(
    redis: Redis, redis_server: Server
) -> None:
    """A registration lasts until its key changes: until then no other command is sent."""
    push(redis, *range(200))
    with ProcessorThreads(
        redis_server.url, ConcurrencyCounter(0.001), concurrency=3, rules=ONE
    ) as child:
        child.wait_runs(50)
        before, done = cached(redis), len(child.order)
        child.wait_runs(150)
        assert (cached(redis) - before) / (len(child.order) - done) < 0.2


def cached(redis: Redis) -> int:
    """How often the children registered keys."""
    found: Any = redis.info("commandstats")
    row = found.get("cmdstat_client|caching") or found.get("cmdstat_client")  # so in Redis 6.2
    return int(row["calls"])


def recover(server: Server, queues: list[str], identity: str) -> None:
    connection = RedisConnection(server.url)
    connection.connect()
    recovery = Recovery(DeadSetLimits(KEYS))
    carry_out(connection, recovery.recover(queues, identity, ProcessDeath(signal=9), last_begun=0))
    connection.close()


def test_hundreds_of_kills_leak_no_permit(redis: Redis, redis_server: Server) -> None:
    """Children die while they hold jobs; some die before they have read the reply of a fetch."""
    push(redis, *range(40))
    dice = random.Random(4)
    for kill in range(300):
        identity = f"vm:{kill}:0123456789ab"
        victim = ProcessorThreads(redis_server.url, identity=identity, concurrency=4,
                      rules={"q": Rules(limit=3)})  # fmt: skip
        if dice.random() < 0.5:
            assert victim.take() is not None
        else:
            victim.fetch.channel.open()
            victim.fetcher._request()
        victim.fetch.channel.disconnect(victim.leases)
        recover(redis_server, ["q"], identity)
        if kill % 100 == 99:
            wait_until(
                lambda: redis.info("clients")["connected_clients"] < 20,
                what="the end of their connections",
            )
            recover(
                redis_server, ["q"], identity
            )  # a fetch that the server ran after the child had died
    assert redis.hlen(KEYS.inflight("q")) == 0
    assert redis.llen("queue:q") == 40


def test_a_blocking_queue_delays_later_ones_until_its_last_job_has_ended(
    redis: Redis, redis_server: Server
) -> None:
    gate = Gate(b"after", b"named")
    push(redis, "first", queue="a")
    push(redis, "after", queue="b")
    with ProcessorThreads(redis_server.url, gate, queues={"a": 0, "b": 0},
              rules={"a": Rules(blocking=True)}) as child:  # fmt: skip
        gate.wait_for(1)
        wait_idle(child)
        assert redis.llen("queue:b") == 1
        gate.open()
        child.wait_runs(2, deadline=AT_ONCE)
    assert child.order == [b"first", b"after"]


def test_a_queue_that_blocks_named_queues_does_not_delay_others(
    redis: Redis, redis_server: Server
) -> None:
    gate = Gate(b"b", b"c")
    for name in "abc":
        push(redis, name, queue=name)
    queues, rules = dict.fromkeys("abc", 0), {"a": Rules(blocking=("c*",))}
    with ProcessorThreads(redis_server.url, gate, queues=queues, rules=rules) as child:
        child.wait_runs(1)
        assert child.order == [b"b"]
        gate.open()
        child.wait_runs(3)


def test_a_saturated_limit_costs_redis_one_fetch_per_job(
    redis: Redis, redis_server: Server
) -> None:
    """Nine children sleep while one works on the queue. Under three fetches per job in all."""
    jobs, work = 300, ConcurrencyCounter(0.001)
    push(redis, *range(jobs))
    with ExitStack() as stack:
        children = [
            stack.enter_context(ProcessorThreads(redis_server.url, work, identity=name, rules=ONE))
            for name in owners(10)
        ]
        wait_until(lambda: sum(len(child.order) for child in children) > 20, what="a steady state")
        before, done = fetches(redis), sum(len(child.order) for child in children)
        wait_until(
            lambda: sum(len(child.order) for child in children) >= jobs - 10, what="the rest"
        )
        each = (fetches(redis) - before) / (sum(len(child.order) for child in children) - done)
    assert work.most == 1
    assert each < 3


def fetches(redis: Redis) -> int:
    found: int = redis.info("commandstats")["cmdstat_evalsha"]["calls"]
    return found


def test_a_rate_allows_its_burst_and_then_evenly_spaced_starts(
    redis: Redis, redis_server: Server
) -> None:
    """50 a second, at most 5 at once: after any time t never more than 50 t + 5."""
    push(redis, *range(1000))
    times: list[float] = []
    rules = {"q": Rules(rate=Rate(50, 1, burst=5))}
    began = time.monotonic()
    with ProcessorThreads(redis_server.url, lambda unit: times.append(time.monotonic()),
              concurrency=3, rules=rules) as child:  # fmt: skip
        child.wait_runs(60)
        # Only while jobs start: the key expires a tenth of a second after the last one.
        wait_until(lambda: redis.pttl(KEYS.bucket("q")) > 0, what="a bucket that expires")
    for number, moment in enumerate(sorted(times), 1):  # one thread may tell after the next
        assert number <= 50 * (moment - began) + 5


def test_a_child_that_waits_for_a_token_does_not_poll(redis: Redis, redis_server: Server) -> None:
    push(redis, 1, 2)
    with ProcessorThreads(
        redis_server.url, rules={"q": Rules(rate=Rate(1, 3600, burst=1))}
    ) as child:
        child.wait_runs(1)
        wait_idle(child)
        before = commands(redis)
        threading.Event().wait(1.0)  # waits on purpose: nothing may happen
        assert commands(redis) - before <= 3


def test_a_child_that_wants_no_job_does_not_look_for_a_token(
    redis: Redis, redis_server: Server
) -> None:
    """As an ordinary child does while a suspect runs in it."""
    push(redis, *range(100))
    with ProcessorThreads(redis_server.url, rules={"q": Rules(rate=Rate(20, 1, burst=1))}) as child:
        child.wait_runs(2)
        child.fetcher.pause(on=True)
        wait_idle(child)
        before = commands(redis)
        threading.Event().wait(1.0)  # waits on purpose: nothing may happen
        assert commands(redis) - before <= 5


def test_a_changed_rate_wakes_the_child_that_waits_for_a_token(
    redis: Redis, redis_server: Server
) -> None:
    push(redis, 1, 2)
    with ProcessorThreads(
        redis_server.url, rules={"q": Rules(rate=Rate(1, 3600, burst=1))}
    ) as child:
        child.wait_runs(1)
        wait_idle(child)
        control(redis, "q", rate="100/1")
        child.wait_runs(2, deadline=AT_ONCE)


# Patterns


def test_a_pattern_follows_new_queues_while_running(redis: Redis, redis_server: Server) -> None:
    with ProcessorThreads(redis_server.url, queues={"tenant-*": 0}) as child:
        for number in range(20):
            wait_idle(child)
            began = time.monotonic()
            redis.sadd(KEYS.queues, f"tenant-{number}")
            push(redis, number, queue=f"tenant-{number}")
            child.wait_runs(number + 1, deadline=AT_ONCE)
            assert time.monotonic() - began < AT_ONCE


@pytest.mark.parametrize("fair", [False, True])
def test_one_push_among_many_sleeping_queues_wakes_only_its_queue(
    redis: Redis, redis_server: Server, fair: bool
) -> None:
    names = [f"tenant-{number:03}" for number in range(300)]
    redis.sadd(KEYS.queues, *names)
    rules = {"tenant-*": Rules(fair=fair)}
    with ProcessorThreads(redis_server.url, queues={"tenant-*": 0, "low": 0}, rules=rules) as child:
        for number, name in enumerate([names[-1], "low", names[0], names[150], names[150]]):
            wait_idle(child)
            before = commands(redis)
            push(redis, name, queue=name)
            child.wait_runs(number + 1, deadline=AT_ONCE)
            wait_idle(child)
            assert commands(redis) - before < 100


def test_paused_queues_do_not_hide_the_queues_after_them(
    redis: Redis, redis_server: Server
) -> None:
    names = [f"tenant-{number:03}" for number in range(200)]
    redis.sadd(KEYS.queues, *names)
    redis.sadd(KEYS.paused, *names[:190])
    for name in names:
        push(redis, name, queue=name)
    with ProcessorThreads(redis_server.url, queues={"tenant-*": 0}) as child:
        child.wait_runs(10)
        redis.delete(KEYS.paused)
        child.wait_runs(200)


def test_a_patterns_limit_holds_for_each_of_its_queues(redis: Redis, redis_server: Server) -> None:
    gate = Gate()
    for name in ("tenant-a", "tenant-b"):
        redis.sadd(KEYS.queues, name)
        push(redis, *range(5), queue=name)
    with ProcessorThreads(redis_server.url, gate, queues={"tenant-*": 0}, concurrency=8,
              rules={"tenant-*": Rules(limit=2)}) as child:  # fmt: skip
        gate.wait_for(4)
        wait_idle(child)
        assert [redis.hlen(KEYS.inflight(f"tenant-{x}")) for x in "ab"] == [2, 2]
        gate.open()
        child.wait_runs(10)


def test_fair_queues_take_turns_job_by_job(redis: Redis, redis_server: Server) -> None:
    for name in "abc":
        redis.sadd(KEYS.queues, f"tenant-{name}")
        push(redis, *[name] * 30, queue=f"tenant-{name}")
    with ProcessorThreads(redis_server.url, queues={"tenant-*": 0}, concurrency=1,
              rules={"tenant-*": Rules(fair=True)}) as child:  # fmt: skip
        child.wait_runs(90)
    for at in range(0, 90, 3):
        assert Counter(child.order[at : at + 3]) == {b"a": 1, b"b": 1, b"c": 1}


def test_jobs_of_a_dead_child_are_found_in_all_queues_of_its_pattern(
    redis: Redis, redis_server: Server
) -> None:
    names = [f"tenant-{number}" for number in range(700)]
    redis.sadd(KEYS.queues, *names)
    push(redis, "last", queue=names[-1])
    push(redis, "first", queue=names[0])
    (dead,) = owners(1)
    child = ProcessorThreads(redis_server.url, identity=dead, queues={"tenant-*": 0})
    assert child.take() is not None
    child.fetch.channel.disconnect(child.leases)
    recover(redis_server, ["tenant-*"], dead)
    assert [redis.hlen(KEYS.inflight(name)) for name in names] == [0] * 700
    assert [redis.llen(KEYS.queue(name)) for name in (names[0], names[-1])] == [1, 1]


def test_a_child_of_a_pattern_requeues_each_job_to_its_own_queue(
    redis: Redis, redis_server: Server
) -> None:
    for name in ("tenant-a", "tenant-b"):
        redis.sadd(KEYS.queues, name)
        push(redis, name, queue=name)
    child = ProcessorThreads(redis_server.url, queues={"tenant-*": 0})
    assert child.take() is not None
    child.fetcher.quiet()
    assert child.fetcher.give_back()
    assert [redis.lrange(KEYS.queue(f"tenant-{x}"), 0, -1) for x in "ab"] == [
        [b"tenant-a"],
        [b"tenant-b"],
    ]


# A server that refuses commands


def test_on_a_full_server_every_rule_still_holds(own_server: Server) -> None:
    """No client can push, but children take jobs and tokens, and marks wake those that wait."""
    redis = own_server.client()
    for name in "ab":
        push(redis, *range(20), queue=name)
    own_server.cli("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(OutOfMemoryError):
        redis.lpush("queue:a", "refused")
    work = ConcurrencyCounter(0.001)
    rules = {"a": Rules(limit=1, rate=Rate(200, 1)), "b": Rules(limit=1, blocking=("a",))}
    with ExitStack() as stack:
        children = [
            stack.enter_context(
                ProcessorThreads(
                    own_server.url, work, identity=name, queues={"b": 0, "a": 0}, rules=rules
                )
            )
            for name in owners(2)
        ]
        wait_until(lambda: sum(len(child.order) for child in children) == 40, what="40 runs")
    assert work.most == 1
    assert all(redis.hlen(KEYS.inflight(name)) == 0 for name in "ab")


def test_without_tracking_patterns_and_limits_are_polled(own_server: Server) -> None:
    redis = own_server.client()
    own_server.cli("ACL", "SETUSER", "default", "-client|tracking")
    work = ConcurrencyCounter(0.002)
    with ExitStack() as stack:
        children = [
            stack.enter_context(
                ProcessorThreads(own_server.url, work, identity=name, queues={"tenant-*": 0},
                     rules={"tenant-*": Rules(limit=1)})
            )
            for name in owners(2)
        ]  # fmt: skip
        for number in range(100):
            redis.sadd(KEYS.queues, f"tenant-{number:02}")
        push(redis, *range(20), queue="tenant-99")
        wait_until(lambda: sum(len(child.order) for child in children) == 20, what="20 runs")
    assert work.most == 1
    assert not children[0].fetch.channel.tracks


def test_two_patterns_with_many_queues_are_emptied(redis: Redis, redis_server: Server) -> None:
    """The queues of the first pattern fill the offer, so the second has no queue in it at first."""
    for number in range(100):
        redis.sadd(KEYS.queues, f"tenant-{number}", f"bulk-{number}")
        push(redis, number, queue=f"tenant-{number}")
        push(redis, number, queue=f"bulk-{number}")
    with ProcessorThreads(redis_server.url, queues={"tenant-*": 0, "bulk-*": 0}) as child:
        child.wait_runs(200)
    assert redis.keys("*:inflight") == []


def test_a_change_during_a_fetch_of_a_pattern_ends_no_processor(
    redis: Redis, redis_server: Server
) -> None:
    """Every pause, resume, changed rule and push wakes queues that are in no offer."""
    with ProcessorThreads(redis_server.url, queues={"critical": 0, "tenant-*": 0}) as child:
        for number in range(600):
            queue = f"tenant-{number % 7}"
            redis.sadd(KEYS.queues, queue)
            push(redis, number, queue=queue)
            push(redis, number, queue="critical")
            (redis.sadd if number % 2 else redis.srem)(KEYS.paused, "another")
        child.wait_runs(1200)
    assert redis.keys("*:inflight") == []


@pytest.mark.parametrize("why", ["full", "paused", "closed", "dry"])
def test_a_pattern_blocks_also_while_its_queue_gives_nothing(
    redis: Redis, redis_server: Server, why: str
) -> None:
    """Its jobs in progress block, even if no more can be taken from it."""
    redis.sadd(KEYS.queues, "tenant-a")
    redis.hset(KEYS.inflight("tenant-a"), lease("vm:9:0123456789ab", 1), b"x")
    rules = Rules(blocking=True, limit=1 if why == "full" else None)
    if why == "paused":
        redis.sadd(KEYS.paused, "tenant-a")
    elif why == "closed":
        control(redis, "tenant-a", limit=0)
    elif why == "dry":
        control(redis, "tenant-a", rate="1/1000")
        redis.set(KEYS.bucket("tenant-a"), f"0 {time.time() * 1e6:.0f}")
    push(redis, 1, queue="tenant-a")
    push(redis, 2, queue="low")
    queues, ruled = {"high": 0, "tenant-*": 0, "low": 0}, {"tenant-*": rules}
    with ProcessorThreads(redis_server.url, queues=queues, rules=ruled) as child:
        wait_idle(child)
        for number in range(3):  # each job makes the child fetch again
            push(redis, number, queue="high")
            child.wait_runs(number + 1)
            wait_idle(child)
        assert redis.llen("queue:low") == 1
        redis.delete(KEYS.inflight("tenant-a"), KEYS.awaited("tenant-a"))
        wait_until(lambda: redis.llen("queue:low") == 0, what="the end of the block")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("{queue:q}:bucket", "abc"),
        ("{queue:q}:bucket", f"0 {9e15:.0f}"),
        ("paused", "a string"),
        ("forkq:controlled", "a string"),
    ],
)
def test_a_damaged_value_stops_no_queue(
    redis: Redis, redis_server: Server, key: str, value: str
) -> None:
    redis.set(key, value)
    push(redis, 1)
    push(redis, 2, queue="other")
    rules = {"q": Rules(rate=Rate(5, 1))}
    with ProcessorThreads(redis_server.url, queues={"q": 0, "other": 0}, rules=rules) as child:
        child.wait_runs(2)


def test_an_absurd_rate_at_run_time_stops_no_queue(redis: Redis, redis_server: Server) -> None:
    control(redis, "q", rate="1/" + "9" * 22, burst="9" * 400)
    push(redis, 1)
    push(redis, 2, queue="other")
    with ProcessorThreads(redis_server.url, queues={"q": 0, "other": 0}) as child:
        child.wait_runs(2)


def test_without_tracking_the_queues_after_a_long_pattern_are_fetched_too(
    own_server: Server,
) -> None:
    redis = own_server.client()
    own_server.cli("ACL", "SETUSER", "default", "-client|tracking")
    for number in range(300):
        redis.sadd(KEYS.queues, f"tenant-{number:03}")
    push(redis, 1, queue="low")
    with ProcessorThreads(own_server.url, queues={"tenant-*": 0, "low": 0}) as child:
        child.wait_runs(1)


def test_a_slot_freed_by_a_call_that_then_failed_wakes_the_child_that_waits(
    own_server: Server,
) -> None:
    """The script removes the lease first. The error that follows must not prevent the wake-up."""
    gate, redis = Gate(), own_server.client()
    own_server.cli("ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all")
    push(redis, 1, queue="a")
    rules = {"a": Rules(limit=1)}
    holder, waiter = owners(2)
    url = own_server.url.replace("//", "//limited:secret@")
    with ProcessorThreads(
        url, gate, queues={"b": 0, "a": 0}, rules=rules, identity=holder
    ) as first:
        gate.wait_for(1)
        push(redis, 2, queue="a")
        with ProcessorThreads(
            own_server.url, queues={"a": 0}, rules=rules, identity=waiter
        ) as second:
            wait_idle(first, second)
            own_server.cli("ACL", "SETUSER", "limited", "-ltrim")
            gate.open()
            second.wait_runs(1)
            own_server.cli("ACL", "SETUSER", "limited", "+ltrim")
