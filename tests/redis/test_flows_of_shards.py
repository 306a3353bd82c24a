"""Flows whose steps and callbacks are on other shards than the flow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, cast

import pytest
from redis import Redis

import forkq
from forkq import api, default_client, middleware, registry
from forkq.clock.due_jobs import DueJobMover
from forkq.clock.unfinished_flows import UnfinishedFlows
from forkq.features.flow.parts import taken_in
from forkq.sharded_client import ShardedClient
from forkq.store.connection import DamagedKey
from forkq.wire.payload import dumps, loads
from forkq.wire.times import now
from tests.redis.in_process_child import InProcessChild
from tests.redis.prefix_shards import DOWN, config_at
from tests.redis.test_batches_of_shards import FILES, KEYS, MAIL, World
from tests.redis.test_flows import clean as clean  # noqa: PLC0414 - a fixture
from tests.redis.test_flows import ends, made, ran, state
from tests.redis.test_standing_batches import look
from tests.support.server import Server
from tests.support.waiting import wait_until

SHARDS = {KEYS: ("default",), MAIL: ("mail", "wide"), FILES: ("files", "wide")}


class FlowWorld(World):
    """The clocks of three shards, and children that really run the jobs of all their queues."""

    def __init__(self, url: str, redis: Redis) -> None:
        super().__init__(url, redis)
        self._url = url

    def move(self) -> None:
        """What each clock does: it carries notes, and moves what is due."""
        self.carry()
        for keys in SHARDS:
            mover = DueJobMover(keys, self.connection)
            mover.load(watch=False)
            while (due := mover.next_due()) is not None and due <= now():
                mover.work()
            flows = UnfinishedFlows(keys, self.connection)
            flows.load(watch=False)
            while flows.next_due() is not None:
                flows.work()
        self.carry()

    def is_over(self) -> bool:
        """Does what the clocks do. Returns whether nothing is left."""
        self.move()
        looks = self.redis.pipeline(transaction=True)  # all at one moment
        for keys, queues in SHARDS.items():
            looks.exists(keys.schedule)
            looks.xlen(keys.notes)
            for queue in queues:
                looks.exists(keys.queue(queue), keys.inflight(queue))
        return not any(looks.execute())

    def work(self) -> None:
        """Runs all there is, until nothing is left."""
        with ExitStack() as children:
            for keys, queues in SHARDS.items():
                for queue in queues:
                    child = InProcessChild(
                        self._url, queue=queue, concurrency=1, prefix=keys.prefix
                    )
                    children.enter_context(child)
            wait_until(self.is_over, what="the end of all jobs")


@pytest.fixture
def client(redis: Redis, redis_server: Server) -> Iterator[ShardedClient]:
    before = default_client.swap(None)
    client = default_client.use(config_at(redis_server.url))
    assert isinstance(client, ShardedClient)
    yield client
    client.close()
    default_client.swap(before)


@pytest.fixture
def world(client: ShardedClient, redis: Redis, redis_server: Server) -> Iterator[FlowWorld]:
    world = FlowWorld(redis_server.url, redis)
    yield world
    world.close()


def test_steps_on_three_shards_get_what_those_before_have_returned(
    world: FlowWorld, redis: Redis
) -> None:
    """The flow is on the shard of its first step; results go by reference to any other one."""
    job = made("job")
    flow = forkq.Flow("", on_success=made("told").set(queue="files").s("success"))
    flow.add("mail", job.set(queue="mail").s('a "quoted" é \\u0001 text'))
    names = [
        flow.add(f"wide-{n}", job.set(queue="wide").s(n, forkq.BEFORE), after=["mail"])
        for n in range(6)
    ]
    flow.add("here", job.s(flow.result("mail")), after=["mail"])
    flow.add("all", job.set(queue="files", expires_in=600).s(forkq.BEFORE), after=[*names, "here"])
    flow.push()
    assert redis.exists(MAIL.batch(flow.bid))
    assert redis.hget(MAIL.flow_steps(flow.bid), "to:8") == b"files"
    world.work()
    text = 'a "quoted" é \\u0001 text'
    assert flow.get("all") == [[[n, [text]] for n in range(6)] + [[[text]]]]
    assert state(flow.bid).state == "succeeded"
    assert (len(ran), ran[-1]) == (10, ("told", "success"))
    steps: Any = redis.hkeys(MAIL.flow_steps(flow.bid))
    assert not [name for name in steps if name[:3] in (b"to:", b"job", b"wai")]


def test_a_step_on_another_shard_expires_from_its_start_on(world: FlowWorld, redis: Redis) -> None:
    job = made("job")
    flow = forkq.Flow("", job.s(1) | job.set(queue="mail", expires_in=300).s(2))
    flow.push()
    world.move()
    assert world.run(KEYS, "default") == 1
    world.carry()
    found: Any = redis.zrange("mail:schedule", 0, -1)
    assert loads(found[0])["expiry"] == pytest.approx(now() + 300, abs=30)


def test_a_bad_end_on_another_shard_cancels_runs_and_is_retried(
    world: FlowWorld, redis: Redis
) -> None:
    job = made("job")
    flow = forkq.Flow("", on_death=made("told").s("death"))
    flow.add("first", job.s(0))
    flow.add("bad", job.set(queue="mail").s("bad"), after=["first"])
    flow.add("waits", job.set(queue="files").s(1), after=["bad"])
    flow.add("cancelled", job.set(queue="mail").s(2), after=["bad"], on_failure="cancel")
    flow.add("runs", job.s(3), after=["bad"], on_failure="run")
    flow.push()
    world.work()
    assert ends(redis, flow.bid, 5) == [1, 2, 0, 3, 1]
    assert ("told", "death") in ran
    registry._jobs.pop("job")
    forkq.job(name="job", retry=0)(lambda *args: ran.append(("again", *args)))
    assert api.Flow(flow.bid).retry_dead().done == 1
    world.work()
    assert ends(redis, flow.bid, 5) == [1, 1, 1, 3, 1]
    assert [one for one in ran if one[0] == "again"] == [("again", "bad"), ("again", 1)]


def test_a_step_on_another_shard_adds_steps_there_and_elsewhere(
    world: FlowWorld, redis: Redis
) -> None:
    job = made("job")

    @forkq.job(name="grow", queue="mail")
    def grow() -> str:
        flow = forkq.Flow.current()
        flow.add("more", job.set(queue="files").s(flow.result("grow")), after=["grow"])
        flow.add("end", job.s(flow.result("more")), after=["more"])
        flow.push()
        return "grown"

    flow = forkq.Flow("", job.s(0) | grow.s())
    flow.push()
    world.work()
    assert [one[1:] for one in ran] == [(0,), ("grown",), (["grown"],)]
    assert state(flow.bid).state == "succeeded"


def test_a_cancelled_flow_ends_its_steps_on_all_shards(world: FlowWorld, redis: Redis) -> None:
    job = made("job")
    flow = forkq.Flow("", forkq.group(job.s(0), job.set(queue="mail").s(1)) | job.s(2))
    flow.push()
    world.move()
    flow.cancel()
    cancelled = f"batch:{flow.bid}"
    assert redis.hexists(KEYS.cancelled, cancelled)
    assert redis.hexists(MAIL.cancelled, cancelled)
    assert ends(redis, flow.bid, 3) == [0, 0, 3]
    assert world.run(KEYS, "default", "cancelled") == world.run(MAIL, "mail", "cancelled") == 1
    world.carry()
    assert ends(redis, flow.bid, 3) == [3, 3, 3]


def test_a_shard_that_is_down_keeps_no_other_one_from_a_cancel(
    redis: Redis, redis_server: Server
) -> None:
    before = default_client.swap(None)
    client = default_client.use(config_at(redis_server.url, "default", DOWN))
    flow = forkq.Flow("", made("job").s(0))
    flow.push()
    with pytest.raises(forkq.ServerUnavailable):
        flow.cancel()
    assert [redis.exists(keys.cancelled) for keys in SHARDS] == [1, 1, 1]
    client.close()
    default_client.swap(before)


def test_notes_that_are_carried_twice_start_nothing_twice(
    world: FlowWorld, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is killed each time between carrying notes and deleting them."""
    call, carried = world.connection.call, set[Any]()

    def killed_once(*command: Any) -> Any:
        if command[0] == "XDEL" and command not in carried:
            return carried.add(command)
        return call(*command)

    monkeypatch.setattr(world.connection, "call", killed_once)
    job = made("job")
    flow = forkq.Flow("", job.set(queue="mail").s(0) | job.s(1) | job.set(queue="mail").s(2))
    flow.push()
    world.work()
    assert [one[1] for one in ran] == [0, 1, 2]
    assert state(flow.bid).state == "succeeded"
    assert len(carried) >= 2


