"""Failures grouped by class and error: what fails, how often, and since when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from ..servers import Server
from ..store.find_job import Location
from ..wire.times import now
from .changes import set_key
from .door import server as default_server
from .entry import JobEntry
from .filters import EVERY, Filter, check_filter
from .pages import SetPages

_HOURS: Final = 24


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """The jobs of one class that failed last with one class of error.

    ``count`` jobs, of which ``retrying`` wait for a retry and ``dead`` are dead. ``first_seen`` is
    the earliest first failure, ``last_seen`` the latest failure (epoch seconds; None: unknown).
    ``message`` is that of the latest. ``hourly`` counts their latest failures by hour, the last 24
    hours, the oldest hour first.
    """

    job: str
    error: str
    message: str
    count: int
    retrying: int
    dead: int
    first_seen: float | None
    last_seen: float | None
    hourly: tuple[int, ...]

    @property
    def where(self) -> Filter:
        """The filter that names exactly these jobs."""
        return Filter(job=f"={self.job}", error=f"={self.error}")


@dataclass(frozen=True, slots=True)
class FailureGroups:
    """Groups of failed jobs, the largest first. ``seen`` of ``total`` jobs were looked at."""

    groups: tuple[FailureGroup, ...]
    seen: int
    total: int

    @property
    def is_sample(self) -> bool:
        """Whether some were not looked at, so that a group may have more jobs than it counts."""
        return self.seen < self.total

    def __iter__(self) -> Iterator[FailureGroup]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)


def failures(
    where: Filter = EVERY, *, most: int = 100_000, server: Server | None = None
) -> FailureGroups:
    """The retrying and the dead jobs together, grouped; of each set ``most`` jobs at most,
    those with the highest scores. Raises ServerUnavailable."""
    return grouped(server or default_server(), ("retrying", "dead"), where, most)


def grouped(
    server: Server, locations: Sequence[Location], where: Filter, most: int
) -> FailureGroups:
    """The jobs of these sets by class and error."""
    check_filter(where)
    found: dict[tuple[str, str], _Group] = {}
    moment, seen = now(), 0
    for location in locations:
        for entry in islice(_newest(server, location), most):
            seen += 1
            if where.matches(entry, moment):
                group = found.setdefault((entry.name, entry.error_class), _Group())
                group.add(entry, moment)
    lists = [set_key(server.keys, location) for location in locations]
    sizes = server.ask_leniently(*(("ZCARD", key) for key in lists))
    groups = sorted((group.done(*names) for names, group in found.items()), key=_order)
    return FailureGroups(tuple(groups), seen, max(seen, sum(size or 0 for size in sizes)))


@dataclass(slots=True)
class _Group:
    """A group of failed jobs that is being counted."""

    retrying: int = 0
    dead: int = 0
    first: float | None = None
    last: float | None = None
    message: str = ""
    hourly: list[int] = field(default_factory=lambda: [0] * _HOURS)

    def add(self, entry: JobEntry, moment: float) -> None:
        self.retrying += entry.location == "retrying"
        self.dead += entry.location == "dead"
        first, last = entry.failed_at, entry.last_failed_at
        if first is not None:
            self.first = first if self.first is None else min(first, self.first)
        if last is None:
            return
        hour = int((moment - last) // 3600)
        if 0 <= hour < _HOURS:
            self.hourly[-1 - hour] += 1
        if self.last is None or last >= self.last:
            self.last, self.message = last, entry.error_message

    def done(self, job: str, error: str) -> FailureGroup:
        count = self.retrying + self.dead
        times, hourly = (self.first, self.last), tuple(self.hourly)
        return FailureGroup(
            job, error, self.message, count, self.retrying, self.dead, *times, hourly
        )


def _order(group: FailureGroup) -> tuple[int, float]:
    return -group.count, -(group.last_seen or 0.0)


def _newest(server: Server, location: Location) -> Iterable[JobEntry]:
    pages = SetPages(server, location, newest_first=True)
    while page := pages.next():
        yield from page
