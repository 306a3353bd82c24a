"""Time zones as periods in which clocks keep their distance from UTC. Used by ``cron`` only.

zoneinfo answers for one moment at a time and does not say when clocks change; whoever walks through
local time needs to know just that.
"""

from __future__ import annotations

import difflib
import zoneinfo
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from functools import cache
from typing import Final

from ..errors import InvalidSchedule

_DAY: Final = 86400
# What each machine means by itself, or counts with leap seconds: the clock of another host, which
# enqueues the job, would take another time for it.
_LOCAL: Final = frozenset({"localtime", "posixrules", "Factory", "local"})
_VARIANTS: Final = ("posix/", "right/")
_HORIZON: Final = 366  # days that a period is followed ahead; what comes then is the next one


@dataclass(frozen=True, slots=True)
class Period:
    """From ``begin`` up to, not including, ``end`` (epoch seconds) clocks are ``offset`` seconds
    ahead of UTC. ``before`` is the offset just before ``begin``: the same, if nothing changed."""

    begin: int
    end: int
    offset: int
    before: int


class Zone:
    """A time zone by its IANA name; made by ``zone_of``."""

    def __init__(self, tz: tzinfo) -> None:
        self.tz = tz
        self._latest = Period(0, 0, 0, 0)

    def period(self, moment: int) -> Period:
        """The period around ``moment``, as far as a day back and a year ahead.

        One that begins with a change has another ``before``. If it has not, there was no change
        within the day before its ``begin`` either.
        """
        latest = self._latest  # read once: other threads may ask too
        if not latest.begin <= moment < latest.end:
            latest = self._latest = self._around(moment)
        return latest

    def _around(self, moment: int) -> Period:
        offset, back = self._offset(moment), moment - 2 * _DAY
        before = self._offset(back)
        begin = moment - _DAY if before == offset else self._change(back, moment)
        day, horizon = moment, moment + _HORIZON * _DAY
        while day < horizon and self._offset(day + _DAY) == offset:
            day += _DAY
        return Period(
            begin, day if day >= horizon else self._change(day, day + _DAY), offset, before
        )

    def _change(self, early: int, late: int) -> int:
        """The first second with another offset than ``early``'s; ``late`` has one."""
        offset = self._offset(early)
        while late - early > 1:
            middle = (early + late) // 2
            if self._offset(middle) == offset:
                early = middle
            else:
                late = middle
        return late

    def _offset(self, moment: int) -> int:
        offset = datetime.fromtimestamp(moment, self.tz).utcoffset()
        assert offset is not None
        return int(offset.total_seconds())


def zone_name(tz: str | tzinfo) -> str:
    """The name of a zone that is given by its name or as a ``ZoneInfo``. Raises InvalidSchedule."""
    name = getattr(tz, "key", None) if isinstance(tz, tzinfo) else tz
    if not isinstance(name, str):
        raise InvalidSchedule(
            f'tz: {tz!r} has no name; pass an IANA name such as "Europe/Berlin", or "UTC"'
        )
    return name


@cache
def zone_of(name: str) -> Zone:
    """The zone called ``name``. Raises InvalidSchedule, with the nearest name that there is."""
    if name == "UTC":  # known everywhere, with or without a database
        return Zone(timezone.utc)
    if name in _LOCAL or str(name).startswith(_VARIANTS):
        raise InvalidSchedule(
            f"{name!r} means another time on each machine; use an IANA name such as "
            '"Europe/Berlin", or "UTC"'
        )
    try:
        return Zone(zoneinfo.ZoneInfo(name))
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise InvalidSchedule(f"there is no time zone {name!r}{_remedy(name)}") from None


def _remedy(name: object) -> str:
    names = zoneinfo.available_timezones()
    if not names:
        return "; this machine knows no zone but UTC: install tzdata (pip install tzdata)"
    words = {known.rpartition("/")[2].lower(): known for known in sorted(names)}
    words |= {known.lower(): known for known in sorted(names)}
    word = str(name).lower().replace(" ", "_")
    near = difflib.get_close_matches(word, words, 1)
    hint = f", the nearest one is {words[near[0]]!r}" if near else ""
    return f'{hint}; use an IANA name such as "Europe/Berlin", or "UTC"'
