"""A child that lists more queues than one fetch offers: strict order, wake-ups and rules hold."""

from __future__ import annotations

import threading
from functools import partial

from redis import Redis

from forkq.limits.rules import Rules
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from tests.redis.in_process_child import ProcessorThreads
from tests.redis.test_fetcher import AT_ONCE, Gate, commands, push
from tests.redis.test_limits import wait_idle
from tests.support.server import Server
from tests.support.waiting import wait_until

KEYS = Keys()
# Not in alphabetical order: strict order is that of the list.
NAMES = [f"q{number:03}" for number in reversed(range(300))]
QUEUES = dict.fromkeys(NAMES, 0)


def test_jobs_come_in_the_order_of_the_list(redis: Redis, redis_server: Server) -> None:
    served = [NAMES[number] for number in (0, 1, 63, 64, 150, 299)]
    for name in reversed(served):
        push(redis, name, queue=name)
    with ProcessorThreads(redis_server.url, queues=QUEUES, concurrency=1) as child:
        child.wait_runs(len(served))
        assert [payload.decode() for payload in child.order] == served


def test_a_push_wakes_only_its_queue(redis: Redis, redis_server: Server) -> None:
    with ProcessorThreads(redis_server.url, queues=QUEUES) as child:
        for number, name in enumerate([NAMES[-1], NAMES[0], NAMES[150], NAMES[150]]):
            wait_idle(child)
            before = commands(redis)
            push(redis, name, queue=name)
            child.wait_runs(number + 1, deadline=AT_ONCE)
            wait_idle(child)
            assert commands(redis) - before < 100


def test_a_job_in_a_higher_queue_comes_before_those_of_a_lower_one(
    redis: Redis, redis_server: Server
) -> None:
    """The higher queue sleeps when its job comes, and the lower one has jobs all the time. One more
    fetch may leave before the child has read that there is such a job."""
    begun: list[bytes] = []
    may_end = threading.Semaphore(0)

    def perform(unit: UnitOfWork) -> None:
        begun.append(unit.payload)
        assert may_end.acquire(timeout=30)

    def only_the_running_job_is_leased(count: int) -> bool:
        left = redis.llen(KEYS.queue(NAMES[-1])) + redis.llen(KEYS.queue(NAMES[10]))
        return len(begun) == count and left == 7 - count

    with ProcessorThreads(redis_server.url, perform, queues=QUEUES, concurrency=1) as child:
        wait_idle(child)
        push(redis, *["low"] * 6, queue=NAMES[-1])
        wait_until(lambda: begun, what="the first job")
        push(redis, "high", queue=NAMES[10])
        for count in (1, 2):
            settled = partial(only_the_running_job_is_leased, count)
            wait_until(settled, what="jobs leased ahead to go back")
            may_end.release()
        wait_until(lambda: len(begun) >= 3, what="the third job")
        assert b"high" in begun[:3]
        may_end.release(7)
        child.wait_runs(7)


def test_rules_and_pauses_hold_for_each_queue(redis: Redis, redis_server: Server) -> None:
    gate, rules = Gate(), {NAMES[5]: Rules(limit=2), NAMES[200]: Rules(limit=1)}
    redis.sadd(KEYS.paused, NAMES[100])
    for name in (NAMES[5], NAMES[100], NAMES[200]):
        push(redis, *range(5), queue=name)
    with ProcessorThreads(
        redis_server.url, gate, queues=QUEUES, concurrency=8, rules=rules
    ) as child:
        gate.wait_for(3)
        wait_idle(child)
        taken = [redis.hlen(KEYS.inflight(NAMES[number])) for number in (5, 100, 200)]
        assert taken == [2, 0, 1]
        gate.open()
        child.wait_runs(10)
        redis.delete(KEYS.paused)
        child.wait_runs(15)


def test_without_tracking_the_whole_list_is_fetched(own_server: Server) -> None:
    redis = own_server.client()
    own_server.cli("ACL", "SETUSER", "default", "-client|tracking")
    push(redis, 1, queue=NAMES[-1])
    with ProcessorThreads(own_server.url, queues=QUEUES) as child:
        child.wait_runs(1)
        push(redis, 1, queue=NAMES[0])
        child.wait_runs(2)


def test_a_blocking_queue_anywhere_in_the_list_holds_up_the_later_ones(
    redis: Redis, redis_server: Server
) -> None:
    gate, rules = Gate(), {NAMES[10]: Rules(blocking=True)}
    with ProcessorThreads(
        redis_server.url, gate, queues=QUEUES, concurrency=4, rules=rules
    ) as child:
        wait_idle(child)
        push(redis, "first", queue=NAMES[10])
        gate.wait_for(1)
        push(redis, "later", queue=NAMES[250])
        push(redis, "before", queue=NAMES[0])
        gate.wait_for(2)
        assert redis.hlen(KEYS.inflight(NAMES[250])) == 0
        gate.open()
        child.wait_runs(3)
