"""Figures of job classes over time, as forkq's children and Sidekiq's processes count them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import accumulate
from typing import Any, Final

from ..errors import ForkqError
from ..servers import Server
from ..wire.histogram import BOUNDS
from ..wire.times import now
from .door import OnServer

# How many minutes Redis keeps the hashes and histograms of a minute, and the hashes of ten.
MOST_MINUTES: Final = 8 * 60
MOST_TENS: Final = 3 * 24 * 60
_FIELDS: Final = {"p": 0, "f": 1, "ms": 2}
_BUCKETS: Final = len(BOUNDS) + 1


@dataclass(frozen=True, slots=True)
class Intervals:
    """A span of time in intervals of ``step`` seconds, with their names in Redis. It begins at
    ``begins``, epoch seconds."""

    begins: float
    step: int
    moments: tuple[datetime, ...]

    @property
    def metric_names(self) -> list[str]:
        """The names of the hashes of all classes."""
        minutes = [f"{moment:%y%m%d}|{moment.hour}:{moment:%M}" for moment in self.moments]
        return minutes if self.step == 60 else [minute[:-1] for minute in minutes]

    @property
    def histogram_names(self) -> list[str]:
        """The names of the histograms of one class."""
        return [f"{moment.day}-{moment.hour}:{moment.minute}" for moment in self.moments]

    @property
    def days(self) -> list[str]:
        """The days of the deploy marks."""
        return sorted({f"{moment:%Y%m%d}" for moment in self.moments})


def check_minutes(minutes: int, most: int) -> None:
    """Raises ForkqError for a span that Redis does not keep."""
    if not 1 <= minutes <= most:
        raise ForkqError(f"metrics of {minutes} minutes: they are kept for 1 to {most}")


def intervals(minutes: int, at: float | None) -> Intervals:
    """The intervals of the last ``minutes`` up to that of ``at`` (epoch seconds), by minute or by
    ten minutes."""
    step = 60 if minutes <= MOST_MINUTES else 600
    last = int((now() if at is None else at) // step) * step
    count = -(-minutes * 60 // step)
    first = last - (count - 1) * step
    begin = datetime.fromtimestamp(first, timezone.utc)
    moments = tuple(begin + timedelta(seconds=step * number) for number in range(count))
    return Intervals(float(first), step, moments)


def counts_by_class(found: Mapping[Any, Any]) -> dict[str, list[int]]:
    """The counts of each class in one hash (processed, failed, milliseconds), without what is no
    count."""
    classes: dict[str, list[int]] = {}
    for field, value in found.items():
        job, _, what = field.decode("utf-8", "replace").rpartition("|")
        if job and what in _FIELDS and value.isdigit():
            classes.setdefault(job, [0, 0, 0])[_FIELDS[what]] = int(value)
    return classes


def counts_in(raw: bytes | None) -> tuple[int, ...]:
    """The buckets of one histogram, 16 bits each."""
    padded = (raw or b"")[: 2 * _BUCKETS].ljust(2 * _BUCKETS, b"\0")
    return tuple(int.from_bytes(padded[at : at + 2], "big") for at in range(0, 2 * _BUCKETS, 2))


def percentile(buckets: Sequence[int], bounds: Sequence[float], percent: float) -> float | None:
    """The value that ``percent`` of the runs did not exceed: as if the runs of a bucket were
    spread evenly over it."""
    rank = sum(buckets) * percent / 100
    lower = (0.0, *bounds)
    if not any(buckets):
        return None
    for number, (count, before) in enumerate(zip(buckets, accumulate((0, *buckets)), strict=False)):
        if count and before + count >= rank:
            if number == len(bounds):
                return float(bounds[-1])
            share = max(0.0, rank - before) / count
            return lower[number] + share * (bounds[number] - lower[number])
    return float(bounds[-1])


_MOST_DAYS: Final = 90


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
        count = self.processed - self.failed
        return self.seconds / count if count > 0 else None


@dataclass(frozen=True, slots=True)
class Deploy:
    """A deploy mark: its label, and ``at`` in epoch seconds, to the minute."""

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
        nothing = tuple(
            _points({}, self.begins, self.step, int(self.ends - self.begins) // self.step)
        )
        rows = zip(nothing, *(each.points for each in self.classes), strict=True)
        return ClassMetrics("", tuple(map(_sum, rows)))


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
        return tuple(map(sum, zip(*self.columns, strict=True)))

    @property
    def count(self) -> int:
        """How many runs the histogram has."""
        return sum(self.buckets)

    def percentile(self, percent: float) -> float | None:
        """The run time in seconds that ``percent`` of the runs did not exceed, estimated within
        its bucket; None without a run. In the last bucket it is that bucket's lower bound."""
        return percentile(self.buckets, self.bounds, percent)

    def percentiles(self) -> tuple[float | None, float | None, float | None]:
        """The percentiles p50, p95 and p99."""
        return self.percentile(50), self.percentile(95), self.percentile(99)


