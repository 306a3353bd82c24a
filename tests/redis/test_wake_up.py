"""What a push costs Redis while a child waits for it, and what may change between the two."""

from __future__ import annotations

from typing import Any

from redis import Redis

from tests.redis.in_process_child import ProcessorThreads, is_waiting
from tests.redis.test_fetcher import INFLIGHT, Gate, push
from tests.support.server import Server
from tests.support.waiting import wait_until

PUSHES = 5


def calls(redis: Redis, command: str) -> int:
    found: Any = redis.info("commandstats")
    return int(found.get(f"cmdstat_{command}", {"calls": 0})["calls"])


def wait_idle(child: ProcessorThreads, redis: Redis) -> None:
    """Until it waits for a push, and Redis has heard of all that it did."""
    wait_until(
        lambda: not redis.hlen(INFLIGHT) and is_waiting(child.fetcher), what="a child that waits"
    )


def test_a_push_registers_keys_once(redis_server: Server, redis: Redis) -> None:
    """The fetch that a report leads to registers nothing: it would read the report first, and the
    next fetch has to register in any case."""
    with ProcessorThreads(redis_server.url) as child:
        wait_idle(child, redis)
        before = calls(redis, "client|caching")
        for number in range(PUSHES):
            push(redis, number)
            child.wait_runs(number + 1)
            wait_idle(child, redis)
        # More only where a machine that stands still has cost the connection.
        assert PUSHES <= calls(redis, "client|caching") - before < 2 * PUSHES


def test_a_report_that_brings_nothing_is_followed_by_a_registration(
    redis_server: Server, redis: Redis
) -> None:
    with ProcessorThreads(redis_server.url) as child:
        for number in range(PUSHES):
            wait_idle(child, redis)
            with redis.pipeline() as together:  # gone before the child can look
                together.lpush("queue:q", "gone")
                together.delete("queue:q")
                together.execute()
            wait_idle(child, redis)
            push(redis, number)
            child.wait_runs(number + 1)


def test_a_new_process_limit_holds_for_the_next_wake_up(redis_server: Server, redis: Redis) -> None:
    """The fetch for the next wake-up was made before there was a rule to count for."""
    gate = Gate()
    with ProcessorThreads(redis_server.url, gate, concurrency=4) as child:
        wait_idle(child, redis)
        with redis.pipeline() as together:
            together.hset("{queue:q}:control", "process_limit", 1)
            together.hincrby("forkq:controlled", "q", 1)
            together.lpush("queue:q", *range(4))
            together.execute()
        gate.wait_for(1)
        wait_until(lambda: is_waiting(child.fetcher), what="a child that waits")
        assert redis.hlen(INFLIGHT) == 1
        gate.open()
        child.wait_runs(4)