def test_steps_that_are_still_noted_are_not_missed(world: FlowWorld, redis: Redis) -> None:
    """A shard does not take them for a while. Once it has, one that is nowhere there is."""
    job = made("job")
    flow = forkq.Flow("", job.s(0) | job.set(queue="mail").s(1))
    flow.push()
    world.move()
    world.run(KEYS, "default")
    assert redis.xlen(KEYS.notes) == 1
    look(world.leader, 4)
    assert ends(redis, flow.bid, 2) == [1, 0]
    world.carry()
    redis.delete(MAIL.schedule)
    look(world.leader, 3)
    assert ends(redis, flow.bid, 2) == [1, 3]


def test_a_damaged_stream_of_notes_starts_no_step_twice(world: FlowWorld, redis: Redis) -> None:
    """Nor does it keep flows of one shard from going on."""
    job = made("job")
    flow = forkq.Flow("", job.s(0) | forkq.group(job.set(queue="mail").s(1), job.s(2)))
    plain = forkq.Flow("", job.s("plain") | job.s("next"))
    for each in (flow, plain):
        each.push()
    world.move()
    redis.set(KEYS.notes, "x")
    assert world.run(KEYS, "default") == 2
    assert redis.smembers(KEYS.flows_unfinished) == {KEYS.batch(flow.bid).encode()}
    assert redis.zcard("schedule") == 1
    leader = UnfinishedFlows(KEYS, world.connection)
    leader.load(watch=False)
    with pytest.raises(DamagedKey, match="forkq:notes"):
        leader.work()
    redis.delete(KEYS.notes)
    world.work()
    assert sorted(str(one[1]) for one in ran) == ["1", "2", "next"]


