"""Is anything wrong? The worst facts, in words, for the line on top of every page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ..api import QueueState
from ..limits.patterns import matches_any
from ..store.damage import about
from ..store.held_classes import DEADLY_DEATHS
from ..units import format_duration, format_share, plural
from ..wire.printable import printable
from .facts import Facts
from .queue_acts import path_of
from .texts import name

MOST: Final = 3
BEHIND: Final = 300.0  # seconds that a job may wait
_SILENT: Final = 30.0  # seconds without a heartbeat
_FULL: Final = 0.9
_LATELY: Final = 10  # minutes
_MANY: Final = 20  # failures in that time
_SURGE: Final = 5  # times as many as before


@dataclass(frozen=True, slots=True)
class Problem:
    """``says`` is a sentence; ``path`` is the page of the web UI that shows more. ``urgent``: a
    person must act now; else it may come to that. ``shard``: where, if it is another one than that
    of the page."""

    says: str
    path: str = "/"
    urgent: bool = True
    shard: str = ""


def problems(facts: Facts, most: int = MOST) -> list[Problem]:
    """The worst ones; the first page shows the others."""
    found = [problem for check in _CHECKS for problem in check(facts)]
    found.sort(key=lambda problem: not problem.urgent)
    rest = len(found) - most
    more = [Problem(f"and {plural(rest, 'problem')} more", "/", urgent=False)] if rest > 0 else []
    return [*found[:most], *more]


def _redis(facts: Facts) -> Iterator[Problem]:
    memory = facts.memory
    if memory.share >= _FULL:
        yield Problem(f"Redis is {format_share(memory.share)} full ({memory.policy})")
    if facts.replica_of:
        yield Problem(
            f"Redis is a replica of {facts.replica_of}, which takes no writes: give the address of "
            "the master"
        )


def _damage(facts: Facts) -> Iterator[Problem]:
    for key in facts.slow.damaged:
        yield Problem(f"{name(key)} is damaged: {about(key)['remedy']}")


def _processes(facts: Facts) -> Iterator[Problem]:
    if not facts.processes:
        if facts.stats.enqueued:
            jobs = plural(facts.stats.enqueued, "job")
            yield Problem(f"no process runs jobs: {jobs} waiting, start forkq", "/busy")
        return
    for process in facts.processes:
        if process.silent_for > _SILENT:
            who = f"process {process.pid} on {name(process.hostname)}"
            yield Problem(f"{who} is silent for {format_duration(process.silent_for)}", "/busy")
    refused = Counter(process.refused for process in facts.processes if process.refused)
    for why, count in refused.items():
        yield Problem(f"{printable(why)} ({plural(count, 'process', 'processes')})", "/busy")
    if not facts.has_leader and any(process.master for process in facts.processes):
        yield Problem("no clock leads: nothing scheduled or retried becomes due", "/busy")


def _classes(facts: Facts) -> Iterator[Problem]:
    for held in facts.held:
        deaths = f"has killed {DEADLY_DEATHS} processes within a minute"
        yield Problem(f"class {name(held.name)} {deaths}; its jobs run alone", "/dead")


def _failures(facts: Facts) -> Iterator[Problem]:
    """A class that fails much more often than it did."""
    for one in facts.slow.hour.classes:
        before = [point.failed for point in one.points[:-_LATELY]]
        failed, earlier = sum(point.failed for point in one.points[-_LATELY:]), sum(before)
        usual = earlier / max(1, len(before)) * _LATELY
        if failed >= _MANY and failed > _SURGE * usual:
            runs = plural(failed, "run")
            rest = f"{earlier:,} in the {len(before)} min before"
            yield Problem(f"{runs} of {name(one.job)} failed in {_LATELY} min, {rest}", "/retries")


def _queues(facts: Facts) -> Iterator[Problem]:
    served = [queue for process in facts.processes for queue in process.queues]
    for state in facts.states:
        if state.size and facts.processes:
            yield from _queue(state, facts.latency(state.name), served)


def _queue(state: QueueState, wait: float, served: list[str]) -> Iterator[Problem]:
    path = path_of(state.name)
    what, jobs = f"queue {name(state.name)}", f"{plural(state.size, 'job')} waiting"
    waited = format_duration(wait)
    if not matches_any(state.name, served):
        yield Problem(f"no process serves {what}: {jobs}, the next for {waited}", path)
    elif state.paused:
        yield Problem(f"{what} is paused: {jobs}, the next for {waited}", path, urgent=False)
    elif wait > BEHIND:
        yield Problem(f"{what} is {waited} behind: {jobs}", path, urgent=False)


_CHECKS: Final[tuple[Callable[[Facts], Iterator[Problem]], ...]] = (
    _redis, _damage, _processes, _classes, _failures, _queues
)  # fmt: skip
