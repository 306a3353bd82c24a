"""Figures of job classes over time, as forkq's children and Sidekiq's processes count them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..wire.histogram import BOUNDS


@dataclass(frozen=True, slots=True)
class Point:
    """The runs that ended in one interval, which begins at ``at`` (epoch seconds): ``processed``
    (failed ones included), ``failed``, and ``seconds``, the sum of the successful runs."""

    at: float
    processed: int
    failed: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ClassMetrics:
    """The figures of one job class, one point for each interval, the oldest first."""

    job: str
    points: tuple[Point, ...]

    @property
    def processed(self) -> int:
        """How many runs ended, failed ones included."""
        return sum(point.processed for point in self.points)

    @property
    def failed(self) -> int:
        """How many runs failed."""
        return sum(point.failed for point in self.points)

    @property
    def seconds(self) -> float:
        """How long the successful runs took together."""
        return sum(point.seconds for point in self.points)

    @property
    def average(self) -> float | None:
        """How long a successful run took on average, in seconds; None if there was none."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Deploy:
    """A deploy mark: ``at`` in epoch seconds, to the minute."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class MetricsReport:
    """The figures of all classes from ``begins`` to ``ends`` (epoch seconds), in intervals of
    ``step`` seconds; the class with the most time spent first. ``deploys`` in that time."""

    begins: float
    ends: float
    step: int
    classes: tuple[ClassMetrics, ...]
    deploys: tuple[Deploy, ...]

    @property
    def total(self) -> ClassMetrics:
        """All classes together, under the name ""."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Histogram:
    """The run times of the successful runs of one class, from ``begins`` to ``ends`` (epoch
    seconds). ``columns`` has for each interval of ``step`` seconds, the oldest first, a count for
    each bucket; ``bounds`` are the upper bounds of the buckets in seconds, and one more bucket has
    all longer runs. A bucket of a minute counts to 65,535 at most."""

    job: str
    begins: float
    ends: float
    step: int
    columns: tuple[tuple[int, ...], ...]
    bounds: tuple[float, ...] = BOUNDS

    @property
    def buckets(self) -> tuple[int, ...]:
        """The counts of all intervals together."""
        raise NotImplementedError

    @property
    def count(self) -> int:
        """How many runs it has."""
        return sum(self.buckets)

    def percentile(self, percent: float) -> float | None:
        """The run time in seconds that so many percent of the runs did not exceed, estimated within
        its bucket; None without a run. In the last bucket it is that bucket's lower bound."""
        raise NotImplementedError

    def percentiles(self) -> tuple[float | None, float | None, float | None]:
        """p50, p95 and p99."""
        raise NotImplementedError


class Metrics:
    """What classes did lately. Redis has minutes for 8 hours, tens of minutes for 3 days, and
    histograms for 8 hours. The counts of a living child come with its next heartbeat.

    Raises ForkqError for a time that Redis does not keep, and ServerUnavailable.
    """

    __slots__ = ()

    def over(self, minutes: int = 60, *, at: float | None = None) -> MetricsReport:
        """All classes in the ``minutes`` before ``at`` (epoch seconds, default: now), by minute; by
        ten minutes if that is longer than 8 hours (at most 3 days)."""
        raise NotImplementedError

    def histogram(self, job: str, minutes: int = 60, *, at: float | None = None) -> Histogram:
        """The run times of one class in the ``minutes`` (at most 480) before ``at``."""
        raise NotImplementedError

    def histograms(
        self, jobs: Sequence[str], minutes: int = 60, *, at: float | None = None
    ) -> dict[str, Histogram]:
        """Those of several classes, in few round trips."""
        raise NotImplementedError

    def deploys(self, days: int = 3) -> list[Deploy]:
        """The deploy marks of the last ``days`` days (UTC, at most 90), the oldest first."""
        raise NotImplementedError
