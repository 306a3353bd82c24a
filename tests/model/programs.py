"""The processes of a world. Each runs forkq's own code; only its loop, or the order in which it is
called, is written here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from types import ModuleType
from typing import Any, Final, TypeAlias
from unittest import mock

import hiredis

from forkq import registry
from forkq.child.event_loop import EventLoop
from forkq.child.failure.ends import Ends
from forkq.child.failure.settle import Settler
from forkq.child.fetch_turn import FetchParts, make_fetch
from forkq.child.processor import Processor
from forkq.child.time_limits import TimeLimits
from forkq.clock.cancelled_jobs import CancelledJobs
from forkq.clock.due_jobs import DueJobMover
from forkq.clock.expired_jobs import ExpiredJobs
from forkq.clock.sweep import Sweep
from forkq.config.capsule import Capsule
from forkq.current_job import current_job
from forkq.errors import Cancelled, Discard, IterationStopped, ServerUnavailable, Snooze
from forkq.features.iterable.parts import Iteration
from forkq.limits.rules import Rulebook, Rules
from forkq.master.rescue import DeadChild, Rescue
from forkq.registry import JobSpec
from forkq.servers import Server
from forkq.store.channel import RedisChannel
from forkq.store.connection import ConnectionLost, RedisConnection, RedisError
from forkq.store.crash_record import ProcessDeath
from forkq.store.dead_set import DeadSetLimits
from forkq.store.outage import Outage
from forkq.store.recovery import Recovery
from forkq.store.route import Access, EncodedJob
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork, is_solo
from forkq.wire.marks import SNOOZED, is_suspect
from forkq.wire.payload import PayloadBounds, loads

from .talk import CLOCK, Ask, ModelConnection, Program, Talk

KEYS: Final = Keys()
# All children run under these names; the world puts the true ones in their place.
ORDINARY: Final = "vm:1:cccccccccccc"
SOLO: Final = "vm:1:solocccccccc"
CLASS: Final = "Work"
# Numbers above it are times, which only say how long something lasts.
_TIMES: Final = 1e5

Action: TypeAlias = "tuple[str, Callable[[Server], object]]"


class SilentLog:
    """Nobody reads what the processes of a model log."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *texts, **details: self


LOG: Final[Any] = SilentLog()


