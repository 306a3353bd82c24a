"""Wall-clock stamps as they stand in payloads. Everything that *waits* uses time.monotonic."""

from __future__ import annotations

import sys
import time
from datetime import datetime, timedelta
from typing import TypeAlias

from .errors import InvalidJob, shown

Moment: TypeAlias = "int | float | datetime | timedelta"

# Below this a number given as a time means "seconds from now"; above it, an epoch (docs/wire.md).
_EPOCH_FLOOR = 1e9
# Epoch milliseconds of 1973 and epoch seconds of the year 5138: no stamp of ours is ambiguous.
_MILLISECONDS_FLOOR = 1e11


def now() -> float:
    """Epoch seconds, always with a fraction: Sidekiq 8 takes a whole number for milliseconds."""
    stamp = time.time()
    return stamp if stamp % 1 else stamp + 1e-6


def seconds(stamp: float) -> float:
    """Epoch seconds of a stamp read from a payload; Sidekiq 8 writes integer milliseconds."""
    # A payload may hold an integer that no float can: it must not end the process that reads it.
    stamp = max(0, min(stamp, sys.float_info.max))
    return stamp / 1000 if stamp >= _MILLISECONDS_FLOOR else float(stamp)


def due(moment: Moment, at: float | None = None) -> float:
    """The epoch second that ``moment`` means, seen from ``at`` (default: now).

    A number below 1e9 and a timedelta count from now; a datetime must know its zone, because
    "09:00" on a server in another zone is a job that runs at the wrong hour.
    Raises InvalidJob for anything else, and for a number of milliseconds.
    """
    epoch = _epoch(moment, now() if at is None else at)
    if epoch >= _MILLISECONDS_FLOOR:
        # Every reader of ours would take it for milliseconds, and who wrote it meant them.
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
