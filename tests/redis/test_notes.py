"""Notes: what must happen on another shard is carried there by the clock, once in effect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from redis import Redis

from forkq.clock import notes
from forkq.clock.notes import NoteCarrier
from forkq.clock.other_shards import OtherShards
from forkq.config.shards import Shard
from forkq.features.effects import Effect, packed
from forkq.features.notes import ANYWHERE, noted, text_of
from forkq.store.connection import ConnectionLost, RedisConnection
from forkq.store.redis_py import exceptions
from forkq.store.scripts import EFFECTS_ALONE
from forkq.wire.keys import Keys
from forkq.wire.times import now
from tests.redis.in_process_clock import InProcessClock
from tests.redis.prefix_shards import DOWN, config_at
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.waiting import wait_until

KEYS = Keys()


@pytest.fixture
def connection(redis_server: Server) -> Iterator[RedisConnection]:
    connection = RedisConnection(redis_server.url)
    connection.connect()
    yield connection
    connection.close()


@pytest.fixture
def log() -> RecordedLog:
    return RecordedLog()


@pytest.fixture
def carrier(
    redis: Redis, redis_server: Server, connection: RedisConnection, log: RecordedLog
) -> Iterator[NoteCarrier]:
    others = OtherShards(config_at(redis_server.url, "default", DOWN))
    yield NoteCarrier(KEYS, connection, others, log)
    others.close()


def due(number: int) -> Effect:
    """The effect that puts a job into the schedule."""
    return Effect("due", ANYWHERE.schedule, (f"job {number}",), (ANYWHERE.pushed(f"j{number}"),))


def settled(way: str, state: int) -> Effect:
    """The effect that tells a batch how its only member has ended, or that it waits again."""
    [key, *more] = ANYWHERE.of_batch("b", ())
    return Effect("batch", key, (1, 0, state, way, "j1"), tuple(more))


def note(connection: RedisConnection, to: str, *effects: Effect) -> None:
    for effect in effects:
        names: list[Any] = []
        text = packed([noted(KEYS, to, effect)], names, KEYS.totals("ends"))
        assert connection.script(EFFECTS_ALONE, names, [text]) == 1


def carry(carrier: NoteCarrier, at: float = 0.0) -> None:
    """Works as the clock does, until nothing is due at that moment, or now."""
    carrier.load(watch=False)
    while (due := carrier.next_due()) is not None and due <= (at or now()):
        carrier.work()


def test_large_notes_are_carried_some_at_a_time(
    carrier: NoteCarrier, connection: RedisConnection, redis: Redis
) -> None:
    """The end of a step has its result, and a script holds up all clients of that shard."""
    for number, size in enumerate((400_000, 400_000, 400_000, 2_000_000, 1)):
        pushed = ANYWHERE.pushed(f"j{number}")
        note(
            connection,
            "mail",
            Effect("due", ANYWHERE.schedule, ("x" * size + str(number),), (pushed,)),
        )
    left = []
    while redis.xlen(KEYS.notes):
        carrier.load(watch=False)
        carrier.work()
        left.append(redis.xlen(KEYS.notes))
    assert left == [5, 3, 2, 1, 0]  # the first time it tells that shard that it carries them
    assert redis.zcard("mail:schedule") == 5


def test_a_note_is_carried_to_its_shard_and_deleted(
    carrier: NoteCarrier, connection: RedisConnection, redis: Redis
) -> None:
    note(connection, "mail", *map(due, range(250)))
    note(connection, "", due(1000))
    note(connection, "default", due(1001))
    carry(carrier)
    assert redis.zcard("mail:schedule") == 250
    assert redis.zrange("schedule", 0, -1) == [b"job 1000", b"job 1001"]
    assert redis.xlen(KEYS.notes) == 0
    assert carrier.next_due() is None


def test_a_clock_killed_between_carrying_and_deleting_changes_nothing(
    carrier: NoteCarrier,
    connection: RedisConnection,
    redis: Redis,
    redis_server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job has run by the time at which its note comes again."""
    note(connection, "mail", due(1), due(2))
    call = connection.call

    def killed(*command: Any) -> Any:
        if command[0] == "XDEL":
            raise exceptions.ConnectionError("killed")
        return call(*command)

    with monkeypatch.context() as patch:
        patch.setattr(connection, "call", killed)
        carrier.load(watch=False)
        with pytest.raises(ConnectionLost):
            carry(carrier)
    assert redis.zrem("mail:schedule", "job 1") == 1
    assert redis.xlen(KEYS.notes) == 2
    with_other = NoteCarrier(KEYS, connection, carrier._others, RecordedLog())
    carry(with_other)
    assert redis.zrange("mail:schedule", 0, -1) == [b"job 2"]
    assert redis.xlen(KEYS.notes) == 0


