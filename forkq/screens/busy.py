"""What runs, by host, and how long a run usually takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from .. import api

_MINUTES: Final = 60


@dataclass(frozen=True, slots=True)
class Host:
    """The processes of one host, and what they have together. ``rss`` in KiB."""

    name: str
    processes: tuple[api.Process, ...]

    @property
    def busy(self) -> int:
        return sum(process.busy for process in self.processes)

    @property
    def threads(self) -> int:
        return sum(process.concurrency for process in self.processes)

    @property
    def rss(self) -> int:
        return sum(process.rss for process in self.processes)


def hosts(processes: Sequence[api.Process]) -> list[Host]:
    """``processes``, which are sorted by host, by host."""
    groups = groupby(processes, key=lambda process: process.hostname)
    return [Host(name, tuple(members)) for name, members in groups]


def usual(server: api.Server, jobs: Iterable[api.RunningJob]) -> dict[str, float]:
    """For each class the time that 95 of 100 runs did not exceed, if that is known."""
    names = sorted({job.job for job in jobs})
    found = api.Metrics(server).histograms(names, _MINUTES) if names else {}
    known = {name: histogram.percentile(95) for name, histogram in found.items()}
    return {name: seconds for name, seconds in known.items() if seconds}
