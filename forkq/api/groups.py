"""Failures grouped by class and error: what fails, how often, and since when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .filters import EVERY, Filter


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
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class FailureGroups:
    """Groups, the largest first. ``seen`` of ``total`` jobs were looked at, the newest ones."""

    groups: tuple[FailureGroup, ...]
    seen: int
    total: int

    def __iter__(self) -> Iterator[FailureGroup]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)


def failures(where: Filter = EVERY, *, most: int = 100_000) -> FailureGroups:
    """The retrying and the dead jobs together, grouped; of each set the newest ``most`` jobs at
    most. Raises ServerUnavailable."""
    raise NotImplementedError
