"""The counts of a child, made without locks: each processor has its own tally.

One thread writes each count, and it only grows. The heartbeat adds the tallies up and subtracts
what it has flushed before (stats_flush.py), so nothing is lost between two threads.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Mapping
from operator import add
from typing import Any, Final, TypeAlias

import msgspec

from ...wire.histogram import BOUNDS, WAIT_BOUNDS
from ...wire.times import seconds as epoch
from ..failure.retry import Bury, Decision, Drop, End
from ..job_run import JobRun
from ..observers import JobObserver

_SHORT: Final = BOUNDS[0]
_SHORT_WAIT: Final = WAIT_BOUNDS[0]

# Queues whose waits are counted by name, here and in Redis; all others count as OTHER. A child may
# serve any number of them: a pattern has a queue for each tenant.
MOST_QUEUES: Final = 200
OTHER: Final = "(other)"
# The class of all jobs of which the app has registered none, and of what is no job: payloads may
# hold any name.
UNREGISTERED: Final = "(unregistered)"

# One job class in whole numbers: failures, those of them that are dead, those that were dropped,
# milliseconds of the successes, successes by bucket. One queue: milliseconds, waits by bucket.
Row: TypeAlias = "tuple[int, ...]"


class Figures(msgspec.Struct):
    """The runs of one job class: how many failed, and how many of these left the job ``dead`` or
    ``dropped`` it; the seconds of the others, as a sum and as a histogram with ``short`` as its
    first bucket."""

    failed: int = 0
    dead: int = 0
    dropped: int = 0
    seconds: float = 0.0
    short: int = 0
    longer: list[int] = msgspec.field(default_factory=lambda: [0] * len(BOUNDS))

    def row(self) -> Row:
        """A copy of the figures, in whole milliseconds."""
        milliseconds = int(self.seconds * 1000)
        return (self.failed, self.dead, self.dropped, milliseconds, self.short, *self.longer)


class Waits(msgspec.Struct):
    """How long jobs of one queue waited from the push to the start, with the fields that
    ``Figures`` has."""

    seconds: float = 0.0
    short: int = 0
    longer: list[int] = msgspec.field(default_factory=lambda: [0] * len(WAIT_BOUNDS))

    def row(self) -> Row:
        """A copy of the waits, in whole milliseconds."""
        return (int(self.seconds * 1000), self.short, *self.longer)


class Tally(msgspec.Struct):
    """Jobs of one processor. ``processed`` counts failures too; a job cut short by the stop counts
    as neither. Written by its processor only; others read."""

    processed: int = 0
    failed: int = 0
    classes: dict[str, Figures] = msgspec.field(default_factory=dict)
    queues: dict[str, Waits] = msgspec.field(default_factory=dict)

    def count_done(self, name: str, seconds: float) -> None:
        """Counts a job of the class ``name`` that was done in ``seconds``. Every job passes here. A
        short job, of which there may be many, needs no search for its bucket."""
        self.processed += 1
        try:
            figures = self.classes[name]
        except KeyError:
            figures = self._open(name)
        figures.seconds += seconds
        if seconds < _SHORT:
            figures.short += 1
        else:
            figures.longer[bisect(BOUNDS, seconds) - 1] += 1

    def count_failed(self, name: str, decision: Decision | None = None) -> None:
        """Counts a failed job of the class ``name``."""
        self.processed += 1
        self.failed += 1
        figures = self.classes.get(name) or self._open(name)
        figures.dead += isinstance(decision, Bury)
        figures.dropped += isinstance(decision, Drop | End)  # its retry would be too late
        figures.failed += 1

    def count_wait(self, queue: str, stamp: object, started: float) -> None:
        """Counts how long a job of ``queue`` has waited for its start, by its payload. Every job
        passes here. A payload may say anything, and the clocks of two hosts may differ."""
        if type(stamp) is int:
            stamp = epoch(stamp)  # Sidekiq 8 writes milliseconds
        if type(stamp) is not float or stamp <= 0:
            return
        waited = started - stamp
        waits = self.queues.get(queue) or self._open_queue(queue)
        if waited < _SHORT_WAIT:
            waits.short += 1
        else:
            waits.longer[bisect(WAIT_BOUNDS, waited) - 1] += 1
        if waited > 0:
            waits.seconds += waited

    def _open(self, name: str) -> Figures:
        return self.classes.setdefault(name, Figures())

    def _open_queue(self, queue: str) -> Waits:
        name = queue if len(self.queues) < MOST_QUEUES else OTHER
        return self.queues.setdefault(name, Waits())


class JobCounter(JobObserver):
    """Counts the jobs of one processor in its tally."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def done(self, run: JobRun) -> None:
        self._tally.count_done(run.counted_as, run.elapsed)
        if run.job is not None:
            unit = run.unit
            self._tally.count_wait(unit.queue_name, run.job.get("enqueued_at"), unit.started)

    def failed(self, run: JobRun, error: BaseException, decision: Decision) -> None:
        self._tally.count_failed(run.counted_as or UNREGISTERED, decision)
        if run.job is not None:
            unit = run.unit
            self._tally.count_wait(unit.queue_name, run.job.get("enqueued_at"), unit.started)


class Totals(msgspec.Struct, frozen=True):
    """The counts of a whole child since its fork. ``ran_twice``, by class: see
    lost_leases.py. ``ended``: how children before it have ended."""

    processed: int = 0
    failed: int = 0
    ran_twice: Mapping[str, Row] = msgspec.field(default_factory=dict)
    classes: Mapping[str, Row] = msgspec.field(default_factory=dict)
    queues: Mapping[str, Row] = msgspec.field(default_factory=dict)
    ended: Mapping[str, Row] = msgspec.field(default_factory=dict)


def total(
    tallies: Iterable[Tally],
    ran_twice: Mapping[str, int] | None = None,
    ended: Mapping[str, int] | None = None,
) -> Totals:
    """The sum of ``tallies``, while their processors add to them."""
    every = list(tallies)
    return Totals(
        sum(tally.processed for tally in every),
        sum(tally.failed for tally in every),
        _rows(ran_twice),
        _sums(tally.classes for tally in every),
        _sums(tally.queues for tally in every),
        _rows(ended),
    )


def _rows(counts: Mapping[str, int] | None) -> dict[str, Row]:
    return {name: (count,) for name, count in (counts or {}).items()}


def _sums(parts: Iterable[Mapping[str, Any]]) -> dict[str, Row]:
    """The rows of each name, added up."""
    sums: dict[str, Row] = {}
    for part in parts:
        for name, figures in dict(part).items():
            row = figures.row()
            sums[name] = tuple(map(add, sums[name], row)) if name in sums else row
    return sums
