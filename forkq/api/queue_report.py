"""Why a queue drains or does not: who serves it, and what holds it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..servers import Server
from ..store.damage import is_damaged, remedy
from ..wire.keys import Keys
from .door import server as default_server
from .processes import Process, processes
from .queues import QueueState, queues
from .running import RunningJob, running
from .stats import latency

# Worst first; only "full" and "rate" are usual in a busy system.
HoldKind: TypeAlias = Literal[
    "damaged", "paused", "unserved", "quiet", "limit", "rate", "full", "alone"
]


@dataclass(frozen=True, slots=True)
class Hold:
    """A reason why no job of the queue starts now, with a sentence for people.

    "damaged": its key holds another type. "paused": by hand. "unserved": no living process serves
    it. "quiet": those that serve it fetch no more. "limit": as many jobs are in progress as its
    limit allows (or the process_limit of each process). "rate": its rate allows none now. "full":
    every thread that serves it is busy. "alone": all its queued jobs are suspects, which a few solo
    children run.
    """

    kind: HoldKind
    text: str


@dataclass(frozen=True, slots=True)
class QueueReport:
    """A queue with all that tells why it drains or does not.

    ``state`` has size, busy and rules; ``latency`` is for how many seconds its next job, or its
    next suspect, has been queued, whichever is longer; ``served_by`` are the living processes that
    fetch from it, ``in_flight`` its jobs in progress. ``holds`` are the reasons why none starts
    now, the worst first; empty if it drains, or if it is empty. Redis does not count what goes into
    and out of a queue: sample ``state.size``.
    """

    state: QueueState
    latency: float
    served_by: tuple[Process, ...]
    in_flight: tuple[RunningJob, ...]
    holds: tuple[Hold, ...]

    @property
    def threads(self) -> int:
        """How many threads serve it, among other queues."""
        return sum(process.concurrency for process in self.served_by)


def queue_reports(*names: str, server: Server | None = None) -> list[QueueReport]:
    """The reports of these queues; without names, of every queue, by name. Costs some round trips
    for all together. Raises ServerUnavailable."""
    server = server or default_server()
    states = queues(*names, server=server)
    asked = (command for state in states for command in _questions(server.keys, state.name))
    replies = server.ask_leniently(*asked)
    living, jobs = processes(server), running(server=server)
    found = zip(states, replies[::3], replies[1::3], replies[2::3], strict=True)
    key = server.keys.queue
    return [
        _report(key(state.name), state, str(kind, "ascii"), max(map(latency, heads)), living, jobs)
        for state, kind, *heads in found
    ]


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
) -> QueueReport:
    serving = tuple(process for process in living if process.serves(state.name))
    in_flight = tuple(job for job in jobs if job.queue == state.name)
    holds = tuple(_holds(key, state, kind, serving, in_flight))
    return QueueReport(state, waited, serving, in_flight, holds)


def _holds(
    key: str,
    state: QueueState,
    kind: str,
    serving: Sequence[Process],
    jobs: Sequence[RunningJob],
) -> Iterator[Hold]:
    if is_damaged(key, kind):
        yield Hold("damaged", f"its key holds a {kind}: move it away with `{remedy(key)}`")
    elif state.size > 0:
        yield from _held_by_hand(state)
        yield from _held_by_processes(serving)
        yield from _held_by_rules(state, serving, jobs)
        yield from _held_by_suspicion(state)


def _held_by_hand(state: QueueState) -> Iterator[Hold]:
    if state.paused:
        yield Hold("paused", f"it is paused: `forkq resume {state.name}` ends that")


def _held_by_processes(serving: Sequence[Process]) -> Iterator[Hold]:
    active = [process for process in serving if not process.quiet]
    if not serving:
        yield Hold("unserved", "no living process serves it")
    elif not active:
        yield Hold("quiet", f"all {len(serving)} processes that serve it are quiet")
    elif all(process.busy >= process.concurrency for process in active):
        threads = sum(process.concurrency for process in active)
        yield Hold("full", f"all {threads} threads that serve it are busy")


def _held_by_rules(
    state: QueueState, serving: Sequence[Process], jobs: Sequence[RunningJob]
) -> Iterator[Hold]:
    if state.limit is not None and state.busy >= state.limit:
        yield Hold("limit", f"{state.busy} jobs are in progress, and its limit is {state.limit}")
    most, held = state.process_limit, Counter(job.identity for job in jobs)
    if most is not None and serving and all(held[one.identity] >= most for one in serving):
        yield Hold("limit", f"each process has as many jobs as its process_limit allows: {most}")
    if state.tokens is not None and state.tokens < 1:
        yield Hold("rate", f"its rate of {state.rate} allows no job now")


def _held_by_suspicion(state: QueueState) -> Iterator[Hold]:
    """Other jobs do not wait for the suspects of their queue."""
    if state.suspects == state.size:
        many = "1 suspect waits" if state.suspects == 1 else f"{state.suspects:,} suspects wait"
        yield Hold("alone", f"{many} to run alone, in a solo child")
