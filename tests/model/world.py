"""A world: some processes, their jobs, one Redis, and all that can happen next.

What can happen: the server carries out the next command of a process; a job ends; the world gives a
process what it waits for (a death, a due job, an order of a person); or a fault. A process that got
an answer goes on at once until it needs another one: what it does meanwhile, nobody sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from forkq.limits.rules import Rules
from forkq.store.route import EncodedJob
from forkq.units import plural
from forkq.wire.payload import dumps

from .commands import MOMENT
from .ghosts import Fates, Ghost
from .programs import (
    CLASS,
    KEYS,
    ORDINARY,
    SOLO,
    Action,
    Child,
    DueJobs,
    Master,
    Person,
    Pusher,
    Ruby,
    SweepClock,
)
from .store import Refusal, Store, packed
from .talk import LOST, Ask, Connect, Peek, Process, Program, Send, Take, Wait

Nature: TypeAlias = Literal["good", "fails", "poison"]
Fault: TypeAlias = Literal["kill", "late kill", "lose", "late loss", "OOM", "READONLY"]

UNBORN, DEAD, RESCUED = -1, -2, -3


@dataclass(frozen=True)
class Job:
    """One job. ``nature``: it ends well, fails each time, or kills each process that performs it.
    ``retries`` before it is dead. ``more``: other keys of its payload. Without ``pushed`` it is in
    Redis at the beginning."""

    jid: str
    queue: str = "a"
    nature: Nature = "good"
    retries: int = 0
    pushed: bool = True
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def encoded(self) -> EncodedJob:
        job = {
            "class": CLASS,
            "args": [self.jid],
            "queue": self.queue,
            "jid": self.jid,
            "retry": self.retries,
            "created_at": MOMENT + 0.5,
            **self.more,
        }
        return EncodedJob(self.jid, self.queue, None, dumps(job))


@dataclass(frozen=True)
class World:
    """What a world has. ``children``: the capacity of each ordinary child. ``faults``: what may go
    wrong, and how often in all."""

    name: str
    jobs: Sequence[Job]
    children: Sequence[int] = (1,)
    queues: Sequence[str] = ("a",)
    rules: Mapping[str, Rules] = field(default_factory=dict)
    solo: bool = False
    clock: bool = False
    sweep: bool = False
    hasty: bool = False  # the sweep does not wait for the master's rescue
    ruby: bool = False
    person: Sequence[Action] = ()
    faults: Sequence[Fault] = ()
    most_faults: int = 0
    stored: Sequence[tuple[Any, ...]] = ()  # commands that make the state at the beginning

    @property
    def shown(self) -> str:
        """What it has, for people."""
        jobs = Counter(job.nature for job in self.jobs)
        more = ("solo", "clock", "sweep", "ruby", "person")
        parts = [
            plural(len(self.children), "child", "children"),
            *(name for name in more if getattr(self, name)),
            ", ".join(f"{count} {nature}" for nature, count in jobs.items()),
        ]
        parts += [f"{plural(self.most_faults, 'fault')}"] if self.most_faults else []
        return "; ".join(parts)


class Actor(NamedTuple):
    """A process in a state of the world. ``local``: its own state, or UNBORN, DEAD, RESCUED.
    ``wire``: commands that the server has not carried out; ``stream``: what it may read; ``keys``:
    those that the server watches for it; ``life``: how often it was born before; ``begun``: of a
    dead one, the number of the lease that began last."""

    local: int
    wire: tuple[int, ...] = ()
    stream: tuple[int, ...] = ()
    keys: frozenset[bytes] = frozenset()
    life: int = 0
    begun: int = 0


class Situation(NamedTuple):
    """A state of the world. ``late``: commands that reach the server after their connection has
    ended, those of each connection in order. ``faults``: how many may still happen."""

    store: int
    actors: tuple[Actor, ...]
    ghosts: tuple[Ghost, ...]
    late: tuple[tuple[int, ...], ...]
    faults: int


class Event(NamedTuple):
    """What happens: which actor (its number), what, a number or a word with it, and whether it is a
    fault."""

    actor: int
    what: str
    detail: Any = None
    is_fault: bool = False


@dataclass(frozen=True)
class Part:
    """The role of one actor."""

    name: str
    process: Process
    identity: str = ""
    nonce: str = ""

    @property
    def is_child(self) -> bool:
        return bool(self.nonce)


class Interned:
    """Numbers for values that many states share."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = len(self.values)
            self.values.append(value)
        return found


