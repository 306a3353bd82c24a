"""Random flows with random ends, failures, kills and retries, beside a model: each step starts
exactly once, once all before it allow that, none early, none missing.

The scripts and their callers are the real ones; who takes a job, and when, is the test.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import api, registry
from forkq.child.failure.ends import Ends
from forkq.clock.unfinished_flows import UnfinishedFlows
from forkq.features.batch.parts import EVENTS, STATES
from forkq.features.flow.parts import ON_FAILURE
from forkq.features.ways import BY_NAME
from forkq.store.connection import RedisConnection
from forkq.store.crash_record import ProcessDeath
from forkq.store.dead_set import DeadSetLimits
from forkq.store.recovery import Recovery
from forkq.store.steps import carry_out
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from forkq.wire.marks import KEY
from forkq.wire.payload import loads
from tests.redis import test_batches_model
from tests.redis.test_batches_model import IDENTITY, WAYS
from tests.support.server import Server

KEYS = Keys()
QUEUE, INFLIGHT = "queue:default", "{queue:default}:inflight"
SUSPECTS = KEYS.suspects("default")
ENDS = Ends(IDENTITY, KEYS, DeadSetLimits(KEYS))
# How many seeds the deep run tries; the kept sample is a few seconds.
DEEP = int(os.environ.get("FLOWS", "2000"))

clean = test_batches_model.clean


@pytest.fixture
def connection(redis_server: Server) -> Iterator[RedisConnection]:
    connection = RedisConnection(redis_server.url)
    connection.connect()
    yield connection
    connection.close()


class Model:
    """What a flow is to be: written after features.md, not after the scripts."""

    def __init__(self, edges: dict[str, dict[str, str]], ignore: tuple[str, ...]) -> None:
        self.edges = edges
        self.ignore = ignore
        self.ways: dict[str, str] = {}  # how those have ended that have ended otherwise
        self.states = dict.fromkeys(edges, 0)
        self.started: set[str] = set()
        self.fired: set[str] = set()
        self.is_cancelled = False

    def take(self, name: str, way: str) -> None:
        fate, before = BY_NAME[way].batch, self.states[name]
        state = STATES.get(fate)
        is_stuck = before == 2 and (state == 3 or way == "restored by undo")
        if state is not None and before != 1 and not is_stuck:
            self.states[name] = state
            self.ways[name] = way
        self.look()

    def graft(self, added: dict[str, dict[str, str]]) -> None:
        self.edges |= added
        self.states |= dict.fromkeys(added, 0)
        self.look()

    def cancel(self) -> None:
        self.is_cancelled = True
        for name in self.edges.keys() - self.started:
            self.states[name], self.ways[name] = 3, "cancelled"
        self.look()

    def open_edges(self, name: str) -> int:
        states = ((self.states[before], how) for before, how in self.edges[name].items())
        return sum(not (state == 1 or (state > 1 and how == "run")) for state, how in states)

    def look(self) -> None:
        changed = True
        while changed:
            changed = False
            for name in self.unstarted():
                edges = self.edges[name].items()
                if any(self.states[one] > 1 and self.ends(one, how) for one, how in edges):
                    self.states[name], self.ways[name] = 3, "cancelled"
                    changed = True
                elif not self.open_edges(name):
                    self.started.add(name)
        values = self.states.values()
        if 2 in values:
            self.fired.add("d")
        if 0 not in values:
            self.fired.add("f")
            bad = {name for name, state in self.states.items() if state > 1}
            if all(self.states[n] == 3 and self.ways[n] in self.ignore for n in bad):
                self.fired.add("s")

    def ends(self, before: str, how: str) -> bool:
        """Whether the bad end of that step ends the one behind it."""
        return how == "cancel" or (how == "wait" and self.states[before] == 3)

    def unstarted(self) -> list[str]:
        return [one for one in self.edges if one not in self.started and not self.states[one]]


class World:
    """Redis, the test as all the processes, and the model."""

    def __init__(self, redis: Redis, connection: RedisConnection, seed: int) -> None:
        self.redis, self.connection = redis, connection
        self.random = random.Random(seed)
        self.pushed: Counter[str] = Counter()
        self.jids: dict[str, str] = {}
        self.snoozing: set[str] = set()  # the jids of jobs that come back by the schedule
        self.job = forkq.job(name="Load")(lambda name: None)
        self.report = forkq.job(name="Report")(lambda event: None)
        self.clock = UnfinishedFlows(KEYS, connection)
        self.grafts = 0
        self.make(self.random.choice([1, 2, 3, 5, 8, 8, 12, 20, self.random.randint(20, 200)]))

    def make(self, count: int) -> None:
        names = [f"s{number}" for number in range(count)]
        calls: dict[str, Any] = {f"on_{event}": self.report.s(event[0]) for event in EVENTS}
        ignore = self.random.choice([(), ("cancelled",), ("cancelled", "expired", "dropped")])
        self.flow = forkq.Flow(ignore=ignore, **calls)
        edges: dict[str, dict[str, str]] = {}
        for at, name in enumerate(names):
            most = min(at, self.random.choice([0, 1, 1, 2, 3, 30]))
            before = self.random.sample(names[max(0, at - 40) : at], min(most, at, 40))
            edges[name] = {one: self.random.choice(ON_FAILURE) for one in before}
        order = self.random.sample(names, count)  # a step may be added before those it comes after
        for name in order:
            how: Any = edges[name]
            self.flow.add(name, self.job.s(name), after=list(how), on_failure=how)
        self.order = order
        self.model = Model(edges, ignore)
        self.flow.push()
        self.model.look()
        if self.random.random() < 0.2:  # a lost reply: it is sent again
            self.flow.push()
        self.check()

    def run(self) -> None:
        while self.step():
            pass
        for _ in range(3):
            retried = api.DeadSet().retry_all().done
            if not retried:
                break
            self.note_retries()
            while self.step(mostly_done=True):
                pass

    def note_retries(self) -> None:
        for key in (QUEUE, SUSPECTS):
            waiting: Any = self.redis.lrange(key, 0, -1)
            for raw in waiting:
                self.note(loads(raw), "retried from the dead set")
        self.check()

    def step(self, *, mostly_done: bool = False) -> bool:
        """One job takes a way, or a person acts. False if there is none."""
        self.collect()
        if self.random.random() < 0.1 and len(self.order) < 60:
            self.graft()
        where = [key for key in (QUEUE, SUSPECTS) if self.redis.exists(key)]
        if not where:
            return False
        chance = self.random.random()
        if where == [QUEUE] and chance < 0.04:
            entry = next(iter(api.Queue("default")))
            entry.delete()
            self.note(loads(entry.raw), "deleted")
        elif chance > 0.995 and not self.model.is_cancelled and "f" not in self.model.fired:
            api.Batch(self.flow.bid).cancel()
            self.model.cancel()
        else:
            raw: Any = self.redis.rpop(self.random.choice(where))
            names = list(WAYS)
            weights = [40 if mostly_done else 12, *([1] * (len(names) - 1))]
            self.take(raw, self.random.choices(names, weights)[0])
        self.check()
        return True

    def graft(self) -> None:
        """A step that runs adds further ones behind any, and behind each other; or does so twice,
        as its second run does."""
        running = [one for one in self.model.started if not self.model.states[one]]
        if self.model.is_cancelled or not running:
            return
        by, known = self.order.index(min(running)), [*self.order]
        added: dict[str, dict[str, str]] = {}
        for number in range(len(known), len(known) + self.random.choice([1, 2, 8])):
            before = self.random.sample(known, min(len(known), self.random.choice([0, 1, 1, 3])))
            added[f"s{number}"] = {one: self.random.choice(ON_FAILURE) for one in before}
            known.append(f"s{number}")
        for _ in range(self.random.choice([1, 2])):
            flow = forkq.Flow()
            flow.bid, flow._by, flow._server = self.flow.bid, by, self.flow._server
            for name, how in added.items():
                edges: Any = how
                flow.add(name, self.job.s(name), after=list(edges), on_failure=edges)
            flow.push()
        found: Any = self.redis.hgetall(KEYS.flow_steps(self.flow.bid))
        self.order += sorted(added, key=lambda name: int(found[f"of:{name}".encode()]))
        self.grafts += 1
        self.model.graft(added)
        self.check()

    def take(self, raw: bytes, way: str) -> None:
        """A child leases the job, and it takes its way; or the child is killed before that, or
        behind that, or sends its end again after a lost reply."""
        sequence = self.random.randint(1, 1 << 40)
        self.redis.hset(INFLIGHT, f"{IDENTITY}/{sequence}", raw)
        one, job = UnitOfWork(1, "default", sequence, raw), loads(raw)
        one.marked = {name: job[name] for name in ("class", "jid", "queue", KEY)}
        call = WAYS[way](ENDS, one).call()
        fault = self.random.random()
        if fault < 0.15:  # killed before: its master returns the lease, and the end comes too late
            self.recover()
            assert self.connection.script(call.script, call.keys, call.arguments) == 0
            return
        assert self.connection.script(call.script, call.keys, call.arguments) in (1, [1])
        if fault < 0.3:
            assert self.connection.script(call.script, call.keys, call.arguments) == 0
        if fault > 0.9:
            self.recover()
        if way == "snoozed":
            self.snoozing.add(job["jid"])
        self.note(job, way)

    def recover(self) -> None:
        death = ProcessDeath(signal=self.random.choice([9, 11]))
        recovery = Recovery(DeadSetLimits(KEYS))
        carry_out(self.connection, recovery.recover(["default"], IDENTITY, death))

    def note(self, job: dict[str, Any], way: str) -> None:
        need = job[KEY]["needs"].get("flow")
        if need is not None:
            self.model.take(need["step"], way)

    def collect(self) -> None:
        """The clock tells what is left, and moves what is due. Notes each job that has started."""
        self.clock.load(watch=False)
        while self.clock.next_due() is not None:
            self.clock.work()
        for key in ("schedule", "retry"):
            found: Any = self.redis.zrange(key, 0, -1)
            for raw in found:
                job = loads(raw)
                assert self.jids.setdefault(job["args"][0], job["jid"]) == job["jid"]
                if key == "schedule" and job["jid"] not in self.snoozing:
                    self.pushed[job["jid"]] += 1
                self.snoozing.discard(job["jid"])
                self.redis.zrem(key, raw)
                self.redis.lpush(QUEUE, raw)

    def check(self) -> None:
        self.collect()
        model, bid = self.model, self.flow.bid
        steps: Any = self.redis.hgetall(KEYS.flow_steps(bid))
        bits = self.redis.bitfield(KEYS.batch_ends(bid))
        for number in range(len(self.order)):
            bits.get("u2", f"#{number}")
        found: Any = bits.execute()
        states = dict(zip(self.order, found, strict=True))
        assert states == model.states
        waits = {self.order[int(k[5:])]: int(v) for k, v in steps.items() if k[:5] == b"wait:"}
        assert waits == {name: model.open_edges(name) for name in model.unstarted()}
        assert {self.order[int(k[4:])] for k in steps if k[:4] == b"job:"} == waits.keys()
        ended = {self.order[int(k[4:])] for k in steps if k[:4] == b"end:"}
        assert ended == {name for name in model.started if model.states[name]}
        assert self.jids.keys() - {"d", "f", "s"} == model.started
        found = self.redis.hgetall(KEYS.batch(bid))
        numbers = [int(found.get(name, 0)) for name in (b"total", b"done", b"dead", b"other")]
        values = [*model.states.values()]
        assert numbers == [len(values), *(values.count(state) for state in (1, 2, 3))]
        assert {name[6:].decode() for name in found if name[:6] == b"fired_"} == model.fired
        assert self.jids.keys() & {"d", "f", "s"} == model.fired
        assert self.pushed == dict.fromkeys(self.jids.values(), 1)


def try_seeds(redis: Redis, connection: RedisConnection, seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        redis.flushall()
        registry._jobs.clear()
        try:
            world = World(redis, connection, seed)
            world.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seen.update(world.model.fired)
        seen["steps"] += len(world.model.edges)
        seen["cancelled"] += world.model.is_cancelled
        seen["grafts"] += world.grafts
        seen["ignored"] += "s" in world.model.fired and {*world.model.states.values()} != {1}
    return seen


def test_random_flows_agree_with_the_model(
    client: Any, redis: Redis, connection: RedisConnection
) -> None:
    seen = try_seeds(redis, connection, range(72, 90))
    assert min(seen[each] for each in ("d", "f", "s", "grafts", "ignored")) > 0


@pytest.mark.slow
def test_many_random_flows_agree_with_the_model(
    client: Any, redis: Redis, connection: RedisConnection
) -> None:
    seen = try_seeds(redis, connection, range(1000, 1000 + DEEP))
    assert min(seen[each] for each in ("d", "f", "s", "cancelled", "grafts", "ignored")) > 0