class Metrics(OnServer):
    """What classes did lately. Redis has minutes for 8 hours, tens of minutes for 3 days, and
    histograms for 8 hours. The counts of a living child come with its next heartbeat.

    Raises ForkqError for a time that Redis does not keep, and ServerUnavailable.
    """

    __slots__ = ()

    def over(self, minutes: int = 60, *, at: float | None = None) -> MetricsReport:
        """The figures of all classes in the ``minutes`` before ``at`` (epoch seconds, default:
        now), by minute; by ten minutes if that is longer than 8 hours (at most 3 days)."""
        check_minutes(minutes, MOST_TENS)
        times = intervals(minutes, at)
        step = times.step
        server = self.server
        asked = (("HGETALL", server.keys.metrics(name)) for name in times.metric_names)
        hashes = server.ask_leniently(*asked)
        classes: dict[str, dict[int, list[int]]] = {}
        for number, found in enumerate(hashes):
            for job, figures in counts_by_class(found or {}).items():
                classes.setdefault(job, {})[number] = figures
        rows = [
            ClassMetrics(job, tuple(_points(found, times.begins, step, len(hashes))))
            for job, found in classes.items()
        ]
        rows.sort(key=lambda row: (-row.seconds, -row.processed, row.job))
        ends = times.begins + step * len(hashes)
        marks = _deploys(server, times.days)
        deploys = tuple(mark for mark in marks if times.begins <= mark.at < ends)
        return MetricsReport(times.begins, ends, step, tuple(rows), deploys)

    def histogram(self, job: str, minutes: int = 60, *, at: float | None = None) -> Histogram:
        """The run times of one class in the ``minutes`` (at most 480) before ``at``."""
        return self.histograms([job], minutes, at=at)[job]

    def histograms(
        self, jobs: Sequence[str], minutes: int = 60, *, at: float | None = None
    ) -> dict[str, Histogram]:
        """The run times of several classes, in few round trips."""
        check_minutes(minutes, MOST_MINUTES)
        times = intervals(minutes, at)
        names = [(job, minute) for job in jobs for minute in times.histogram_names]
        server = self.server
        asked = (("GET", server.keys.histogram(*name)) for name in names)
        replies = server.ask_leniently(*asked)
        columns = [counts_in(raw) for raw in replies]
        ends, size = times.begins + 60 * minutes, len(times.histogram_names)
        return {
            job: Histogram(job, times.begins, ends, 60, tuple(columns[size * n : size * (n + 1)]))
            for n, job in enumerate(jobs)
        }

    def deploys(self, days: int = 3) -> list[Deploy]:
        """The deploy marks of the last ``days`` days (UTC, at most 90), the oldest first."""
        if not 1 <= days <= _MOST_DAYS:
            raise ForkqError(f"deploy marks of {days} days: they are kept for 1 to {_MOST_DAYS}")
        today = datetime.fromtimestamp(now(), timezone.utc)
        return _deploys(
            self.server, [f"{today - timedelta(days=back):%Y%m%d}" for back in range(days)]
        )


def _points(
    found: Mapping[int, list[int]], begins: float, step: int, count: int
) -> Iterator[Point]:
    for number in range(count):
        processed, failed, milliseconds = found.get(number, (0, 0, 0))
        yield Point(begins + number * step, processed, failed, milliseconds / 1000)


def _sum(points: Sequence[Point]) -> Point:
    return Point(
        points[0].at,
        sum(point.processed for point in points),
        sum(point.failed for point in points),
        sum(point.seconds for point in points),
    )


def _deploys(server: Server, days: Sequence[str]) -> list[Deploy]:
    """The marks of these days, the oldest first. A mark that cannot be read is left out."""
    found = server.ask_leniently(*(("HGETALL", server.keys.marks(day)) for day in days))
    marks = [pair for each in found for pair in (each or {}).items()]
    deploys = (_deploy(*mark) for mark in marks)
    return sorted((one for one in deploys if one is not None), key=lambda one: one.at)


def _deploy(minute: bytes, label: bytes) -> Deploy | None:
    try:
        moment = datetime.fromisoformat(minute.decode().replace("Z", "+00:00"))
    except ValueError:
        return None
    at = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    return Deploy(at.timestamp(), label.decode("utf-8", "replace"))