class ModelPool:
    """Lends the one connection of a process."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection

    @contextmanager
    def connection(self) -> Iterator[RedisConnection]:
        yield self.take()

    def take(self) -> RedisConnection:
        if not self._connection.reusable:
            self._connection.close()
            self._connection.connect()
        return self._connection

    def give_back(self, connection: RedisConnection) -> None:
        pass

    def close(self) -> None:
        pass


def _channel(talk: Talk) -> RedisChannel:
    channel = RedisChannel(Access("redis://model", "", 5.0, 2.0, None), KEYS, 1)
    pool: Any = ModelPool(ModelConnection(talk))
    channel._pool = pool
    return channel


class Child(Program):
    """A child with one thread that performs. ``capacity``: how many jobs it leases at a time; one
    is performed, the others are ready. A ``solo`` child is the only one of its tree. ``timed``: the
    time of day can change."""

    def __init__(
        self,
        queues: Sequence[str],
        rules: Mapping[str, Rules],
        *,
        solo: bool,
        timed: bool,
        capacity: int = 1,
    ) -> None:
        self.name = "solo child" if solo else "child"
        self._queues = queues
        self._rules = rules
        self._solo = solo
        self.is_timed = timed
        self._capacity = capacity
        self._processor: Processor | None = None
        self._fetch: Any = None

    def note(self) -> tuple[int, tuple[bytes, ...]]:
        """The number of the lease that has begun last, as the master reads it; and the fetch that
        it has made before it sleeps."""
        if self._processor is None:
            return 0, ()
        prepared = self._fetch.channel._prepared
        reader = hiredis.Reader()
        reader.feed(prepared[1] if prepared else b"*0\r\n")
        return int(self._processor._started[0]), tuple(reader.gets())

    def run(self, talk: Talk) -> None:
        fetch, settler, processor = self._make(talk)
        fetcher, leases, place = fetch.fetcher, fetch.leases, deque[UnitOfWork]()
        take = leases.taker(place)
        while True:
            place.clear()
            self._look_back(talk, fetch, processor)
            while (unit := fetcher.next(place, take)) is None:
                if leases.count().parked:  # the heartbeat sees to it, after a pause
                    talk.ask(Ask("pause"))
                    leases.endings.hurry()
                    settler.again_in_time()
                else:
                    fetcher.step()
                self._look_back(talk, fetch, processor)
            with _performing(talk, unit):
                processor.process(unit)

    def _make(self, talk: Talk) -> tuple[FetchParts, Settler, Processor]:
        identity = SOLO if self._solo else ORDINARY
        queues = tuple((name, 0) for name in self._queues)
        capsule = Capsule("c", queues, self._capacity, rules=Rulebook(self._rules))
        ends, outage = Ends(identity, KEYS, DeadSetLimits(KEYS)), Outage(LOG)
        connection = ModelConnection(talk)
        fetch = make_fetch(capsule, ends, connection, outage, LOG, solo=self._solo, ahead=False)
        pool: Any = ModelPool(connection)
        settler = Settler(fetch, pool, lambda: None)
        limits, role = TimeLimits(LOG), "sole" if self._solo else "ordinary"
        parts: Any = ("p", fetch, settler, (), _ignore, limits, EventLoop(LOG))
        processor = Processor(*parts, role=role)  # type: ignore[arg-type]
        self._processor, self._fetch = processor, fetch
        return fetch, settler, processor

    def _look_back(self, talk: Talk, fetch: FetchParts, processor: Processor) -> None:
        """Between two steps of the fetcher it does not matter how it came here. A child that has no
        lease, here or in Redis, is as one that has never had one: it counts its leases from 1
        again, so that equal states are found equal."""
        leases, channel = fetch.leases, fetch.channel
        is_drained = not leases.sequences() and not leases.must_compare
        if is_drained and channel.under_way is None and not channel._lost:
            channel._sequence, processor._started[0] = 1, 0
            if channel._prepared is not None:
                channel._prepare(channel._prepared[0].want)
        talk.checkpoint(lambda: knowledge(fetch, self._capacity))


def _ignore(error: BaseException, meaning: str) -> None:
    pass


@contextmanager
def _performing(talk: Talk, unit: UnitOfWork) -> Iterator[None]:
    """Within it the job of ``unit`` asks the world how it ends."""
    marks = loads(unit.payload).get("forkq")
    flags = [" alone"] if is_suspect(marks) else []
    flags += [" snoozed"] if isinstance(marks, dict) and SNOOZED in marks else []

    def perform(jid: str) -> None:
        how = talk.ask(Ask("perform", jid + "".join(flags)))
        if how == "fails":
            raise RuntimeError("the job fails")
        if how == "snoozes":
            raise Snooze(5)
        if how == "discards":
            raise Discard
        if how == "is cancelled":
            raise Cancelled
        if how == "iterates":
            _iterate(talk, jid)

    spec = JobSpec(CLASS, lambda view: perform, where="tests.model", is_iterable=True)
    with mock.patch.dict(registry._jobs, {CLASS: spec}):
        yield


def _iterate(talk: Talk, jid: str) -> None:
    """The job goes through its items, as ``IterationRun`` does. After each it saves, or stops, but
    not after the first one of a run: so it comes to its end."""
    running: Any = current_job()
    begun = at = running.cursors.load().cursor or 0
    while (how := talk.ask(Ask("step", f"{jid} {'at' if at > begun else 'from'} {at}"))) != "ends":
        at += 1
        if how == "stops":
            raise IterationStopped(Iteration(1, at, float(at)))
        running.cursors.save(Iteration(1, at, float(at)))


# What cannot change, or does not matter: names, caches, and how long something lasted.
_LEFT_OUT: Final = frozenset(
    {
        *("_log", "_log_once", "_keys", "_owner", "_capsule", "_rules_of", "_entries", "_last"),
        *("connection", "_connection", "_outage", "_refusal", "_pace", "_plan", "_lock", "_news"),
        *(
            "_added",
            "_waker",
            "_surplus",
            "_occupied",
            "on_lost",
            "on_writes_lost",
            "look_for_lost",
        ),
        *("make", "told", "released", "queue", "_prepared", "_solo_keys", "_queues_of"),
    }
)


def knowledge(fetch: FetchParts, capacity: int) -> object:
    """All that a child knows between two steps of its fetcher."""
    pace: Any = fetch.fetcher._pace
    parts = (fetch.leases, fetch.channel, fetch.fetcher, fetch.ends.held)
    endings = fetch.leases.endings.moving.values()
    calls = tuple(repr(ending.make().arguments) for ending in endings)
    prepared = fetch.channel._prepared
    fetch_made = prepared[1] if prepared and fetch.channel._has_report else b""
    return (
        *map(_frozen, parts),
        calls,
        fetch_made,
        min(pace._misses, 1),
        min(pace.fitting, capacity),
    )


def _frozen(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str | bytes):
        return value
    if isinstance(value, float):
        return _moment(value) if value >= _TIMES else value
    if isinstance(value, Mapping):
        return tuple(sorted((repr(key), _frozen(each)) for key, each in value.items()))
    if isinstance(value, set | frozenset):
        return tuple(sorted(map(repr, value)))
    if isinstance(value, range):
        return (value.start, value.stop)
    if isinstance(value, Collection):
        return tuple(_frozen(each) for each in value)
    if callable(value) or isinstance(value, ModuleType):
        return None
    return (type(value).__name__, *((name, _frozen(each)) for name, each in _fields(value)))


def _moment(value: float) -> str:
    return "never" if value == inf else "later" if value > CLOCK.now else "before"


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    if not type(value).__module__.startswith("forkq."):
        return
    slots = getattr(type(value), "__slots__", ())
    names = [*slots, *getattr(value, "__dict__", ())]
    for name in sorted(set(names) - _LEFT_OUT):
        yield name, getattr(value, name)


class Master(Program):
    """Gives the jobs of dead children back. It asks for the next death: a child's identity, and
    the number of the lease that began last."""

    name = "master"

    def __init__(self, queues: Sequence[str]) -> None:
        self._queues = tuple(queues)

    def run(self, talk: Talk) -> None:
        rescue = Rescue(ModelConnection(talk), Recovery(DeadSetLimits(KEYS)), LOG)
        rescue.connect()
        while True:
            talk.checkpoint(lambda: "idle")
            identity, last_begun = talk.ask(Ask("death"))
            latest = None if is_solo(identity) else last_begun
            death = ProcessDeath(signal=9)
            rescue.add(DeadChild(identity, self._queues, death, last_begun=latest))
            while not rescue.advance():
                CLOCK.sleep(2.0)
            talk.ask(Ask("rescued", identity))


class DueJobs(Program):
    """The part of the clock that moves due jobs. Whatever has a time is due."""

    name = "clock"

    def __init__(self, *, timed: bool) -> None:
        self.is_timed = timed

    def run(self, talk: Talk) -> None:
        connection = ModelConnection(talk)
        mover = DueJobMover(KEYS, connection)
        while True:
            talk.checkpoint(lambda: connection.connected)
            talk.ask(Ask("due"))
            try:
                connection.connect()
                mover.load(watch=False)
                while mover.next_due() is not None:
                    mover.work()
            except (*ConnectionLost, RedisError):
                connection.close()


class LeaderLook(Program):
    """The part of the clock that looks into queues with marked jobs. After an error it goes on with
    the look that it has begun."""

    name = "leader"
    is_timed = True

    def run(self, talk: Talk) -> None:
        connection = ModelConnection(talk)
        jobs = ExpiredJobs(KEYS, connection, LOG)
        while True:
            talk.checkpoint(lambda: (connection.connected, _frozen(jobs._look)))
            if jobs._look is None:
                talk.ask(Ask("look"))
            try:
                connection.connect()
                jobs.load(watch=False)
                if jobs.next_due() is not None:
                    jobs.work()
                while jobs._look is not None:
                    jobs.work()
            except (*ConnectionLost, RedisError):
                connection.close()


class Canceller(Program):
    """The part of the clock that ends cancelled jobs where they wait. It makes one pass, and, where
    that has missed a job, the next one, whenever something is cancelled."""

    name = "canceller"

    def run(self, talk: Talk) -> None:
        connection = ModelConnection(talk)
        jobs = CancelledJobs(KEYS, connection, LOG)
        while True:
            missed = tuple(sorted((field, min(n, 2)) for field, n in jobs._missed.items()))
            talk.checkpoint(lambda missed=missed: (connection.connected, missed))  # type: ignore[misc]
            talk.ask(Ask("cancel"))
            try:
                connection.connect()
                jobs.load(watch=False)
                if jobs._marks:
                    jobs.work()
                while jobs._pass is not None:
                    jobs.work()
            except (*ConnectionLost, RedisError):
                connection.close()


class SweepClock(Program):
    """The clock of another host, which recovers the jobs of processes without a master."""

    name = "sweep"

    def run(self, talk: Talk) -> None:
        connection = ModelConnection(talk)
        recovery = Recovery(DeadSetLimits(KEYS))
        while True:
            talk.checkpoint(lambda: connection.connected)
            talk.ask(Ask("sweep"))
            sweep = Sweep(KEYS, connection, recovery, LOG, _much_later)
            sweep._host_watch.renew = lambda: None  # type: ignore[method-assign]
            try:
                connection.connect()
                sweep.run()
            except (*ConnectionLost, RedisError):
                connection.close()


def _much_later() -> float:
    """The sweep looks twice at a record that is missing; the second look comes at once."""
    CLOCK.sleep(20.0)
    return CLOCK.monotonic()


class Pusher(Program):
    """Pushes these jobs, one after the other."""

    name = "pusher"

    def __init__(self, jobs: Sequence[EncodedJob]) -> None:
        self._jobs = jobs

    def run(self, talk: Talk) -> None:
        channel = _channel(talk)
        for job in self._jobs:
            talk.checkpoint(lambda job=job: job.jid)  # type: ignore[misc]
            talk.ask(Ask("push", job.jid))
            duplicates: dict[str, str] = {}
            try:
                channel.push([job], duplicates=duplicates)
            except ServerUnavailable as error:
                told = "unknown" if error.unknown else "pushed" if error.pushed else "not pushed"
            else:
                told = "duplicate" if duplicates else "pushed"
            talk.ask(Ask(told, job.jid))
        talk.checkpoint(lambda: "done")
        talk.ask(Ask("done"))


class Person(Program):
    """Acts on queues and jobs, one action after the other."""

    name = "person"

    def __init__(self, actions: Sequence[Action], rules: Mapping[str, Rules]) -> None:
        self._actions = actions
        self._rules = rules

    def run(self, talk: Talk) -> None:
        channel = _channel(talk)
        bounds, rules = PayloadBounds(), Rulebook(self._rules)
        server = Server(channel.connection, KEYS, bounds, rules, lambda payload: None)
        for at, (what, action) in enumerate(self._actions):
            talk.checkpoint(lambda at=at: at)  # type: ignore[misc]
            talk.ask(Ask("act", what))
            try:
                action(server)
            except ServerUnavailable:
                talk.ask(Ask("act in vain", what))
        talk.checkpoint(lambda: "done")
        talk.ask(Ask("done"))


class Ruby(Program):
    """A process of Sidekiq: it pops jobs, and its poller moves due ones. It is written down here,
    since its code is not forkq's."""

    name = "ruby"

    def __init__(self, queues: Sequence[str]) -> None:
        self._queues = queues

    def run(self, talk: Talk) -> None:
        connection = ModelConnection(talk)
        connection.connect()
        while True:
            talk.checkpoint(lambda: "idle")
            queue = talk.ask(Ask("pop"))
            payload = connection.call("RPOP", KEYS.queue(queue))
            if payload is not None:
                talk.ask(Ask("perform", str(loads(payload)["jid"])))