# Processes that run the same program share what is known of it, in all worlds.
_PROCESSES: Final[dict[Any, Process]] = {}


def _process(key: Any, make: Callable[[], Program]) -> Process:
    if key not in _PROCESSES:
        _PROCESSES[key] = Process(make)
    return _PROCESSES[key]


class Stage:
    """A world that is played: its situations, and what leads from one to the next."""

    def __init__(self, world: World, store: Store | None = None) -> None:
        self.world = world
        self.store = store or Store()
        self.parts = list(_parts(world))
        self.commands, self.items = Interned(), Interned()
        self.fates = Fates(world, self)
        self.natures = {job.jid: job.nature for job in world.jobs}

    # The beginning

    def first(self) -> Situation:
        """All processes have started, and wait."""
        state = self.store.empty
        actors = [Actor(UNBORN if part.nonce == "solo" else 0) for part in self.parts]
        now = Situation(state, tuple(actors), (), (), self.world.most_faults)
        for number, part in enumerate(self.parts):
            if part.is_child and part.nonce != "solo":
                now = self._with_record(now, number, lives=True)
            if part.nonce != "solo":
                now = self.go_on(now, number)
        while moving := [at for at, each in enumerate(now.actors) if each.wire]:
            now = self._serve(now, moving[0], "")
        for command in self.world.stored:
            reply = self.store.run(now.store, packed(command))
            now = self._changed(now, -1, reply.state, reply.changed)
        return now._replace(ghosts=self.fates.first(now.store))

    # What can happen

    def events(self, now: Situation) -> Iterator[Event]:
        """Faults come last."""
        for number, actor in enumerate(now.actors):
            if actor.wire:
                yield Event(number, "serve")
            elif actor.local >= 0:
                yield from self._answers(now, number, actor)
            elif actor.local in (UNBORN, RESCUED):
                yield from self._births(now, number, actor)
        for at in range(len(now.late)):
            yield Event(-1, "late", at)
        if now.faults:
            for number in range(len(now.actors)):
                yield from self._faults(now, number)

    def _answers(self, now: Situation, number: int, actor: Actor) -> Iterator[Event]:
        request = self.request(number, actor)
        if isinstance(request, Wait):
            if request.timed:
                yield Event(number, "answer", True)
            if self.parts[number].is_child and self._has_lease(now, number, actor):
                yield Event(number, "answer", "long")
            if self._may_retire(now, number):
                yield Event(number, "retire")
        elif isinstance(request, Ask):
            for answer in self._answers_to(now, request):
                yield Event(number, "answer", answer)

    def _answers_to(self, now: Situation, request: Ask) -> Iterator[Any]:
        state = self.store.states[now.store]
        if request.what == "perform":
            nature = self.natures[request.of.partition(" ")[0]]
            yield {"good": "ends", "fails": "fails", "poison": "dies"}[nature]
        elif request.what == "death":
            for number, actor in enumerate(now.actors):
                if actor.local == DEAD:
                    yield (self.identity(number, actor), actor.begun)
        elif request.what == "pop":
            yield from (name for name in self.world.queues if KEYS.queue(name).encode() in state)
        elif self._may_go_on(now, request):
            yield "go"

    def _may_go_on(self, now: Situation, request: Ask) -> bool:
        """Whether there is a reason for what the process asks to do."""
        state = self.store.states[now.store]
        if request.what == "due":
            return b"retry" in state or b"schedule" in state
        if request.what == "sweep":
            return self._has_orphans(now)
        if request.what == "pause":
            # While the set is damaged, each try is as the one before, and they would have no end.
            return bool(state.get(b"retry", ("zset", ()))[0] == "zset")
        return request.what in ("push", "act")

    def _births(self, now: Situation, number: int, actor: Actor) -> Iterator[Event]:
        is_solo = self.parts[number].nonce == "solo"
        if is_solo and actor.local == RESCUED:
            yield Event(number, "forgotten")
        elif not is_solo or self._has_suspects(now):
            yield Event(number, "born")

    def _faults(self, now: Situation, number: int) -> Iterator[Event]:
        actor, kinds = now.actors[number], self.world.faults
        if actor.local < 0 or self.parts[number].name == "ruby":
            return
        may_die = self.parts[number].is_child and self._has_something(now, number, actor)
        if may_die and "kill" in kinds:
            yield Event(number, "kill", is_fault=True)
        if may_die and actor.wire and "late kill" in kinds:
            yield Event(number, "late kill", is_fault=True)
        if not actor.wire:
            return
        if isinstance(self.request(number, actor), Take):
            if "lose" in kinds:
                yield Event(number, "lose request", is_fault=True)
                yield Event(number, "lose reply", is_fault=True)
            if "late loss" in kinds:
                yield Event(number, "late loss", is_fault=True)
        command = self.commands.values[actor.wire[0]][0]
        for refusal in ("OOM", "READONLY"):
            if refusal in kinds:
                usual = self.store.run(now.store, command)
                if self.store.run(now.store, command, refusal) != usual:
                    yield Event(number, refusal, is_fault=True)

    def _has_something(self, now: Situation, number: int, actor: Actor) -> bool:
        """Whether the death of this child can matter: it has a lease, or talks to Redis."""
        return bool(actor.wire or actor.stream) or self._has_lease(now, number, actor)

    def _has_lease(self, now: Situation, number: int, actor: Actor) -> bool:
        owner = self.identity(number, actor).encode() + b"/"
        return any(lease.startswith(owner) for lease in self.fates.leases(now.store))

    def _has_orphans(self, now: Situation) -> bool:
        """Whether a lease belongs to a process that does not live, nor waits for its rescue if the
        clocks see that its master lives."""
        here = (DEAD,) if not self.world.hasty else ()
        there = [
            self.identity(at, each).encode()
            for at, each in enumerate(now.actors)
            if self.parts[at].is_child and (each.local >= 0 or each.local in here)
        ]
        owners = {lease.rpartition(b"/")[0] for lease in self.fates.leases(now.store)}
        return bool(owners.difference(there))

    def _has_suspects(self, now: Situation) -> bool:
        index = self.store.states[now.store].get(b"forkq:suspects", ("set", ()))[1]
        return any(name.decode() in self.world.queues for name in index)

    def _may_retire(self, now: Situation, number: int) -> bool:
        return self.parts[number].nonce == "solo" and not self._has_suspects(now)

    # What then is

    def after(self, now: Situation, event: Event) -> Situation:
        """The situation after the event. Raises Violation."""
        if event.is_fault:
            now = self.fates.fault(now._replace(faults=now.faults - 1), event)
        number, what = event.actor, event.what
        if what == "serve":
            return self._serve(now, number, "")
        if what in ("OOM", "READONLY"):
            for _ in now.actors[number].wire:  # what was sent together is refused together
                now = self._serve(now, number, what)  # type: ignore[arg-type]
            return now
        if what == "late":
            return self._serve_late(now, event.detail)
        if what in ("lose request", "lose reply", "late loss"):
            return self._cut(now, number, what)
        if what in ("kill", "late kill"):
            return self._kill(now, number, is_late=what == "late kill")
        if what in ("retire", "forgotten"):
            if what == "retire":
                now = self._with_record(now, number, lives=False)
            return _with(now, number, Actor(UNBORN, life=self._life(now, number)))
        if what == "born":
            child = Actor(self.parts[number].process.first, life=self._life(now, number))
            now = self._with_record(_with(now, number, child), number, lives=True)
            return self.go_on(now, number)
        return self._answer(now, number, event.detail)

    def _answer(self, now: Situation, number: int, answer: Any) -> Situation:
        actor = now.actors[number]
        request = self.request(number, actor)
        if isinstance(request, Ask) and request.what == "perform":
            now = self.fates.ended(now, number, request.of, answer)
            if answer == "dies":
                return self._kill(now, number, is_late=False)
        return self.go_on(self._answered(now, number, answer), number)

    def _answered(self, now: Situation, number: int, answer: Any) -> Situation:
        actor = now.actors[number]
        local = self.parts[number].process.after(actor.local, answer)
        return _with(now, number, actor._replace(local=local))

    def go_on(self, now: Situation, number: int) -> Situation:
        """The process goes on until it needs the world."""
        while True:
            actor = now.actors[number]
            request = self.request(number, actor)
            if isinstance(request, Send):
                sent = tuple(self._sent(number, actor, each) for each in request.commands)
                now = _with(now, number, actor._replace(wire=actor.wire + sent))
                answer: Any = None
            elif isinstance(request, Connect):
                fresh = actor._replace(wire=(), stream=(), keys=frozenset())
                now, answer = _with(now, number, fresh), None
            elif isinstance(request, Peek):
                answer = self.items.values[actor.stream[0]][0] if actor.stream else ""
            elif isinstance(request, Wait) and actor.stream:
                answer = True
            elif isinstance(request, Take) and actor.stream:
                answer = self.items.values[actor.stream[0]]
                now = _with(now, number, actor._replace(stream=actor.stream[1:]))
            elif isinstance(request, Ask) and request.what in _NOTES:
                now, answer = self._note(now, request), None
            else:
                if isinstance(request, Ask) and request.what == "perform":
                    self.fates.begins(now, number, request.of)
                return now
            now = self._answered(now, number, answer)

    def _note(self, now: Situation, request: Ask) -> Situation:
        if request.what == "rescued":
            for at, each in enumerate(now.actors):
                if each.local == DEAD and self.identity(at, each) == request.of:
                    now = _with(now, at, Actor(RESCUED, life=each.life))
        return self.fates.told(now, request)

    def _serve(self, now: Situation, number: int, refusal: Refusal) -> Situation:
        """The server carries out a command; and with it the next one that was sent together with
        it, if that one has changed nothing, and registered no keys."""
        while True:
            actor = now.actors[number]
            then = self._serve_one(now, number, refusal)
            is_alone = len(actor.wire) == 1 or self.commands.values[actor.wire[0]][1]
            if is_alone or refusal or then.store != now.store:
                return then
            now = then

    def _serve_one(self, now: Situation, number: int, refusal: Refusal) -> Situation:
        actor = now.actors[number]
        sent, tracked = self.commands.values[actor.wire[0]]
        reply = self.store.run(now.store, sent, refusal)
        before, now = now, self._changed(now, number, reply.state, reply.changed)
        item = self.items.number(("reply", reply.value))
        actor = now.actors[number]
        keys = actor.keys.union(sent[1:]) if tracked else actor.keys
        stream = (*actor.stream, item)
        now = _with(now, number, actor._replace(wire=actor.wire[1:], stream=stream, keys=keys))
        now = self.fates.served(before, now, number, sent)
        return self.go_on(now, number)

    def _serve_late(self, now: Situation, at: int) -> Situation:
        first, *rest = now.late[at]
        sent, _ = self.commands.values[first]
        reply = self.store.run(now.store, sent)
        before = now
        others = (*now.late[:at], *now.late[at + 1 :])
        now = now._replace(late=_late(others, tuple(rest)))
        now = self._changed(now, -1, reply.state, reply.changed)
        return self.fates.served(before, now, -1, sent)

    def _changed(self, now: Situation, by: int, state: int, changed: frozenset[bytes]) -> Situation:
        """The server tells those of the change who asked for it, but not who made it."""
        now = now._replace(store=state)
        for number, actor in enumerate(now.actors):
            if not (told := actor.keys & changed):
                continue
            keys, stream = actor.keys - told, actor.stream
            if number != by:
                stream += tuple(self.items.number(("report", (key,))) for key in sorted(told))
            now = _with(now, number, actor._replace(keys=keys, stream=stream))
            if number != by:
                now = self.go_on(now, number)
        return now

    def _cut(self, now: Situation, number: int, how: str) -> Situation:
        actor = now.actors[number]
        if how == "lose reply":
            sent, _ = self.commands.values[actor.wire[0]]
            reply = self.store.run(now.store, sent)
            before, now = now, self._changed(now, number, reply.state, reply.changed)
            now = self.fates.served(before, now, number, sent)
        elif how == "late loss":
            now = now._replace(late=_late(now.late, actor.wire))
        actor = now.actors[number]._replace(wire=(), stream=(), keys=frozenset())
        now = self._answered(_with(now, number, actor), number, LOST)
        return self.go_on(now, number)

    def _kill(self, now: Situation, number: int, *, is_late: bool) -> Situation:
        actor = now.actors[number]
        if is_late:
            now = now._replace(late=_late(now.late, actor.wire))
        begun = self.parts[number].process.nodes[actor.local].note[0]
        now = self._with_record(now, number, lives=False)
        return _with(now, number, Actor(DEAD, life=actor.life, begun=begun))

    def _with_record(self, now: Situation, number: int, *, lives: bool) -> Situation:
        """A child has a record in Redis while it lives: its heartbeats renew it. That of a dead one
        expires, here at once."""
        identity = self.identity(number, now.actors[number]).encode()
        state = dict(self.store.states[now.store])
        if lives:
            state[identity] = ("hash", ((b"info", b"{}"),))
        else:
            state.pop(identity, None)
        return now._replace(store=self.store.number_of(state))

    # Names

    def request(self, number: int, actor: Actor) -> Any:
        """What the process asks."""
        return self.parts[number].process.nodes[actor.local].request

    def identity(self, number: int, actor: Actor) -> str:
        """Under which this child is known in Redis."""
        return self.parts[number].identity % actor.life

    def _life(self, now: Situation, number: int) -> int:
        """A new child gets a name of which no trace is left, nor a process that may know it."""
        contents = repr(
            (
                self.store.states[now.store],
                [self.commands.values[c] for each in now.late for c in each],
            )
        )
        sweeps = (
            (at, each) for at, each in enumerate(now.actors) if self.parts[at].name == "the sweep"
        )
        is_known = any(self.request(at, each) != Ask("sweep") for at, each in sweeps)
        lives = range(now.actors[number].life + 1 if is_known else 0, 100)
        return next(at for at in lives if self.parts[number].identity % at not in contents)

    def sleeps_on(self, now: Situation, number: int) -> tuple[bytes, ...] | None:
        """The fetch that a sleeping child would send if it were woken; None if none sleeps."""
        actor = now.actors[number]
        if actor.local < 0 or not self.parts[number].is_child:
            return None
        node = self.parts[number].process.nodes[actor.local]
        if not isinstance(node.request, Wait) or not node.note[1]:
            return None
        return self._renamed(number, actor, node.note[1])

    def _renamed(self, number: int, actor: Actor, command: tuple[bytes, ...]) -> tuple[bytes, ...]:
        token, own = self._names(number, actor)
        return tuple(part.replace(token, own) for part in command)

    def _sent(self, number: int, actor: Actor, sent: tuple[tuple[bytes, ...], bool]) -> int:
        command, tracked = sent
        if self.parts[number].is_child:
            command = self._renamed(number, actor, command)
        return self.commands.number((command, tracked))

    def _names(self, number: int, actor: Actor) -> tuple[bytes, bytes]:
        token = SOLO if self.parts[number].nonce == "solo" else ORDINARY
        return token.encode(), self.identity(number, actor).encode()


