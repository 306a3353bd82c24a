"""Wall-clock times, as payloads have them. Code that *waits* uses time.monotonic instead."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ..errors import InvalidJob, shown

Moment: TypeAlias = "int | float | datetime | timedelta"

# A larger number of seconds is a time stamp by mistake.
LONGEST_SECONDS: Final = 1e9
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


class _Standstill:
    """Stands in the place of a time of ``steady``: none has passed since then."""

    def __rsub__(self, _: float) -> float:
        return 0.0


_STILL: Final[Any] = _Standstill()


def freeze(stamp: float) -> None:
    """Makes ``now`` stay at ``stamp``. For ``forkq.testing``."""
    _pace.reading = _Reading(stamp, _STILL)


def is_frozen() -> bool:
    """Whether ``now`` stays where it is."""
    return _pace.reading is not None and _pace.reading.at is _STILL


@contextmanager
def kept() -> Iterator[None]:
    """Lets a test move the time of ``now``, and sets it back."""
    before = _pace.reading
    try:
        yield
    finally:
        _pace.reading = before


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


# ``backoff``: how long a failed job waits before each retry.

# What the option ``backoff`` can be. The payload has seconds.
Backoff: TypeAlias = Literal["exponential"] | float | timedelta | Sequence[float | timedelta]
EXPONENTIAL: Final = "exponential"
SPREAD: Final = 1.1  # times the delay, at most, of an exponential one
# In seconds: services that were overloaded are back within minutes, and a retry an hour costs one
# that is away for a day next to nothing.
_FIRST_BACKOFF: Final = 10.0
_LATEST_BACKOFF: Final = 3600.0
_DOUBLINGS: Final = 9  # beyond the longest


def is_backoff(value: object) -> bool:
    """Whether an option or a payload can have it."""
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_is_delay, value))
    return value == EXPONENTIAL or _is_delay(value)


def stored_backoff(value: Any) -> Any:
    """A valid option as the payload has it."""
    if isinstance(value, list | tuple):
        return [in_seconds(each) for each in value]
    return in_seconds(value)


def delay_of(backoff: Any, tries: int) -> float:
    """Seconds before the retry that follows failure number ``tries``, from 0 on, by a ``backoff``
    that ``is_backoff``. Exact, but that an exponential one is to be spread (``SPREAD``)."""
    if backoff == EXPONENTIAL:
        return float(min(_FIRST_BACKOFF * 2 ** min(tries, _DOUBLINGS), _LATEST_BACKOFF))
    delays = backoff if isinstance(backoff, list | tuple) else [backoff]
    return float(delays[min(tries, len(delays) - 1)])


def _is_delay(value: object) -> bool:
    found = in_seconds(value)
    return type(found) in (int, float) and 0 < found <= LONGEST_SECONDS


def in_seconds(value: Any) -> Any:
    """A timedelta as a number of seconds; any other value as it is."""
    return value.total_seconds() if isinstance(value, timedelta) else value
