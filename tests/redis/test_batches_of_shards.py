"""Batches whose members and callbacks are on other shards than the batch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import api, default_client, middleware, registry, sharded_client
from forkq.batches import batch as batch_module
from forkq.clock.notes import NoteCarrier
from forkq.clock.other_shards import OtherShards
from forkq.clock.standing_batches import StandingBatches
from forkq.features.effects import packed
from forkq.features.marked import effects_in
from forkq.sharded_client import ShardedClient
from forkq.store.connection import RedisConnection
from forkq.store.scripts import BATCH_CHANGE, EFFECTS_ALONE
from forkq.wire.keys import Keys
from forkq.wire.payload import loads
from tests.redis.prefix_shards import DOWN, config_at
from tests.redis.test_notes import carry
from tests.redis.test_standing_batches import look
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server

KEYS, MAIL, FILES = Keys(), Keys("mail:"), Keys("files:")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    monkeypatch.setattr(middleware, "pushes", middleware.Chain())


@pytest.fixture
def client(redis: Redis, redis_server: Server) -> Iterator[ShardedClient]:
    before = default_client.swap(None)
    client = default_client.use(config_at(redis_server.url, "default", DOWN))
    assert isinstance(client, ShardedClient)
    yield client
    client.close()
    default_client.swap(before)


class World:
    """The clocks of the shards, and a child of each."""

    def __init__(self, url: str, redis: Redis) -> None:
        self.redis = redis
        self.connection = RedisConnection(url)
        self.connection.connect()
        self.log = RecordedLog()
        self.others = OtherShards(config_at(url))
        self.leader = StandingBatches(KEYS, self.connection, self.others, self.log)
        self._all = {KEYS: self.others}
        for keys, name in ((MAIL, "mail"), (FILES, "files")):
            self._all[keys] = OtherShards(config_at(url, name))

    def close(self) -> None:
        for others in self._all.values():
            others.close()
        self.connection.close()

    def carry(self) -> None:
        for keys, others in self._all.items():
            carry(NoteCarrier(keys, self.connection, others, self.log))

    def end(self, keys: Keys, payload: Any, way: str = "done") -> None:
        """The job of that shard takes this way."""
        names: list[Any] = []
        text = packed(effects_in(keys, payload, way), names, keys.totals("ends"))
        self.connection.script(EFFECTS_ALONE, names, [text])

    def run(self, keys: Keys, queue: str, way: str = "done") -> int:
        """All jobs of that queue take this way. Returns how many there were."""
        count = 0
        while payload := self.redis.rpop(keys.queue(queue)):
            self.end(keys, payload, way)
            count += 1
        return count


@pytest.fixture
def world(client: ShardedClient, redis: Redis, redis_server: Server) -> Iterator[World]:
    world = World(redis_server.url, redis)
    yield world
    world.close()


def load(**options: Any) -> Any:
    return forkq.job(name="Load", queue="mail", **options)(lambda number: None)


def told(queue: str = "default") -> Any:
    registry._jobs.pop("Told", None)
    return forkq.job(name="Told", queue=queue)(lambda word: None)


def counts(bid: str) -> tuple[int, int, int, int, int]:
    report = api.Batch(bid).report()
    return report.total, report.waiting, report.done, report.dead, report.otherwise


def test_members_and_callbacks_of_three_shards(world: World, redis: Redis) -> None:
    job = load()
    job_of_files = told("files")
    with forkq.Batch(on_finish=told().s("finish"), on_success=job_of_files.s("success")) as batch:
        job.perform_bulk([[1], [2]])
        job.set(queue="default").perform_async(3)
        job.set(queue="wide").perform_bulk([[n] for n in range(20)])
    newest: Any = redis.lindex(MAIL.queue("mail"), 0)
    payload = loads(newest)
    assert payload["forkq"]["needs"]["batch"] == {"bid": batch.bid, "i": 1, "at": "default"}
    assert counts(batch.bid) == (23, 23, 0, 0, 0)
    assert world.run(MAIL, "mail") == 2
    assert world.run(KEYS, "default") == 1
    assert world.run(MAIL, "wide") + world.run(FILES, "wide") == 20
    assert counts(batch.bid) == (23, 22, 1, 0, 0)  # the notes are still to be carried
    world.carry()
    assert counts(batch.bid) == (23, 0, 23, 0, 0)
    world.carry()
    assert redis.zcard("schedule") == redis.zcard("files:schedule") == 1
    due: Any = redis.zrange("files:schedule", 0, -1)
    redis.delete("files:schedule")
    world.end(FILES, due[0])
    world.carry()
    assert redis.hget(KEYS.batch(batch.bid), "called_s") == b"1"
    assert redis.zcard("files:schedule") == 0


def test_duplicates_are_no_members(world: World, client: ShardedClient, redis: Redis) -> None:
    job = load(unique_for=60)
    with forkq.Batch(on_success=told().s("x")) as batch:
        assert job.perform_bulk([[1], [1], [2]]).count("") == 1
        assert job.perform_async(2) == ""
    assert counts(batch.bid) == (2, 2, 0, 0, 0)
    assert world.run(MAIL, "mail") == 2
    world.carry()
    assert counts(batch.bid) == (2, 0, 2, 0, 0)
    assert redis.zcard("schedule") == 1
    fields: Any = redis.hkeys(KEYS.batch(batch.bid))
    assert not [name for name in fields if name.startswith(b"joins:")]


def test_a_batch_that_takes_no_members_refuses_those_of_other_shards(
    world: World, redis: Redis
) -> None:
    job, batch = load(), forkq.Batch()

    def push() -> None:
        with batch:
            redis.hset(KEYS.batch(batch.bid), "state", "cancelled")
            job.perform_async(1)

    with pytest.raises(forkq.BatchFinished):
        push()
    assert redis.llen(MAIL.queue("mail")) == 0
    assert counts(batch.bid) == (0, 0, 0, 0, 0)


def test_once_is_refused_on_another_shard(client: ShardedClient) -> None:
    job = load()
    refusal = r"`once`.*another shard, which is default"
    with pytest.raises(forkq.InvalidJob, match=refusal), forkq.Batch():
        job.set(once=True).perform_async(1)


def test_what_a_shard_that_is_down_has_not_got_is_no_member(world: World, redis: Redis) -> None:
    job = load()
    with forkq.Batch(on_success=told().s("x")) as batch:
        with pytest.raises(forkq.ServerUnavailable):
            job.set(queue="down").perform_async(1)
        job.perform_async(2)
    assert counts(batch.bid) == (1, 1, 0, 0, 0)
    world.run(MAIL, "mail")
    world.carry()
    assert redis.zcard("schedule") == 1


def test_places_are_taken_once_though_the_reply_is_lost(world: World, redis: Redis) -> None:
    with forkq.Batch() as batch:
        asked = (BATCH_CHANGE, KEYS.of_batch(batch.bid, ()), (1, "join", "", 3, "token"))
        assert [world.connection.script(*asked) for _ in range(2)] == [0, 0]
        assert counts(batch.bid)[0] == 3
        over = (BATCH_CHANGE, KEYS.of_batch(batch.bid, ()), (1, "joined", "token", 1, 2))
        assert [world.connection.script(*over) for _ in range(2)] == [b"open", b"open"]
    assert counts(batch.bid) == (1, 1, 0, 0, 0)


def test_a_pusher_that_dies_behind_its_places_leaves_no_members(
    world: World, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its block is broken; a person seals it, and what was pushed is all."""
    job = load()

    def die(*arguments: Any) -> None:
        raise KeyboardInterrupt

    def push() -> forkq.Batch:
        with forkq.Batch(on_success=told().s("x")) as batch:
            made.append(batch)
            job.perform_async(1)
            monkeypatch.setattr(forkq.client.Client, "_write", die)
            monkeypatch.setattr(sharded_client, "give_back_places", lambda *arguments: None)
            job.perform_bulk([[2], [3]])
        return batch

    made: list[forkq.Batch] = []
    with pytest.raises(KeyboardInterrupt):
        push()
    batch = api.Batch(made[0].bid)
    batch.seal()
    world.run(MAIL, "mail")
    world.carry()
    assert counts(batch.bid) == (3, 2, 1, 0, 0)
    look(world.leader, 3)
    assert counts(batch.bid) == (1, 0, 1, 0, 0)
    assert redis.zcard("schedule") == 1