def test_a_middleware_that_moves_a_step_to_another_shard_is_refused(client: Any) -> None:
    def move(job: Any, call: Any) -> Any:
        job["queue"] = "mail"
        return call()

    middleware.client.append(move)
    with pytest.raises(forkq.InvalidJob, match="moved it to the queue 'mail' on another shard"):
        forkq.Flow("", made("job").s(1)).push()


def test_a_flow_on_a_shard_that_the_child_does_not_know_fails_its_step(
    world: FlowWorld, redis: Redis, redis_server: Server
) -> None:
    job = made("job", retry=3)
    flow = forkq.Flow("", job.set(queue="mail").s(0) | job.s(forkq.BEFORE))
    flow.push()
    world.move()
    world.run(MAIL, "mail")
    world.move()
    world.move()
    found: Any = redis.rpop("queue:default")
    step = loads(found)
    assert [*taken_in(step["args"], flow.bid)] == ["job"]
    step["forkq"]["needs"]["flow"]["at"] = "gone"
    redis.lpush("queue:default", dumps(step))
    with InProcessChild(redis_server.url):
        wait_until(lambda: redis.zcard("retry") == 1, what="its failure")
    [raw] = cast("Any", redis.zrange("retry", 0, -1))
    assert "gone" in loads(raw)["error_message"]
    assert ran == []
