"""The counts of a child, made without locks: each processor has a tally of its own.

One thread writes each count, and it only grows. The heartbeat adds the tallies up and subtracts
what it has flushed before (stats_flush.py), so nothing is lost between two threads.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import add
from typing import Final, TypeAlias

from ...wire.histogram import BOUNDS
from ..failure.retry import Decision
from ..job_run import JobRun
from ..observers import JobObserver

_SHORT: Final = BOUNDS[0]

# One job class in whole numbers: failures, milliseconds of the successes, successes by bucket.
Row: TypeAlias = "tuple[int, ...]"


@dataclass(slots=True)
class Figures:
    """The runs of one job class: how many failed; the seconds of the others, as a sum and as a
    histogram with ``short`` as its first bucket."""

    failed: int = 0
    seconds: float = 0.0
    short: int = 0
    longer: list[int] = field(default_factory=lambda: [0] * len(BOUNDS))

    def row(self) -> Row:
        """A copy, in whole milliseconds."""
        return (self.failed, int(self.seconds * 1000), self.short, *self.longer)


@dataclass(slots=True)
class Tally:
    """Jobs of one processor. ``processed`` counts failures too; a job cut short by the stop counts
    as neither. Written by its processor only; others read."""

    processed: int = 0
    failed: int = 0
    classes: dict[str, Figures] = field(default_factory=dict)

    def count_done(self, name: str, seconds: float) -> None:
        """A job of the class ``name`` was done in ``seconds``. Every job passes here. A short job,
        of which there may be many, needs no search for its bucket."""
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

    def count_failed(self, name: str) -> None:
        """A job failed; ``name`` is its class, empty if none is registered for it."""
        self.processed += 1
        self.failed += 1
        if name:
            (self.classes.get(name) or self._open(name)).failed += 1

    def _open(self, name: str) -> Figures:
        return self.classes.setdefault(name, Figures())


class JobCounter(JobObserver):
    """Counts the jobs of one processor in its tally."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def done(self, run: JobRun) -> None:
        self._tally.count_done(run.counted_as, run.elapsed)

    def failed(self, run: JobRun, error: BaseException, decision: Decision) -> None:
        self._tally.count_failed(run.counted_as)


@dataclass(frozen=True, slots=True)
class Totals:
    """The counts of a whole child since its fork. ``ran_twice``: see fetch/lost_leases.py."""

    processed: int = 0
    failed: int = 0
    ran_twice: int = 0
    classes: Mapping[str, Row] = field(default_factory=dict)


def total(tallies: Iterable[Tally], ran_twice: int = 0) -> Totals:
    """The sum of ``tallies``, while their processors add to them."""
    processed, failed, classes = 0, 0, dict[str, Row]()
    for tally in tallies:
        processed += tally.processed
        failed += tally.failed
        for name, figures in tally.classes.copy().items():
            row = figures.row()
            classes[name] = tuple(map(add, classes[name], row)) if name in classes else row
    return Totals(processed, failed, ran_twice, classes)