def test_a_member_of_another_shard_that_is_nowhere_has_ended_otherwise(
    world: World, redis: Redis
) -> None:
    job = load()
    with forkq.Batch(on_finish=told().s("x")) as batch:
        job.perform_bulk([[1], [2], [3]])
    redis.lpop(MAIL.queue("mail"))
    look(world.leader, 3)
    assert counts(batch.bid) == (3, 2, 0, 0, 1)
    world.run(MAIL, "mail")
    look(world.leader, 4)  # what the notes say is not carried yet
    assert counts(batch.bid) == (3, 2, 0, 0, 1)
    world.carry()
    assert counts(batch.bid) == (3, 0, 2, 0, 1)
    assert redis.zcard("schedule") == 1


def test_nothing_is_settled_while_a_shard_cannot_be_searched(world: World, redis: Redis) -> None:
    job = load()
    with forkq.Batch() as batch:
        job.perform_async(1)
    redis.delete(MAIL.queue("mail"))
    shards = world.others._shards
    shards["files"], before = DOWN, shards["files"]
    look(world.leader, 4)
    assert counts(batch.bid) == (1, 1, 0, 0, 0)
    assert "a shard is not searched for members of batches that stand still" in world.log.events()
    shards["files"] = before
    world.others._connections.clear()
    look(world.leader, 3)
    assert counts(batch.bid) == (1, 0, 0, 0, 1)


