"""Time zones as periods in which clocks keep their offset from UTC. Used by forkq/cron/ only.

zoneinfo gives the offset of one moment, and not when clocks change. A schedule needs the changes.
"""

from __future__ import annotations

import difflib
import zoneinfo
from datetime import datetime, timezone, tzinfo
from functools import cache
from typing import Final

import msgspec

from ..errors import InvalidSchedule

_DAY: Final = 86400
# Names that mean another zone on each machine, or times with leap seconds: the clock that enqueues
# the job runs on another host, and would read another time in them.
_LOCAL: Final = frozenset({"localtime", "posixrules", "Factory", "local"})
_VARIANTS: Final = ("posix/", "right/")
_HORIZON: Final = 366  # days; a longer period is returned in parts


class Period(msgspec.Struct, frozen=True):
    """A period of a zone. From ``begin`` up to, not including, ``end`` (epoch seconds) clocks are
    ``offset`` seconds ahead of UTC. ``before`` is the offset just before ``begin``; equal if clocks
    did not change then."""

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
        """The period around ``moment``: it begins a day before at the earliest, and ends about a
        year later at the latest.

        If it begins with a clock change, ``before`` differs from ``offset``. If not, clocks did not
        change within the day before its ``begin`` either.
        """
        latest = self._latest  # read once: other threads may replace it
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
        """The first second whose offset differs from that of ``early``. That of ``late`` must
        differ."""
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
    """The name of a zone given by name or as a ``ZoneInfo``. Raises InvalidSchedule."""
    name = getattr(tz, "key", None) if isinstance(tz, tzinfo) else tz
    if not isinstance(name, str):
        raise InvalidSchedule(
            f'tz: {tz!r} has no name; pass an IANA name such as "Europe/Berlin", or "UTC"'
        )
    return name


@cache
def zone_of(name: str) -> Zone:
    """The zone of that name. Raises InvalidSchedule, with the nearest known name."""
    if name == "UTC":  # works without a time zone database
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
        return "; this machine knows only UTC: install tzdata (pip install tzdata)"
    words = {known.rpartition("/")[2].lower(): known for known in sorted(names)}
    words |= {known.lower(): known for known in sorted(names)}
    word = str(name).lower().replace(" ", "_")
    near = difflib.get_close_matches(word, words, 1)
    hint = f", the nearest one is {words[near[0]]!r}" if near else ""
    return f'{hint}; use an IANA name such as "Europe/Berlin", or "UTC"'
