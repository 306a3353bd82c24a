"""Wall-clock times, as payloads have them. Code that *waits* uses time.monotonic instead."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from ..errors import InvalidJob, shown

Moment: TypeAlias = "int | float | datetime | timedelta"

# Below this a number given as a time means "seconds from now"; above it, an epoch (docs/wire.md).
_EPOCH_FLOOR = 1e9
# Epoch milliseconds of 1973 and epoch seconds of the year 5138: no stamp of ours is ambiguous.
_MILLISECONDS_FLOOR = 1e11


_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", None)  # Linux only
# Seconds of a clock that cannot be set, and that runs while the host is suspended.
steady: Callable[[], float] = (
    time.monotonic if _BOOT_TIME is None else partial(time.clock_gettime, _BOOT_TIME)
)


class _Reading(NamedTuple):
    """The time was ``stamp``, in epoch seconds, when ``steady`` was ``at``."""

    stamp: float
    at: float


class _Pace:
    """The source of this process's time: the last reading, or without one the host's clock."""

    __slots__ = ("reading",)  # read for each job

    def __init__(self) -> None:
        self.reading: _Reading | None = None


_pace = _Pace()


def now() -> float:
    """Epoch seconds, always with a fraction: Sidekiq 8 takes a whole number for milliseconds.

    In a child and in the clock process it follows the clock of Redis (store/server_time.py)."""
    reading = _pace.reading
    stamp = time.time() if reading is None else reading.stamp + (steady() - reading.at)
    return stamp + 1e-6 if stamp.is_integer() else stamp


def follow(stamp: float, at: float) -> None:
    """Makes ``now`` count on from ``stamp``, the time when ``steady`` was ``at``."""
    _pace.reading = _Reading(stamp, at)


def follow_host() -> None:
    """Makes ``now`` the time of the host's clock."""
    _pace.reading = None


def seconds(stamp: float) -> float:
    """Epoch seconds of a stamp read from a payload; Sidekiq 8 writes integer milliseconds."""
    # A payload may hold an integer too large for a float: its reader must survive that.
    stamp = max(0, min(stamp, sys.float_info.max))
    return stamp / 1000 if stamp >= _MILLISECONDS_FLOOR else float(stamp)


def stamp_failure(job: dict[str, Any], *, again: bool = False) -> None:
    """Writes into a payload that the job has failed now: ``failed_at`` is its first failure,
    ``retried_at`` its latest later one. ``again``: it is known to have failed before."""
    job["retried_at" if again or has_failed(job) else "failed_at"] = now()


def has_failed(job: Mapping[str, Any]) -> bool:
    """Whether the payload says when the job has first failed."""
    return type(job.get("failed_at")) in (int, float)


def due(moment: Moment, at: float | None = None) -> float:
    """The epoch second that ``moment`` means, seen from ``at`` (default: now).

    A number below 1e9 and a timedelta count from now; a datetime must know its zone, because
    "09:00" on a server in another zone is a job that runs at the wrong hour.
    Raises InvalidJob for anything else, and for a number of milliseconds.
    """
    epoch = _epoch(moment, now() if at is None else at)
    if epoch >= _MILLISECONDS_FLOOR:
        raise InvalidJob(
            f"the time {shown(moment)} lies beyond the year 5138; a number of that size is most "
            "likely milliseconds: divide it by 1000"
        )
    return epoch


def _epoch(moment: Moment, at: float) -> float:
    if isinstance(moment, timedelta):
        return at + moment.total_seconds()
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidJob(
                f"the time {moment!r} has no time zone; pass an aware datetime, "
                "such as datetime.now(timezone.utc) + timedelta(hours=1)"
            )
        return moment.timestamp()
    if type(moment) not in (int, float) or not abs(moment) <= sys.float_info.max:
        raise InvalidJob(
            f"{shown(moment)} is not a time; pass seconds from now, epoch seconds, a timedelta "
            "or an aware datetime"
        )
    return at + moment if moment < _EPOCH_FLOOR else float(moment)
