"""Why a queue drains or does not: who serves it, and what holds it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ..limits.patterns import matches_any
from ..servers import Server
from ..store.damage import is_damaged, remedy
from ..units import format_moment, plural
from ..values import replace
from ..wire.keys import Keys
from ..wire.lease import SILENT
from .door import server as default_server
from .processes import Process, processes
from .queues import QueueState, queues, state_of_parts
from .running import RunningJob, running
from .stats import latency

# Worst first; only "full" and "rate" are usual in a busy system.
HoldKind: TypeAlias = Literal[
    "damaged", "paused", "unserved", "quiet", "silent", "refused", "limit", "rate", "blocked",
    "full", "alone",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hold:
    """A reason why no job of the queue starts now, with a sentence for people.

    "damaged": its key holds another type. "paused": by hand. "unserved": no living process serves
    it. "quiet": those that serve it fetch no more. "silent": they have sent no heartbeat for 30 s.
    "refused": Redis refuses something to them. "limit": as many jobs are in progress as its limit
    allows (or the process_limit of each process). "rate": its rate allows none now. "blocked": a
    blocking queue before it has jobs in progress. "full": every thread that serves it is busy.
    "alone": all its queued jobs are suspects, which a few solo children of forkq run.
    """

    kind: HoldKind
    text: str


@dataclass(frozen=True, slots=True)
class Crew:
    """The processes that serve a queue, counted: ``size``, of which some are ``quiet``, ``silent``,
    or ``refused`` something by Redis; each counts once, in this order. The others have ``threads``,
    of which some are ``free`` as of the last heartbeats. ``of_forkq``: how many of forkq's own
    fetch. ``orders``: the lists of queues of those that fetch."""

    size: int
    quiet: int
    silent: int
    refused: int
    threads: int
    free: int
    of_forkq: int
    orders: frozenset[tuple[str, ...]]

    @classmethod
    def of(cls, members: Iterable[Process]) -> Crew:
        """Counts these processes."""
        every = list(members)
        fetching = [one for one in every if not one.quiet]
        beating = [one for one in fetching if one.silent_for <= SILENT]
        able = [one for one in beating if not one.refused]
        return cls(
            size=len(every),
            quiet=len(every) - len(fetching),
            silent=len(fetching) - len(beating),
            refused=len(beating) - len(able),
            threads=sum(one.concurrency for one in able),
            free=sum(max(0, one.concurrency - one.busy) for one in able),
            of_forkq=sum(bool(one.master) for one in fetching),
            orders=frozenset(one.queues for one in fetching),
        )


@dataclass(frozen=True, slots=True)
class QueueReport:
    """A queue with all that explains why it drains or does not.

    ``state`` has size, busy and rules; ``latency`` is for how many seconds its next job, or its
    next suspect, has been queued, whichever is longer; ``served_by`` are the living processes that
    fetch from it, ``in_flight`` its jobs in progress. ``holds`` are the reasons why none starts
    now, the worst first; empty if it drains, or if it is empty. Redis does not count what goes into
    and out of a queue: sample ``state.size``. Of a queue that is spread over several shards,
    ``parts`` has the report of each, by the name of the shard; else it is empty.
    """

    state: QueueState
    latency: float
    served_by: tuple[Process, ...]
    in_flight: tuple[RunningJob, ...]
    holds: tuple[Hold, ...]
    parts: Mapping[str, QueueReport] = field(default_factory=dict)

    @property
    def threads(self) -> int:
        """How many threads serve the queue, among other queues."""
        return sum(process.concurrency for process in self.served_by)


def queue_reports(*names: str, server: Server | None = None) -> list[QueueReport]:
    """The reports of these queues; without names, of every queue, by name. Costs some round trips
    for all together. Raises ServerUnavailable."""
    server = server or default_server()
    states = queues(*names, server=server)
    every = queues(server=server) if names and _some_block(server) else states
    blocking = [state for state in every if state.blocking]
    asked = (command for state in states for command in _questions(server.keys, state.name))
    replies = server.ask_leniently(*asked)
    living, jobs = processes(server), running(server=server)
    found = zip(states, replies[::3], replies[1::3], replies[2::3], strict=True)
    key = server.keys.queue
    return [
        _report(
            key(one.name), one, str(kind, "ascii"), max(map(latency, heads)), living, jobs, blocking
        )
        for one, kind, *heads in found
    ]


def of_parts(parts: Mapping[str, QueueReport]) -> QueueReport:
    """The report of a spread queue, made of those of its parts."""
    reports = list(parts.values())
    jobs = (job for one in reports for job in one.in_flight)
    return QueueReport(
        state=state_of_parts([one.state for one in reports]),
        latency=max(one.latency for one in reports),
        served_by=tuple(process for one in reports for process in one.served_by),
        in_flight=tuple(sorted(jobs, key=lambda job: -job.elapsed)),
        holds=tuple(_holds_of_parts(parts)),
        parts=parts,
    )


def _holds_of_parts(parts: Mapping[str, QueueReport]) -> Iterator[Hold]:
    """What holds the parts. What does not hold all of them names those that it holds."""
    held: dict[Hold, list[str]] = {}
    for name, report in parts.items():
        for hold in report.holds:
            held.setdefault(hold, []).append(name)
    for hold, names in held.items():
        on = "" if len(names) == len(parts) else f" (on {', '.join(names)})"
        yield replace(hold, text=f"{hold.text}{on}")


def _some_block(server: Server) -> bool:
    """Whether a rule makes a queue a blocking one. Only the configuration of this process can have
    such a rule."""
    return any(rules.blocking for rules in server.rules.entries.values())


def _questions(keys: Keys, name: str) -> list[tuple[Any, ...]]:
    own, suspects = keys.queue(name), keys.suspects(name)
    return [("TYPE", own), ("LINDEX", own, -1), ("LINDEX", suspects, -1)]


def _report(
    key: str,
    state: QueueState,
    kind: str,
    waited: float,
    living: Sequence[Process],
    jobs: Sequence[RunningJob],
    blocking: Sequence[QueueState],
) -> QueueReport:
    serving = tuple(process for process in living if process.serves(state.name))
    in_flight = tuple(job for job in jobs if job.queue == state.name)
    if is_damaged(key, kind):
        text = f"its key holds a {kind}: move it away with `{remedy(key)}`"
        return QueueReport(state, waited, serving, in_flight, (Hold("damaged", text),))
    held = Counter(job.identity for job in in_flight)
    most = state.process_limit
    used_up = most is not None and all(held[one.identity] >= most for one in serving)
    found = tuple(holds(state, Crew.of(serving), blocking, process_limit_reached=used_up))
    return QueueReport(state, waited, serving, in_flight, found)


def holds(
    state: QueueState,
    crew: Crew,
    blocking: Sequence[QueueState],
    *,
    process_limit_reached: bool,
) -> Iterator[Hold]:
    """The reasons why no job of a queue starts, the worst first; none for an empty queue.
    ``blocking`` are the queues that have this rule. Asks nothing."""
    if state.size > 0:
        if state.paused:
            yield Hold("paused", _paused(state))
        yield from _held_by_processes(crew)
        yield from _held_by_rules(state, process_limit_reached and crew.size > 0)
        yield from _held_by_queues(state.name, crew, blocking)
        yield from _held_by_suspicion(state, crew)


def _paused(state: QueueState) -> str:
    by = f" by {state.paused_by}" if state.paused_by else ""
    since = f", {format_moment(state.paused_at)}" if state.paused_at is not None else ""
    return f"it is paused{by}{since}: `forkq resume {state.name}` ends that"


def _held_by_processes(crew: Crew) -> Iterator[Hold]:
    fetching = crew.size - crew.quiet
    if not crew.size:
        yield Hold("unserved", "no living process serves it")
    elif not fetching:
        one = "the only process that serves it is quiet"
        several = f"all {crew.size} processes that serve it are quiet"
        yield Hold("quiet", one if crew.size == 1 else several)
    elif crew.silent == fetching:
        who = "the only process" if fetching == 1 else f"all {fetching} processes"
        yield Hold("silent", f"no heartbeat comes from {who} serving it")
    elif crew.silent + crew.refused == fetching:
        yield Hold("refused", "Redis refuses something to all processes that serve it: see Busy")
    elif not crew.free:
        one = "the only thread that serves it is busy"
        several = f"all {crew.threads} threads that serve it are busy"
        yield Hold("full", one if crew.threads == 1 else several)


def _held_by_rules(state: QueueState, process_limit_reached: bool) -> Iterator[Hold]:
    if state.limit is not None and state.leased >= state.limit:
        leased = plural(state.leased, "job is", "jobs are")
        yield Hold("limit", f"{leased} in progress, and its limit is {state.limit}")
    if process_limit_reached:
        most = state.process_limit
        yield Hold("limit", f"each process has as many jobs as its process_limit allows: {most}")
    if state.tokens is not None and state.tokens < 1:
        yield Hold("rate", f"its rate of {state.rate} allows no job now")


def _held_by_queues(name: str, crew: Crew, blocking: Sequence[QueueState]) -> Iterator[Hold]:
    for other in blocking:
        named = other.blocking is True or matches_any(name, other.blocking or ())
        if (
            other.leased
            and named
            and crew.orders
            and all(_comes_before(other.name, name, order) for order in crew.orders)
        ):
            running_ones = plural(other.leased, "job")
            yield Hold("blocked", f"the queue {other.name} blocks it: {running_ones} in progress")


def _comes_before(first: str, second: str, order: Sequence[str]) -> bool:
    """Whether a process with these queues and patterns serves both, in that order."""
    at = [
        next((at for at, entry in enumerate(order) if matches_any(name, (entry,))), None)
        for name in (first, second)
    ]
    return at[0] is not None and at[1] is not None and at[0] < at[1]


def _held_by_suspicion(state: QueueState, crew: Crew) -> Iterator[Hold]:
    """The reason why suspects wait. Other jobs do not wait for the suspects of their queue."""
    if state.suspects == state.size:
        many = plural(state.suspects, "suspect waits", "suspects wait")
        none = "" if crew.of_forkq or not crew.size else ", which no process that serves it has"
        yield Hold("alone", f"{many} to run alone, in a solo child{none}")
