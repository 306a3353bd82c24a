"""What a world has: jobs, processes, rules, and what may go wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from forkq.features import marked
from forkq.features.unique.parts import OnDuplicate
from forkq.features.unique.tickets import KINDS
from forkq.limits.rules import Rules
from forkq.store.route import EncodedJob
from forkq.units import plural
from forkq.wire.payload import dumps

from .commands import MOMENT
from .programs import (
    CLASS,
    Action,
    Canceller,
    Child,
    DueJobs,
    LeaderLook,
    Master,
    Person,
    Pusher,
    Ruby,
    SweepClock,
)
from .talk import Process, Program

Nature: TypeAlias = Literal["good", "fails", "poison", "snoozes", "discards", "iterates"]
How: TypeAlias = OnDuplicate | Literal["debounce"]
Fault: TypeAlias = Literal["kill", "late kill", "lose", "late loss", "OOM", "READONLY", "NOPERM"]


@dataclass(frozen=True)
class Job:
    """One job. ``nature``: it ends well, fails each time, kills each process that performs it,
    snoozes once and then ends well, discards itself, or has two items, between which it may stop.
    ``retries`` before it is dead. ``more``: other keys of its payload. ``expires_in``: seconds; 0:
    it does not expire. ``at``: for when it is scheduled, if it is. Without ``pushed`` it is in
    Redis at the beginning. ``doc``: all jobs with the same one share a lock, if they have one;
    ``how``: what a push does that finds it taken; or the job is debounced, and the next push takes
    its place while it waits in the schedule. ``once``: its push may be sent again."""

    jid: str
    queue: str = "a"
    nature: Nature = "good"
    retries: int = 0
    pushed: bool = True
    more: Mapping[str, Any] = field(default_factory=dict)
    expires_in: float = 0
    at: float | None = None
    doc: str = ""
    how: How = "skip"
    once: bool = False

    @property
    def gives_way(self) -> bool:
        """Whether a newer job of its lock takes its place."""
        return bool(self.doc) and (self.how in KINDS or self.is_debounced)

    @property
    def is_debounced(self) -> bool:
        """Whether it waits in the schedule until no more of its kind are pushed."""
        return self.how == "debounce"

    @property
    def _lock(self) -> dict[str, Any]:
        """The options of its lock."""
        if self.is_debounced:
            return {"debounce": 5, "debounce_max": 60}
        return {"unique_for": 60, "on_duplicate": self.how}

    @property
    def encoded(self) -> EncodedJob:
        job: dict[str, Any] = {
            "class": CLASS,
            "args": [self.jid],
            "queue": self.queue,
            "jid": self.jid,
            "retry": self.retries,
            "created_at": MOMENT + 0.5,
            **self.more,
        }
        made, needs = marked.Completed(), dict[str, Any]()
        if self.expires_in:
            needs["expires_in"] = self.expires_in
        if self.doc:
            needs |= {**self._lock, "unique_by": lambda jid: self.doc}
        if self.once:
            needs["once"] = True
        if needs:
            job["forkq"] = {**job.pop("forkq", {}), "needs": needs}
            made = marked.complete(job, self.at)
        return EncodedJob(self.jid, self.queue, self.at, dumps(job), 0, *made)


@dataclass(frozen=True)
class World:
    """What a world has. ``children``: the capacity of each ordinary child. ``faults``: what may go
    wrong, and how often in all. ``leader``: it looks into the queues with marked jobs;
    ``canceller``: it ends cancelled jobs where they wait."""

    name: str
    jobs: Sequence[Job]
    children: Sequence[int] = (1,)
    queues: Sequence[str] = ("a",)
    rules: Mapping[str, Rules] = field(default_factory=dict)
    solo: bool = False
    clock: bool = False
    leader: bool = False
    canceller: bool = False
    sweep: bool = False
    hasty: bool = False  # the sweep does not wait for the master's rescue
    ruby: bool = False
    person: Sequence[Action] = ()
    faults: Sequence[Fault] = ()
    most_faults: int = 0
    stored: Sequence[tuple[Any, ...]] = ()  # commands that make the state at the beginning

    @property
    def rates(self) -> frozenset[str]:
        """The queues that have a rate."""
        return frozenset(name for name, rules in self.rules.items() if rules.rate is not None)

    @property
    def is_timed(self) -> bool:
        """Whether the time of day can change: once all moments come at which a job expires, or at
        which a debounced one waits no longer."""
        return any(job.expires_in or job.is_debounced for job in self.jobs)

    @property
    def shown(self) -> str:
        """What it has, for people."""
        jobs = Counter(
            f"{job.nature}{' with an expiry' * bool(job.expires_in)}{', once' * job.once}"
            f"{f', {job.how}' * bool(job.doc)}"
            for job in self.jobs
        )
        more = ("solo", "clock", "leader", "canceller", "sweep", "ruby", "person")
        parts = [
            plural(len(self.children), "child", "children"),
            *(name for name in more if getattr(self, name)),
            ", ".join(f"{count} {nature}" for nature, count in jobs.items()),
        ]
        parts += [f"{plural(self.most_faults, 'fault')}"] if self.most_faults else []
        return "; ".join(parts)


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

    def request(self, local: int) -> Any:
        """What it asks in this state of its own."""
        return self.process.nodes[local].request


# Processes that run the same program share what is known of it, in all worlds.
_PROCESSES: Final[dict[Any, Process]] = {}


def _process(key: Any, make: Callable[[], Program]) -> Process:
    if key not in _PROCESSES:
        _PROCESSES[key] = Process(make)
    return _PROCESSES[key]


def parts_of(world: World) -> Iterator[Part]:
    """The roles of its actors, in their order."""
    queues, rules = tuple(world.queues), tuple(sorted(world.rules.items()))
    timed = world.is_timed
    for at, capacity in enumerate(world.children):
        make = lambda capacity=capacity: Child(  # noqa: E731
            queues, world.rules, solo=False, timed=timed, capacity=capacity
        )
        nonce = "ab"[at] * 10
        process = _process(("child", queues, repr(rules), timed, capacity), make)
        yield Part(f"child {'AB'[at]}", process, f"vm:1:{nonce}%02d", nonce)
    if world.solo:
        process = _process(
            ("solo", queues, repr(rules), timed),
            lambda: Child(queues, world.rules, solo=True, timed=timed),
        )
        yield Part("the solo child", process, "vm:1:soloeeeee%03d", "solo")
    yield Part("the master", _process(("master", queues), lambda: Master(queues)))
    if world.clock:
        yield Part("the clock", _process(("clock", timed), lambda: DueJobs(timed=timed)))
    if world.leader:
        yield Part("the leader", _process("leader", LeaderLook))
    if world.canceller:
        yield Part("the canceller", _process("canceller", Canceller))
    if world.sweep:
        yield Part("the sweep", _process("sweep", SweepClock))
    if world.ruby:
        yield Part("ruby", _process(("ruby", queues), lambda: Ruby(queues)))
    jobs = [job.encoded for job in world.jobs if job.pushed]
    yield Part("the pusher", Process(lambda: Pusher(jobs)))
    if world.person:
        yield Part("a person", Process(lambda: Person(world.person, world.rules)))
