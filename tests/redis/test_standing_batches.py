"""The leader looks for the members of batches that stand still: one that is nowhere has ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import api, middleware, registry
from forkq.clock.other_shards import OtherShards
from forkq.clock.standing_batches import StandingBatches
from forkq.store.connection import RedisConnection
from forkq.wire.keys import Keys
from forkq.wire.payload import dumps
from tests.redis.in_process_child import InProcessChild
from tests.redis.in_process_clock import InProcessClock
from tests.redis.prefix_shards import config_at
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.waiting import wait_until

KEYS, QUEUE = Keys(), "queue:default"
INFLIGHT = "{queue:default}:inflight"
ran: list[Any] = []


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    monkeypatch.setattr(middleware, "pushes", middleware.Chain())
    ran.clear()


@pytest.fixture
def leader(client: Any, redis_server: Server) -> Iterator[StandingBatches]:
    connection = RedisConnection(redis_server.url)
    connection.connect()
    yield StandingBatches(KEYS, connection, OtherShards(config_at(redis_server.url)), RecordedLog())
    connection.close()


def look(leader: StandingBatches, times: int = 1) -> None:
    """So many looks, without the pause of ten minutes between them."""
    for _ in range(times):
        leader.load(watch=False)
        assert leader.next_due() is not None
        leader.work()
        while leader._steps is not None:
            leader.work()


def made(*numbers: int, **more: Any) -> api.Batch:
    with forkq.Batch(**more) as batch:
        load.perform_bulk([[number] for number in numbers])
    return api.Batch(batch.bid)


def counts(batch: api.Batch) -> tuple[int, int, int, int]:
    report = batch.report()
    return report.total, report.waiting, report.done, report.otherwise


load: Any = None


@pytest.fixture(autouse=True)
def jobs(clean: None) -> None:
    global load  # noqa: PLW0603 - each test registers its jobs anew
    load = forkq.job(name="Load")(ran.append)
    forkq.job(name="Told")(ran.append)


def told(word: str) -> Any:
    return forkq.PreparedJob({"class": "Told", "args": [word]})


def test_a_member_that_is_nowhere_in_two_searches_has_ended_otherwise(
    leader: StandingBatches, redis: Redis
) -> None:
    batch = made(1, 2, 3, on_finish=told("finish"))
    redis.lpop(QUEUE)  # as Sidekiq's page deletes a job
    look(leader)  # notes its numbers
    look(leader)  # it stands still: the first search
    assert counts(batch) == (3, 3, 0, 0)
    look(leader)
    assert counts(batch) == (3, 2, 0, 1)
    redis.delete(QUEUE)
    look(leader, 3)
    assert counts(batch) == (3, 0, 0, 3)
    assert redis.zcard("schedule") == 1
    look(leader, 3)
    assert redis.zcard("schedule") == 1


def test_a_look_counts_the_batches_for_the_metrics(leader: StandingBatches, redis: Redis) -> None:
    def counted() -> dict[bytes, int]:
        found: Any = redis.hgetall("forkq:batches:counts")
        return {name: int(count) for name, count in found.items() if count != b"0"}

    made()
    made(1, 2)
    redis.delete(QUEUE)
    with forkq.Batch():
        with pytest.raises(ValueError, match="x"), forkq.Batch():
            raise ValueError("x")
        look(leader)
        assert counted() == {b"open": 1, b"broken": 1, b"waiting": 1, b"ended": 1}
    look(leader)
    assert counted() == {b"waiting": 1, b"standing": 1, b"broken": 1, b"ended": 1}
    redis.set("forkq:batches:counts", "another program's")
    look(leader)
    redis.delete("forkq:batches:counts")
    look(leader, 2)
    assert counted() == {b"standing": 1, b"broken": 1, b"ended": 2}


def test_members_that_wait_anywhere_are_found(leader: StandingBatches, redis: Redis) -> None:
    """In a queue, the schedule, the retries, a lease, among suspects, in a process of Sidekiq."""
    batch = made(1, 2, 3, 4, 5, 6)
    raws: list[Any] = [redis.lpop(QUEUE) for _ in range(5)]
    redis.zadd("schedule", {raws[0]: 9e9})
    redis.zadd("retry", {raws[1]: 9e9})
    redis.hset(INFLIGHT, "vm:1:0123456789ab/7", raws[2])
    redis.lpush(KEYS.suspects("default"), raws[3])
    redis.sadd("forkq:suspects", "default")
    redis.sadd("processes", "ruby:1:0123456789ab")
    redis.hset("ruby:1:0123456789ab", "info", "{}")
    work = dumps({"queue": "default", "payload": raws[4].decode(), "run_at": 1})
    redis.hset("ruby:1:0123456789ab:work", "t1", work)
    look(leader, 5)
    assert counts(batch) == (6, 6, 0, 0)


def test_a_batch_that_moves_on_is_not_searched(leader: StandingBatches, redis: Redis) -> None:
    batch = made(1, 2, 3)
    for number in range(2):
        redis.lpop(QUEUE)
        redis.hincrby(KEYS.batch(batch.bid), "total", 1)
        look(leader)
        assert not leader._missed, number


def test_a_member_that_turns_up_corrects_the_numbers_and_nothing_comes_twice(
    leader: StandingBatches, redis: Redis, redis_server: Server
) -> None:
    batch = made(1, 2, on_finish=told("finish"), on_success=told("success"))
    raw: Any = redis.lpop(QUEUE)
    with InProcessClock(redis_server.url), InProcessChild(redis_server.url):
        wait_until(lambda: counts(batch) == (2, 1, 1, 0), what="the end of the other one")
    look(leader, 3)
    assert counts(batch) == (2, 0, 1, 1)
    redis.lpush(QUEUE, raw)
    with InProcessClock(redis_server.url), InProcessChild(redis_server.url):
        wait_until(lambda: "success" in ran, what="the success")
    assert counts(batch) == (2, 0, 2, 0)
    assert sorted(map(str, ran)) == ["1", "2", "finish", "success"]


def test_a_batch_within_waits_for_its_own_members(leader: StandingBatches, redis: Redis) -> None:
    with forkq.Batch() as outer, forkq.Batch() as inner:
        load.perform_async(1)
    look(leader, 4)
    assert counts(api.Batch(outer.bid)) == (1, 1, 0, 0)
    redis.delete(QUEUE)
    look(leader, 3)
    assert counts(api.Batch(inner.bid)) == (1, 0, 0, 1)
    assert counts(api.Batch(outer.bid)) == (1, 0, 0, 1)


def test_a_callback_that_redis_refused_is_pushed_by_a_later_look(
    leader: StandingBatches, redis: Redis
) -> None:
    redis.set("schedule", "x")
    batch = made(on_finish=told("finish"))
    assert "finish" not in batch.report().fired
    redis.delete("schedule")
    look(leader)
    assert redis.zcard("schedule") == 1
    assert "finish" in batch.report().fired


def nested(**more: Any) -> tuple[api.Batch, api.Batch]:
    with forkq.Batch(on_finish=told("outer")) as outer, forkq.Batch(**more) as inner:
        load.perform_async(1)
    return api.Batch(outer.bid), api.Batch(inner.bid)


def test_a_batch_above_does_not_wait_for_a_callback_that_was_removed(
    leader: StandingBatches, redis: Redis, redis_server: Server
) -> None:
    outer, inner = nested(on_finish=told("finish"), on_success=told("success"))
    with InProcessChild(redis_server.url):
        wait_until(lambda: inner.report().fired, what="the end of the member")
    due: Any = redis.zrange("schedule", 0, -1)
    [removed] = [payload for payload in due if b'"finish"' in payload]
    redis.zrem("schedule", removed)  # as Sidekiq's page does
    look(leader, 2)
    assert counts(outer) == (1, 1, 0, 0)
    look(leader)
    assert counts(outer) == (1, 1, 0, 0)  # the other callback waits in the schedule
    with InProcessClock(redis_server.url), InProcessChild(redis_server.url):
        wait_until(lambda: "outer" in ran, what="the end of the batch above")
    assert counts(outer) == (1, 0, 0, 1)
    assert ran == [1, "success", "outer"]


def test_a_batch_above_does_not_wait_for_a_batch_that_is_gone(
    leader: StandingBatches, redis: Redis
) -> None:
    outer, inner = nested()
    redis.delete(KEYS.batch(inner.bid))
    look(leader, 3)
    assert counts(outer) == (1, 0, 0, 1)


def test_a_damaged_batch_keeps_no_other_one_waiting(leader: StandingBatches, redis: Redis) -> None:
    damaged, other = made(1), made(2)
    redis.delete(QUEUE)
    redis.lpush(KEYS.batch_ends(damaged.bid), "x")
    look(leader, 3)
    assert counts(other) == (1, 0, 0, 1)
    assert counts(damaged) == (1, 1, 0, 0)


def test_the_callbacks_of_many_batches_are_pushed_in_few_round_trips(
    leader: StandingBatches, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis.set("schedule", "x")
    for _ in range(120):
        made(on_finish=told("finish"))
    redis.delete("schedule")
    trips = 0
    pipeline = RedisConnection.pipeline

    def counted(self: RedisConnection, commands: Any) -> Any:
        nonlocal trips
        trips += self is leader._connection
        return pipeline(self, commands)

    monkeypatch.setattr(RedisConnection, "pipeline", counted)
    look(leader)
    assert redis.zcard("schedule") == 120
    assert trips < 20
    trips = 0
    look(leader)  # batches that lack nothing are only read, and counted
    assert trips <= 3


def test_nothing_is_asked_while_there_is_no_batch(leader: StandingBatches) -> None:
    leader.load(watch=False)
    assert leader.next_due() is None