def test_a_shard_that_is_down_keeps_no_other_one_from_its_notes(
    carrier: NoteCarrier,
    connection: RedisConnection,
    redis: Redis,
    redis_server: Server,
    log: RecordedLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(120):
        note(connection, "down", due(number))
    note(connection, "mail", due(500))
    carry(carrier)
    assert redis.zrange("mail:schedule", 0, -1) == [b"job 500"]
    assert redis.xlen(KEYS.notes) == 120
    retried = carrier.next_due()
    assert retried is not None
    note(connection, "mail", due(501))
    carry(carrier)  # reads on behind what the other one waits for
    assert redis.zcard("mail:schedule") == 2
    assert log.events() == ["the shard down does not take what is noted for it; trying again"]
    up = Shard("down", redis_server.url, prefix="down:")
    carrier._others._shards["down"] = up
    carrier._others._connections.clear()
    monkeypatch.setattr(notes, "now", lambda: retried)
    carry(carrier, retried)
    assert redis.zcard("down:schedule") == 120
    assert redis.xlen(KEYS.notes) == 0
    assert carrier.next_due() is None
    assert log.events()[-1] == "the shard down takes what was noted for it"


def test_what_is_no_note_is_left_out_and_what_is_newer_waits(
    carrier: NoteCarrier, connection: RedisConnection, redis: Redis, log: RecordedLog
) -> None:
    redis.xadd(KEYS.notes, {"to": "mail", "effect": "{"})
    redis.xadd(KEYS.notes, {"some": "thing"})
    note(connection, "mail", due(1))
    redis.xadd(KEYS.notes, {"to": "nowhere", "effect": "{}"})
    redis.xadd(KEYS.notes, {"to": "default", "effect": '["newer", "k", [], []]'})
    carry(carrier)
    assert redis.zrange("mail:schedule", 0, -1) == [b"job 1"]
    left: Any = redis.xrange(KEYS.notes)
    assert [fields[b"to"] for _, fields in left] == [b"nowhere", b"default"]
    told = [facts["error"] for level, _, facts in log.lines if level == "error"]
    assert sum("no note" in text for text in told) == 2
    assert any("newer forkq" in text for text in told)
    assert any("nowhere" in text and "mail" in text for text in told)


def test_a_job_whose_schedule_is_damaged_waits(
    carrier: NoteCarrier, connection: RedisConnection, redis: Redis, monkeypatch: Any
) -> None:
    redis.set("mail:schedule", "x")
    note(connection, "mail", due(1))
    carry(carrier)
    assert redis.xlen(KEYS.notes) == 1
    redis.delete("mail:schedule")
    retried = carrier.next_due()
    monkeypatch.setattr(notes, "now", lambda: retried)
    carry(carrier, retried or 0.0)
    assert redis.zcard("mail:schedule") == 1


def test_a_note_with_odd_arguments_keeps_no_other_one_from_its_shard(
    carrier: NoteCarrier, connection: RedisConnection, redis: Redis, log: RecordedLog
) -> None:
    """Each has the name of an effect, and says what that one does not understand."""
    odd = [
        '["result", "r", ["x", "soon"], []]',
        '["batch", "b", [1, "far", 1, "done", ""], ["ends"]]',
    ]
    redis.hset("mail:b", mapping={"state": "sealed", "total": 3})
    note(connection, "mail", due(1))
    for text in odd:
        redis.xadd(KEYS.notes, {"to": "mail", "effect": text})
    note(connection, "mail", due(2))
    carry(carrier)
    assert redis.zrange("mail:schedule", 0, -1) == [b"job 1", b"job 2"]
    assert redis.xlen(KEYS.notes) == 0
    told = [facts["note"] for _, event, facts in log.lines if event == "a note is left out"]
    assert told == [repr(text.encode()) for text in odd]


def test_a_clock_that_was_stopped_carries_nothing_after_another_one(
    carrier: NoteCarrier, connection: RedisConnection, redis: Redis, redis_server: Server
) -> None:
    """It has read that a member is dead. Meanwhile the next leader has carried that, and that it
    waits again."""
    member = Keys("mail:")
    redis.hset(member.batch("b"), mapping={"state": "sealed", "total": 1})
    note(connection, "mail", settled("dead", 2))
    carrier.load(watch=False)
    carrier.work()  # the first one tells that shard that it carries the notes
    assert redis.xlen(KEYS.notes) == 1
    with closing(OtherShards(config_at(redis_server.url))) as others:
        note(connection, "mail", settled("retried from the dead set", 0))
        carry(NoteCarrier(KEYS, connection, others, RecordedLog()))
    assert redis.hget(member.batch("b"), "dead") == b"0"
    carrier.work()  # goes on where it was stopped
    assert redis.hget(member.batch("b"), "dead") == b"0"
    note(connection, "mail", settled("done", 1))
    carry(carrier, now() + 60)  # it leads again
    assert redis.hget(member.batch("b"), "done") == b"1"
    assert redis.xlen(KEYS.notes) == 0


@pytest.mark.parametrize("damaged", [False, True])
def test_a_clock_whose_claim_is_gone_tells_the_shard_again(
    carrier: NoteCarrier,
    connection: RedisConnection,
    redis: Redis,
    log: RecordedLog,
    *,
    damaged: bool,
) -> None:
    """It has carried nothing for a day, as where batches run each night: no shard is down."""
    note(connection, "mail", due(1))
    carry(carrier)
    claim = Keys("mail:").carrier("default")
    assert redis.delete(claim) == 1
    if damaged:
        redis.rpush(claim, "x")
    note(connection, "mail", due(2))
    carry(carrier)
    assert redis.zrange("mail:schedule", 0, -1) == [b"job 1", b"job 2"]
    assert redis.xlen(KEYS.notes) == 0
    assert log.events() == []


def test_a_shard_that_takes_no_writes_gets_its_notes_later(
    connection: RedisConnection,
    redis: Redis,
    redis_server: Server,
    own_server: Server,
    log: RecordedLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was a master, and is a replica by now: nothing that it is told may be forgotten."""
    there = own_server.client()
    config = config_at(redis_server.url, "default", Shard("far", own_server.url, prefix="far:"))
    with closing(OtherShards(config)) as others:
        carrier = NoteCarrier(KEYS, connection, others, log)
        note(connection, "far", due(1))
        carry(carrier)
        assert there.zcard("far:schedule") == 1
        there.replicaof("127.0.0.1", "1")
        note(connection, "far", due(2))
        carry(carrier)
        assert redis.xlen(KEYS.notes) == 1
        there.replicaof("NO", "ONE")
        later = carrier.next_due() or 0.0
        monkeypatch.setattr(notes, "now", lambda: later)
        carry(carrier, later)
    assert there.zrange("far:schedule", 0, -1) == [b"job 1", b"job 2"]
    assert redis.xlen(KEYS.notes) == 0


def test_what_waits_for_a_shard_that_is_down_is_read_once(
    carrier: NoteCarrier, connection: RedisConnection, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each later try reads one page, however much waits; and notes for others still arrive."""
    with redis.pipeline() as pipe:
        for number in range(1_000):
            effect = text_of(due(number))
            pipe.xadd(KEYS.notes, {"to": "down", "effect": effect})
        pipe.execute()
    note(connection, "mail", due(5000))
    carry(carrier)
    for _ in range(3):
        retried = carrier.next_due() or 0.0
        monkeypatch.setattr(notes, "now", lambda: retried)  # noqa: B023
        redis.config_resetstat()
        carry(carrier, retried)
        assert redis.info("commandstats")["cmdstat_xrange"]["calls"] <= 3
    assert redis.xlen(KEYS.notes) == 1_000
    assert redis.zrange("mail:schedule", 0, -1) == [b"job 5000"]


def test_the_clock_hears_of_a_note_at_once(
    connection: RedisConnection, redis: Redis, redis_server: Server
) -> None:
    config = config_at(redis_server.url)
    with InProcessClock(redis_server.url, shards=config.shards, shard="default") as clock:
        wait_until(lambda: clock.leads_until, what="the lead")
        for number in range(3):
            note(connection, "mail", due(number))
            wait_until(lambda: redis.zcard("mail:schedule") == number + 1, what="the note")  # noqa: B023