# What a process tells the world, and does not wait for an answer.
_NOTES: Final = ("rescued", "pushed", "unknown", "not pushed", "act in vain")


def _with(now: Situation, number: int, actor: Actor) -> Situation:
    actors = (*now.actors[:number], actor, *now.actors[number + 1 :])
    return now._replace(actors=actors)


def _late(late: tuple[tuple[int, ...], ...], more: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(sorted((*late, more))) if more else late


def _parts(world: World) -> Iterator[Part]:
    queues, rules = tuple(world.queues), tuple(sorted(world.rules.items()))
    for at, capacity in enumerate(world.children):
        make = lambda capacity=capacity: Child(  # noqa: E731
            queues, world.rules, solo=False, capacity=capacity
        )
        nonce = "ab"[at] * 10
        process = _process(("child", queues, repr(rules), capacity), make)
        yield Part(f"child {'AB'[at]}", process, f"vm:1:{nonce}%02d", nonce)
    if world.solo:
        process = _process(
            ("solo", queues, repr(rules)), lambda: Child(queues, world.rules, solo=True)
        )
        yield Part("the solo child", process, "vm:1:solosssss%03d", "solo")
    yield Part("the master", _process(("master", queues), lambda: Master(queues)))
    if world.clock:
        yield Part("the clock", _process("clock", DueJobs))
    if world.sweep:
        yield Part("the sweep", _process("sweep", SweepClock))
    if world.ruby:
        yield Part("ruby", _process(("ruby", queues), lambda: Ruby(queues)))
    jobs = [job.encoded for job in world.jobs if job.pushed]
    yield Part("the pusher", Process(lambda: Pusher(jobs)))
    if world.person:
        yield Part("a person", Process(lambda: Person(world.person, world.rules)))
