"""Metrics as they stand in Redis: the names of the intervals, and what is counted in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import accumulate
from typing import Any, Final

from ..errors import ForkqError
from ..wire.histogram import BOUNDS
from ..wire.times import now

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
