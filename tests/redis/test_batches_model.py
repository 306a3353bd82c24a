"""Random batches with random ends, failures and kills, beside a model: each callback is pushed
exactly once, none early, none missing.

The scripts and their callers are the real ones; who takes a job, and when, is the test.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import api, default_client, middleware, registry
from forkq.child.failure.ends import Ends
from forkq.child.failure.retry import Bury, End, Retry, Snoozed
from forkq.clock.notes import NoteCarrier
from forkq.clock.other_shards import OtherShards
from forkq.features.batch.parts import BATCH, EVENTS, IGNORABLE, PushedInto, effects
from forkq.features.effects import Effect, packed
from forkq.features.ways import BY_NAME
from forkq.store.connection import ConnectionLost, RedisConnection
from forkq.store.crash_record import ProcessDeath
from forkq.store.dead_set import DeadSetLimits
from forkq.store.recovery import Recovery
from forkq.store.redis_py import exceptions
from forkq.store.scripts import EFFECTS_ALONE
from forkq.store.steps import carry_out
from forkq.testing.batches import FakeBatches
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from forkq.wire.marks import KEY
from forkq.wire.payload import loads
from forkq.wire.times import now
from tests.redis.prefix_shards import config_at
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server

IDENTITY = "vm:7:0123456789ab"
KEYS = Keys()
STATES = {"done": 1, "dead": 2, "ended otherwise": 3, "waits again": 0}
WAYS: dict[str, Callable[[Ends, UnitOfWork], Any]] = {
    "done": lambda ends, one: ends.done(one, "done"),
    "dropped": lambda ends, one: ends.done(one, "dropped"),
    "retried": lambda ends, one: ends.retry(one, Retry(now() - 1, one.payload)),
    "snoozed": lambda ends, one: ends.retry(one, Snoozed(now() - 1, one.payload, "Load")),
    "dead": lambda ends, one: ends.bury(one, Bury(one.payload, None)),
    "discarded": lambda ends, one: ends.end(one, End("discarded", "Load")),
    "cancelled": lambda ends, one: ends.end(one, End("cancelled", "Load", jid="x")),
    "requeued": lambda ends, one: ends.return_to_queue(one),
    "made a suspect": lambda ends, one: ends.isolate(one),
}
# The shards of a world, each with the queues that it has.
ONE: dict[str, tuple[str, ...]] = {"": ("default",)}
SEVERAL = {"": ("default",), "mail:": ("mail", "wide"), "files:": ("files", "wide")}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    monkeypatch.setattr(middleware, "pushes", middleware.Chain())


@pytest.fixture
def connection(redis_server: Server) -> Iterator[RedisConnection]:
    connection = RedisConnection(redis_server.url)
    connection.connect()
    yield connection
    connection.close()


class Model:
    """What a batch is to be: written after features.md, not after the scripts."""

    def __init__(self, batch: forkq.Batch, above: Model | None, calls: set[str]) -> None:
        self.bid = batch.bid
        self.ignore = set(batch._ignore)
        self.above = above
        self.calls = calls
        self.states: dict[int, tuple[int, str]] = {}  # a member: its state, and its way
        self.closed = False
        self.fired: set[str] = set()
        self.called: dict[str, int] = {}
        self.index = 0
        if above is not None:
            self.index = len(above.states)
            above.states[self.index] = (0, "")

    def take(self, member: int, way: str) -> None:
        fate = BY_NAME[way].batch
        before = self.states.get(member, (0, ""))[0]
        state = STATES.get(fate, 0)
        if fate in STATES and before != 1 and not (before == 2 and state == 3):
            self.states[member] = (state, way)
        self.look()

    def look(self) -> None:
        states = [state for state, _ in self.states.values()]
        if 2 in states and "d" not in self.fired:
            each: Model | None = self
            while each is not None:
                each.fired.add("d")
                each = each.above
        if self.closed and 0 not in states:
            self.fired.add("f")
            if all(s == 1 or (s == 3 and way in self.ignore) for s, way in self.states.values()):
                self.fired.add("s")
        if self.above is not None:
            before = self.above.states[self.index][0]
            if before != 1:
                self.above.states[self.index] = (self.as_member(), "batch")
            self.above.look()

    def as_member(self) -> int:
        states = [state for state, _ in self.states.values()]
        if "f" not in self.fired or 0 in states:
            return 0
        if any(letter in self.calls and letter not in self.called for letter in self.fired):
            return 0
        ends = {self.called[letter] for letter in self.fired & self.calls}
        if 2 in ends:
            return 2
        state = 1 if "s" in self.fired else 2 if 2 in states else 3
        return 3 if state == 1 and 3 in ends else state


class KilledClock:
    """The connection of a clock that is killed, now and then, before it deletes a note."""

    def __init__(self, connection: RedisConnection, chance: random.Random) -> None:
        self._random = chance
        self._call = connection.call
        self.pipeline, self.script = connection.pipeline, connection.script

    def call(self, *command: Any) -> Any:
        if command[0] == "XDEL" and self._random.random() < 0.3:
            raise exceptions.ConnectionError("killed")
        return self._call(*command)


class World:
    """Redis, the test as all processes, and the model. ``shards``: the queues of each prefix."""

    def __init__(
        self,
        redis: Redis,
        connection: RedisConnection,
        seed: int,
        shards: dict[str, tuple[str, ...]] = ONE,
    ) -> None:
        self.redis, self.connection = redis, connection
        self.random = random.Random(seed)
        self.places = [(Keys(prefix), queue) for prefix, all_ in shards.items() for queue in all_]
        self.queues = sorted({queue for _, queue in self.places})
        self.models: dict[str, Model] = {}
        self.homes: dict[str, Keys] = {}
        self.job = forkq.job(name="Load")(lambda number: None)
        self.report = forkq.job(name="Report")(lambda bid, event: None)
        self.pushed: Counter[tuple[str, str]] = Counter()
        self.seen: set[str] = set()
        self.clock: Any = KilledClock(connection, self.random)
        self.others = {
            prefix: OtherShards(config_at(connection.url, prefix.rstrip(":") or "default"))
            for prefix in shards
        }
        self.fake = FakeBatches(lambda payload: None)  # what forkq.testing has, beside the scripts

    def change_both(self, made: Any) -> Callable[..., bytes]:
        """Makes or changes a batch, in Redis and in a test without Redis."""
        change = made._change

        def changed(*arguments: Any) -> bytes:
            keys = KEYS.of_batch(made.bid, made._above)
            state: bytes = change(*arguments)
            assert self.fake.change(keys, (1 + len(made._above), *arguments)) == state
            return state

        return changed

    def batch(self, above: Model | None, depth: int) -> None:
        """Makes a batch, and pushes its members while others end."""
        events = [event for event in EVENTS if self.random.random() < 0.7]
        ignore = [way for way in IGNORABLE if self.random.random() < 0.2]
        made: Any = forkq.Batch()
        made._ignore = tuple(ignore) if above or "success" in events else ()
        made._change = self.change_both(made)
        calls = {
            event: self.report.set(queue=self.random.choice(self.queues)).s(made.bid, event[0])
            for event in events
        }
        made._callbacks = {event: calls.get(event) for event in EVENTS}
        with made:
            model = Model(made, above, {event[0] for event in events})
            self.models[made.bid] = model
            self.homes[made.bid] = made._server.keys
            for _ in range(self.random.randint(0, 6)):
                self.push(made, model, depth)
                while self.random.random() < 0.4:
                    self.step()
        model.closed = True
        model.look()
        self.check()

    def push(self, batch: forkq.Batch, model: Model, depth: int) -> None:
        if depth < 3 and self.random.random() < 0.3:
            self.batch(model, depth + 1)
            return
        count = self.random.randint(1, 3)
        for number in range(len(model.states), len(model.states) + count):
            model.states[number] = (0, "")
        job = self.job.set(queue=self.random.choice(self.queues))
        assert batch.perform_bulk(job, [[1]] * count) == count
        for _ in range(count):
            self.fake.join(PushedInto(batch.bid))
        model.look()

    def run(self) -> None:
        self.batch(None, 1)
        while self.step():
            pass
        self.check(at_the_end=True)
        retried = sum(api.DeadSet(server).retry_all().done for server in api.servers())
        if retried and self.random.random() < 0.7:
            self.note_retries()
            while self.step(last=True):
                pass
            self.check(at_the_end=True)

    def note_retries(self) -> None:
        for keys, queue in self.places:
            for key in (keys.queue(queue), keys.suspects(queue)):
                waiting: Any = self.redis.lrange(key, 0, -1)
                for raw in waiting:
                    self.note(loads(raw), "retried from the dead set")
        self.check()

    def step(self, *, last: bool = False) -> bool:
        """One job takes a way, or a person deletes one. False if there is none."""
        self.collect()
        waiting = [
            (keys, queue, key)
            for keys, queue in self.places
            for key in (keys.queue(queue), keys.suspects(queue))
            if self.redis.exists(key)
        ]
        if not waiting:
            return self.carry()
        keys, queue, key = self.random.choice(waiting)
        if key == keys.queue(queue) and self.random.random() < 0.05:
            entry = next(iter(api.Queue(queue)))
            entry.delete()
            self.note(loads(entry.raw), "deleted")
            self.check()
            return True
        raw: Any = self.redis.rpop(key)
        names = list(WAYS)
        weights = [9, *([1] * (len(names) - 1))]
        way = "done" if last else self.random.choices(names, weights)[0]
        self.take(keys, queue, raw, way)
        self.check()
        return True

    def take(self, keys: Keys, queue: str, raw: bytes, way: str) -> None:
        """A child leases the job, and it takes its way; or the child is killed before that, or
        behind that, or sends its end again after a lost reply."""
        sequence = self.random.randint(1, 1 << 40)
        self.redis.hset(keys.inflight(queue), f"{IDENTITY}/{sequence}", raw)
        one = UnitOfWork(1, queue, sequence, raw)
        job = loads(raw)
        one.marked = {name: job[name] for name in ("class", "jid", "queue", KEY)}
        call = WAYS[way](Ends(IDENTITY, keys, DeadSetLimits(keys)), one).call()
        fault = self.random.random()
        if fault < 0.15:  # killed before: its master returns the lease, and the end comes too late
            self.recover(keys, queue)
            assert self.connection.script(call.script, call.keys, call.arguments) == 0
            return
        assert self.connection.script(call.script, call.keys, call.arguments) in (1, [1])
        if fault < 0.3:
            assert self.connection.script(call.script, call.keys, call.arguments) == 0
        if fault > 0.9:
            self.recover(keys, queue)
        self.note(job, way)

    def recover(self, keys: Keys, queue: str) -> None:
        death = ProcessDeath(signal=self.random.choice([9, 11]))
        recovery = Recovery(DeadSetLimits(keys))
        carry_out(self.connection, recovery.recover([queue], IDENTITY, death))

    def carry(self) -> bool:
        """The clocks carry all notes; some are killed before these are deleted, and carry them
        again. Returns whether there was one."""
        found = False
        for prefix, others in self.others.items():
            carrier = None
            while carrier is None or carrier.next_due() is not None:
                carrier = NoteCarrier(Keys(prefix), self.clock, others, RecordedLog())
                carrier.load(watch=False)
                if carrier.next_due() is not None:
                    found = True
                    with suppress(*ConnectionLost):
                        carrier.work()  # tells the other shards who carries
                        carrier.work()
        return found

    def note(self, job: dict[str, Any], way: str) -> None:
        need = job[KEY]["needs"]["batch"]
        model = self.models[need.get("bid") or need["of"]]
        fate = BY_NAME[way].batch
        self.fake.end(job, way)
        if "i" in need:
            model.take(need["i"], way)
        elif fate in STATES:
            model.called[need["on"]] = STATES[fate]
            if not STATES[fate]:
                del model.called[need["on"]]
            model.look()

    def collect(self) -> None:
        """The clock moves what is due. Notes each callback when it comes up."""
        for keys in {keys.prefix: keys for keys, _ in self.places}.values():
            for key in (keys.schedule, keys.retry):
                found: Any = self.redis.zrange(key, 0, -1)
                for raw in found:
                    job = loads(raw)
                    if "of" in job[KEY]["needs"]["batch"] and job["jid"] not in self.seen:
                        self.seen.add(job["jid"])
                        self.pushed[tuple(job["args"])] += 1
                    self.redis.zrem(key, raw)
                    self.redis.lpush(keys.queue(job["queue"]), raw)

    def check(self, *, at_the_end: bool = False) -> None:
        if self.random.random() < 0.5 or at_the_end:
            self.carry()
        self.collect()
        expected: Counter[tuple[str, str]] = Counter()
        for bid, model in self.models.items():
            expected.update((bid, letter) for letter in model.fired & model.calls)
        if any(self.redis.xlen(keys.notes) for keys, _ in self.places):
            assert self.pushed <= expected  # none early, none twice
            return
        for bid, model in self.models.items():
            self.compare(bid, model)
        assert self.pushed == expected

    def compare(self, bid: str, model: Model) -> None:
        found: Any = self.redis.hgetall(self.homes[bid].batch(bid))
        counts = [int(found.get(name, 0)) for name in (b"total", b"done", b"dead", b"other")]
        states = [state for state, _ in model.states.values()]
        assert counts == [len(states), states.count(1), states.count(2), states.count(3)]
        fired = {name[6:].decode() for name in found if name.startswith(b"fired_")}
        assert fired == model.fired
        fake = self.fake._batches[bid]
        assert [state for state, _ in fake.members] == [
            model.states[i][0] for i in range(counts[0])
        ]
        assert (fake.fired, fake.called) == (model.fired, model.called)


def run_worlds(
    redis: Redis, connection: RedisConnection, seeds: range, shards: dict[str, tuple[str, ...]]
) -> None:
    """Random worlds. All events have come in some of them."""
    fired: Counter[str] = Counter()
    for seed in seeds:
        redis.flushall()
        registry._jobs.clear()
        world = World(redis, connection, seed, shards)
        try:
            world.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        finally:
            for others in world.others.values():
                others.close()
        for model in world.models.values():
            fired.update(model.fired)
    assert min(fired[letter] for letter in "dfs") > 0


@pytest.mark.parametrize("chunk", range(4))
def test_random_batches_agree_with_the_model(
    client: Any, redis: Redis, connection: RedisConnection, chunk: int
) -> None:
    run_worlds(redis, connection, range(chunk * 8, chunk * 8 + 8), ONE)


@pytest.fixture
def sharded(redis_server: Server) -> Iterator[None]:
    before = default_client.swap(None)
    client = default_client.use(config_at(redis_server.url))
    yield
    client.close()
    default_client.swap(before)


@pytest.mark.parametrize("chunk", range(2))
def test_random_batches_over_several_shards_agree_with_the_model(
    redis: Redis, connection: RedisConnection, sharded: None, chunk: int
) -> None:
    run_worlds(redis, connection, range(chunk * 8, chunk * 8 + 8), SEVERAL)


def test_ends_that_share_a_call_change_a_batch_as_those_one_by_one(
    client: Any, redis: Redis, connection: RedisConnection
) -> None:
    """A call reads a batch once, as long as its members are done."""
    chance, ways = random.Random(7), ["done"] * 8 + ["dead", "retried", "discarded"]
    for _ in range(30):
        taken = [(n % 2, n // 2, chance.choice(ways)) for n in range(30)]
        chance.shuffle(taken)
        found = []
        for at_once in (len(taken), 1):
            redis.flushall()
            for batch in range(2):
                fields: dict[Any, Any] = {"state": "sealed", "total": 15, "calls": "dfs"}
                fields |= {f"on_{letter}": f"{batch} {letter}" for letter in "dfs"}
                redis.hset(KEYS.batch(f"b{batch}"), mapping=fields)
            for first in range(0, len(taken), at_once):
                names: list[Any] = []
                texts = [
                    packed(ends_of(*each), names, KEYS.totals("ends"))
                    for each in taken[first : first + at_once]
                ]
                connection.script(EFFECTS_ALONE, names, texts)
            found.append([numbers_in(redis, f"b{batch}") for batch in range(2)])
            due: Any = redis.zrange(KEYS.schedule, 0, -1)
            found[-1].append(sorted(due))
        assert found[0] == found[1]


def ends_of(batch: int, member: int, way: str) -> tuple[Effect, ...]:
    needs = {BATCH: {"bid": f"b{batch}", "i": member}}
    return effects(KEYS, needs, BY_NAME[way].batch, way, f"{batch}{member}")


def numbers_in(redis: Redis, bid: str) -> Any:
    names = ("done", "dead", "other", "failing")
    return redis.hmget(KEYS.batch(bid), *names), redis.get(KEYS.batch_ends(bid))