def test_a_note_on_its_way_puts_the_end_of_lost_members_off(world: World, redis: Redis) -> None:
    """The look of one shard's leader pushes a callback on another shard, whose leader looks before
    that note is carried: it might say how a member has ended."""
    there = StandingBatches(MAIL, world.connection, world._all[MAIL], world.log)
    job, callback = load(), told()
    finish = callback.set(queue="mail").s("x")
    with forkq.Batch(on_death=callback.s("y"), on_finish=finish):
        job.perform_async(1)
    with forkq.Batch(on_finish=finish) as batch:
        job.set(queue="default").perform_async(2)
    redis.delete(MAIL.queue("mail"), KEYS.queue("default"))
    look(world.leader, 3)
    assert redis.xlen(KEYS.notes) == 1
    look(there, 3)
    assert counts(batch.bid) == (1, 1, 0, 0, 0)
    world.carry()
    look(there, 2)
    assert counts(batch.bid) == (1, 0, 0, 0, 1)


def test_an_event_loop_pushes_members_to_other_shards(world: World, redis: Redis) -> None:
    job = load(unique_for=60)

    async def push() -> str:
        async with forkq.Batch(on_success=told().s("x")) as batch:
            await job.aperform_async(1)
            await batch.aperform_bulk(job, [[1], [2], [3]])
        await forkq.default_client.default().aclose()
        return batch.bid

    bid = asyncio.run(push())
    assert counts(bid) == (3, 3, 0, 0, 0)
    assert world.run(MAIL, "mail") == 3
    world.carry()
    assert redis.zcard("schedule") == 1


def test_a_member_of_another_shard_pushes_more(
    world: World, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = load()
    with forkq.Batch(on_finish=told().s("x")) as batch:
        job.perform_async(1)
    running: Any = redis.rpop(MAIL.queue("mail"))
    current = SimpleNamespace(payload=loads(running), queue="mail")
    monkeypatch.setattr(batch_module, "job_for", lambda called: current)
    with forkq.Batch.current():
        job.perform_async(2)
        job.set(queue="default").perform_async(3)
    assert counts(batch.bid) == (3, 3, 0, 0, 0)
    world.end(MAIL, running)
    world.carry()
    with pytest.raises(forkq.BatchFinished), forkq.Batch.current():
        job.perform_async(4)
    assert world.run(MAIL, "mail") + world.run(KEYS, "default") == 2
    world.carry()
    assert counts(batch.bid) == (3, 0, 3, 0, 0)


def test_dead_members_of_all_shards_are_retried_and_cancelled(world: World, redis: Redis) -> None:
    job = load()
    with forkq.Batch() as outer, forkq.Batch() as inner:
        job.perform_async(1)
        job.set(queue="default").perform_async(2)
    for keys, queue in ((MAIL, "mail"), (KEYS, "default")):
        payload: Any = redis.rpop(keys.queue(queue))
        redis.zadd(keys.dead, {payload: 1.0})
        world.end(keys, payload, "dead")
    world.carry()
    assert counts(inner.bid) == (2, 0, 0, 2, 0)
    batch = api.Batch(outer.bid)
    with pytest.raises(forkq.ServerUnavailable):  # of the shard that is down, behind the others
        batch.retry_dead()
    world.carry()
    assert counts(inner.bid) == (2, 2, 0, 0, 0)
    with pytest.raises(forkq.ServerUnavailable):
        batch.cancel()
    for keys in (KEYS, MAIL):
        noted: Any = redis.hkeys(keys.cancelled)
        assert sorted(noted) == sorted(f"batch:{one.bid}".encode() for one in (outer, inner))
