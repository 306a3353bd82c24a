"""fetch.lua against a plain model of it, over random pushes, fetches, kills and changed rules.

Strict order is compared job by job. For a weighted draw the model checks that no rule is broken,
that each queue gives its jobs in order, and that no job is left that could have been taken.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from redis import Redis

from forkq.store.connection import RedisConnection
from forkq.store.scripts import BURY, FETCH, LEASE_RETURN, RECOVER, RETRY
from forkq.store.steps import requeue_calls
from forkq.wire.keys import Keys
from tests.support.fetch_calls import counted, keys_of
from tests.support.server import Server

KEYS = Keys()
QUEUES = ("a", "b", "c", "d")
OWNERS = ("vm:1:aaaaaaaaaaaa/", "vm:2:bbbbbbbbbbbb/")
# So slow that a bucket gets no token while a test runs: its burst is all it has.
SECONDS = 10**9


@dataclass
class Queue:
    """One queue of the model: its jobs, its leases, the rules of the caller and those in Redis."""

    jobs: deque[str] = field(default_factory=deque)
    leases: dict[str, str] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    changed: dict[str, int | str] = field(default_factory=dict)
    blocks: tuple[str, ...] = ()
    paused: bool = False
    tokens: float | None = None  # None: the bucket was never touched

    def rule(self, name: str) -> int | None:
        value = self.changed.get(name, self.sent.get(name))
        return None if value in {None, "none"} else int(value)

    def left(self) -> float:
        burst = self.rule("burst")
        assert burst is not None
        return burst if self.tokens is None else min(burst, self.tokens)


class Model:
    """What fetch.lua does, in plain Python."""

    def __init__(self) -> None:
        self.queues = {name: Queue() for name in QUEUES}

    def room(self, name: str, owner: str) -> int:
        """How many jobs may be taken from that queue now."""
        queue = self.queues[name]
        room = len(queue.jobs)
        blockers = [q for q in self.queues.values() if name in q.blocks and q.leases]
        if queue.paused or blockers:
            return 0
        if (limit := queue.rule("limit")) is not None:
            room = min(room, limit - len(queue.leases))
        if (limit := queue.rule("process_limit")) is not None:
            room = min(room, limit - sum(lease.startswith(owner) for lease in queue.leases))
        if queue.rule("burst") is not None:
            room = min(room, int(queue.left()))
        return max(0, room)

    def take(self, name: str, owner: str, sequence: int) -> str:
        """Takes one job."""
        queue = self.queues[name]
        payload = queue.jobs.popleft()
        queue.leases[f"{owner}{sequence}"] = payload
        if queue.rule("burst") is not None:
            queue.tokens = queue.left() - 1
        return payload

    def strict(
        self, groups: list[tuple[str, ...]], fair: bool, want: int, owner: str, first: int
    ) -> list[tuple[str, str]]:
        """Queue and payload of each job that a strict fetch takes."""
        taken: list[tuple[str, str]] = []
        for group in groups:
            for name, count in self.shares(group, fair, want - len(taken), owner):
                for _ in range(min(count, want - len(taken), self.room(name, owner))):
                    taken.append((name, self.take(name, owner, first + len(taken))))
        return taken

    def shares(
        self, group: tuple[str, ...], fair: bool, want: int, owner: str
    ) -> Iterator[tuple[str, int]]:
        """How many from each queue of a group, at most."""
        if not fair or len(group) == 1:
            yield from ((name, want) for name in group)
            return
        room = {name: self.room(name, owner) for name in group}
        shares = dict.fromkeys(group, 0)
        rounds = itertools.chain.from_iterable(itertools.repeat(group, want))
        for name in rounds:
            if sum(shares.values()) < want and shares[name] < room[name]:
                shares[name] += 1
        yield from shares.items()


LIMIT = st.one_of(st.none(), st.integers(0, 4))
QUEUE = st.sampled_from(QUEUES)
OWNER = st.sampled_from(OWNERS)


class Machine(RuleBasedStateMachine):
    """Does each operation on the server and on the model, and compares them."""

    connection: RedisConnection
    redis: Redis

    def __init__(self) -> None:
        super().__init__()
        self.redis.flushall()
        self.model = Model()
        self.serial = itertools.count(1)
        self.sequence = 1

    @initialize(data=st.data(), shape=st.integers(0, 2), fair=st.booleans())
    def arrange(self, data: Any, shape: int, fair: bool) -> None:
        """The capsule: which queues form groups, and their rules."""
        self.fair = fair
        shapes: list[list[tuple[str, ...]]] = [
            [("a",), ("b",), ("c",), ("d",)],
            [("a",), ("b", "c"), ("d",)],
            [("a", "b", "c"), ("d",)],
        ]
        self.groups = shapes[shape]
        if data.draw(st.booleans()):
            return  # the only rules are those set at run time
        for name, queue in self.model.queues.items():
            for what in ("limit", "process_limit", "burst"):
                value = data.draw(LIMIT)
                if value is not None and data.draw(st.booleans()):
                    queue.sent[what] = value + (what == "burst")
            if data.draw(st.integers(0, 3)) == 0:
                queue.blocks = tuple(data.draw(st.sets(QUEUE)) - {name})

    @rule(name=QUEUE, count=st.integers(1, 5))
    def push(self, name: str, count: int) -> None:
        for _ in range(count):
            payload = f"job {next(self.serial)}"
            self.redis.lpush(KEYS.queue(name), payload)
            self.model.queues[name].jobs.append(payload)

    @rule(
        owner=OWNER,
        want=st.integers(0, 7),
        ahead=st.integers(0, 3),
        weighted=st.booleans(),
        data=st.data(),
    )
    def fetch(self, owner: str, want: int, ahead: int, weighted: bool, data: Any) -> None:
        """``ahead``: how many more than ``want`` it takes while no rule is in force."""
        done = [lease for lease in self.mine(owner) if data.draw(st.booleans())]
        ruled = [name for name in QUEUES if self.has_row(name)]
        ended = self.ended(owner, done)
        keys = keys_of(*QUEUES, done=ended, ruled=ruled)
        arguments = self.arguments(owner, want, ahead, weighted, done, ended)
        if not self.rules_in_force():
            want += ahead
        for lease in done:
            self.drop(lease)
        reply = self.connection.script(FETCH, keys, arguments)
        assert reply[0] == 0
        assert (reply[1] == 2) == bool(ahead and self.rules_in_force() and want + ahead > 0)
        found = [
            (QUEUES[number - 1], payload.decode())
            for number, payload in zip(reply[4::2], reply[5::2], strict=True)
        ]
        if weighted:
            self.check_admissible(found, want, owner)
        else:
            assert found == self.model.strict(self.groups, self.fair, want, owner, self.sequence)
        self.sequence += want + ahead

    def has_row(self, name: str) -> bool:
        """Whether the call says something of the rules of that queue, and sends their keys."""
        queue = self.model.queues[name]
        is_changed = self.redis.hexists(KEYS.controlled, name)
        return bool(queue.sent or queue.blocks or is_changed)

    def ended(self, owner: str, done: list[str]) -> list[Any]:
        """Per queue its number, how many leases to acknowledge, and their numbers."""
        flat: list[Any] = []
        for number, name in enumerate(QUEUES, 1):
            gone = [lease for lease in self.model.queues[name].leases if lease in done]
            numbers = [lease.rpartition("/")[2] for lease in gone if lease.startswith(owner)]
            flat += [number, len(numbers), *numbers] if numbers else []
        return flat

    def rules_in_force(self) -> bool:
        """Rules of the caller, or a pause, or rules set at run time."""
        sent = any(queue.sent or queue.blocks for queue in self.model.queues.values())
        return sent or bool(self.redis.exists(KEYS.paused, KEYS.controlled))

    def check_admissible(self, found: list[tuple[str, str]], want: int, owner: str) -> None:
        """Any draw will do that breaks no rule and leaves no job that could have been taken."""
        for at, (name, payload) in enumerate(found):
            assert self.model.room(name, owner) > 0
            assert self.model.take(name, owner, self.sequence + at) == payload
        left = [name for name in QUEUES if self.model.room(name, owner)]
        assert len(found) == want or not left

    def arguments(
        self,
        owner: str,
        want: int,
        ahead: int,
        weighted: bool,
        done: list[str],
        ended: list[Any],
    ) -> list[Any]:
        groups = [part for g in self.groups for part in (len(g), int(weighted), int(self.fair))]
        rules, count = [], 0
        for number, name in enumerate(QUEUES, 1):
            queue = self.model.queues[name]
            if self.has_row(name):
                count += 1
                burst = queue.sent.get("burst", "")
                rate = (1, SECONDS, burst) if burst else ("", "", "")
                limits = (queue.sent.get("limit", ""), queue.sent.get("process_limit", ""))
                blocks = [QUEUES.index(later) + 1 for later in queue.blocks]
                rules += [number, *limits, *rate, len(blocks), *blocks]
        held = []
        for number, name in enumerate(QUEUES, 1):
            mine = [x for x in self.model.queues[name].leases if x.startswith(owner)]
            stay = len([lease for lease in mine if lease not in done])
            held += [number, stay] if stay else []
        in_flight = [len(held) // 2, *held]
        if not any(queue.rule("process_limit") for queue in self.model.queues.values()):
            in_flight = []
        total = len(QUEUES)
        head = [want + ahead, owner, self.sequence, 77 if weighted else 0, total, want, total]
        if not weighted and not self.fair:
            groups = []  # each queue in order
        count_of = len(self.groups) if groups else 0
        rest = [count_of, *groups, count, *rules, *in_flight]
        return [*head, *counted(ended), *(rest if any(rest) or in_flight else ())]

    def mine(self, owner: str) -> list[str]:
        leases = [lease for queue in self.model.queues.values() for lease in queue.leases]
        return [lease for lease in leases if lease.startswith(owner)]

    def drop(self, lease: str) -> tuple[str, str]:
        for name, queue in self.model.queues.items():
            if lease in queue.leases:
                return name, queue.leases.pop(lease)
        raise AssertionError(lease)

    @precondition(lambda self: any(map(self.mine, OWNERS)))
    @rule(data=st.data(), script=st.sampled_from([RETRY, BURY]))
    def fail(self, data: Any, script: Any) -> None:
        lease = data.draw(st.sampled_from([*self.mine(OWNERS[0]), *self.mine(OWNERS[1])]))
        name, payload = self.drop(lease)
        keys = (KEYS.inflight(name), "gone", KEYS.awaited(name), KEYS.bucket(name))
        bounds = (1000,) if script is BURY else ()
        self.connection.script(script, keys, (lease, 1, payload, 0, *bounds))

    @precondition(lambda self: any(map(self.mine, OWNERS)))
    @rule(owner=OWNER, count=st.integers(0, 6), gone=st.booleans())
    def return_to_queue(self, owner: str, count: int, gone: bool) -> None:
        """The youngest leases of an owner go back, each to the head of its queue; their permits are
        free. ``gone``: among them is one that it holds no more."""
        ranked = sorted(self.mine(owner), key=lambda lease: -int(lease.rpartition("/")[2]))
        moves: list[Any] = [1, self.sequence] if gone else []
        for lease in ranked[:count]:
            name, payload = self.drop(lease)
            self.model.queues[name].jobs.appendleft(payload)
            moves += [QUEUES.index(name) + 1, lease.rpartition("/")[2]]
        lists = KEYS.of_returns(QUEUES)
        moved = self.connection.script(LEASE_RETURN, (KEYS.queues, *lists), (owner, *moves))
        assert moved == len(ranked[:count])

    @rule(owner=OWNER, crashed=st.booleans())
    def kill(self, owner: str, crashed: bool) -> None:
        """The jobs of a dead owner go back to their queues, and its permits are free."""
        moves: list[Any] = []
        for number, name in enumerate(QUEUES, 1):
            leases = [x for x in self.model.queues[name].leases if x.startswith(owner)]
            for lease in sorted(leases, key=lambda x: -int(x.rpartition("/")[2])):
                payload = self.drop(lease)[1]
                self.model.queues[name].jobs.appendleft(payload)
                moves += [number, lease, "requeue", 0, payload, "", ""]
        if crashed:
            shared = (KEYS.dead, "note", KEYS.queues, KEYS.schedule, KEYS.suspected)
            self.connection.script(
                RECOVER,
                (*shared, *(k for q in QUEUES for k in (*KEYS.of_returns([q]), KEYS.suspects(q)))),
                (1, 0, 1000, 0, *moves),
            )
        else:
            for call in requeue_calls(KEYS, QUEUES, owner):
                self.connection.script(call.script, call.keys, call.arguments)

    @rule(name=QUEUE)
    def pause_or_resume(self, name: str) -> None:
        queue = self.model.queues[name]
        queue.paused = not queue.paused
        (self.redis.sadd if queue.paused else self.redis.srem)(KEYS.paused, name)

    @rule(
        name=QUEUE,
        what=st.sampled_from(["limit", "process_limit"]),
        value=st.one_of(st.integers(0, 4), st.just("none")),
    )
    def change(self, name: str, what: str, value: int | str) -> None:
        self.model.queues[name].changed[what] = value
        self.redis.hset(KEYS.control(name), what, value)
        self.redis.hincrby(KEYS.controlled, name, 1)

    @rule(name=QUEUE, burst=st.one_of(st.integers(1, 5), st.just("none")))
    def change_rate(self, name: str, burst: int | str) -> None:
        """The tokens in the bucket stay. A fetch counts at most a burst of them; a burst that no
        fetch has spent from changes nothing."""
        queue = self.model.queues[name]
        queue.changed["burst"] = burst
        rate = "none" if burst == "none" else f"1/{SECONDS}"
        self.redis.hset(KEYS.control(name), mapping={"rate": rate, "burst": burst})
        self.redis.hincrby(KEYS.controlled, name, 1)

    @rule(name=QUEUE)
    def reset(self, name: str) -> None:
        self.model.queues[name].changed.clear()
        self.redis.delete(KEYS.control(name))
        self.redis.hdel(KEYS.controlled, name)

    @invariant()
    def agrees(self) -> None:
        for name, queue in self.model.queues.items():
            line: Any = self.redis.lrange(KEYS.queue(name), 0, -1)
            assert [payload.decode() for payload in reversed(line)] == list(queue.jobs)
            leases: Any = self.redis.hgetall(KEYS.inflight(name))
            assert {k.decode(): v.decode() for k, v in leases.items()} == queue.leases


@pytest.mark.parametrize("examples", [60, pytest.param(600, marks=pytest.mark.slow)])
def test_the_script_does_what_the_model_does(
    redis: Redis, redis_server: Server, examples: int
) -> None:
    """After random operations each job is where the model has it, and no rule was broken."""
    connection = RedisConnection(redis_server.url)
    connection.connect()
    machine: Any = type("Bound", (Machine,), {"connection": connection, "redis": redis})
    machine.TestCase.settings = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[
            Phase.generate
        ],  # to shrink a failure takes minutes: add Phase.shrink when there is one
    )
    case = machine.TestCase("runTest")
    try:
        case.runTest()
    finally:
        connection.close()
