"""When a periodic job is due: a cron expression in a time zone. Used through ``entry``.

cronsim reads the fields and finds matching times, in local time without a zone. This module maps
them to real time across the clock changes of a zone, the same way for five and six fields.
cronsim's own rule applies to five fields only, and assumes that clocks change by whole hours; on
Lord Howe Island they do not.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cronsim import CronSim, CronSimError

from ..errors import InvalidSchedule
from .zones import Period, zone_of

_LONGEST: Final = 256  # characters of an expression
_LAST_MOMENT: Final = 2.5e11  # the year 9892: datetime ends in 9999
_EPOCH: Final = datetime(1970, 1, 1)  # of local time, which has no zone here
_SECOND: Final = timedelta(seconds=1)

_ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
# In the order of six fields, under the names in cronsim's errors.
_FIELDS: Final = {
    "second": "0 to 59",
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31 (a day that the month has), L (its last day), LW (its last weekday)",
    "month": "1 to 12 or JAN to DEC",
    "day-of-week": "0 to 7 or SUN to SAT (0 and 7: Sunday), 1#2 (second Monday), 5L (last Friday)",
}
# The first and the last value of each field, as numbers and, where there are names, by name.
_ENDS: Final = {
    "second": ("0", "59"),
    "minute": ("0", "59"),
    "hour": ("0", "23"),
    "day-of-month": ("1", "31"),
    "month": ("1", "12", "JAN", "DEC"),
    "day-of-week": ("0", "6", "SUN", "SAT"),
}
_NAMES: Final = {
    "month": ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"],
    "day-of-week": ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"],
}
_RANGE: Final = re.compile(r"(\w+)-(\w+)(?:/\d+)?")


@dataclass(frozen=True, slots=True)
class Schedule:
    """A cron expression in a time zone; made by ``parse``.

    Five fields (minute, hour, day of month, month, day of week), or six with seconds first, or an
    alias such as ``@daily``. As in Debian's cron, a day must match both day fields if one of them
    starts with ``*``, and either of them otherwise.

    When clocks change: an expression with fixed hours and minutes (neither field starts with ``*``)
    means times of day. A time of day that the change skips ticks once, right after the gap; one
    that happens twice ticks once, the first time. Any other expression means real time: a skipped
    time does not tick, and a time that happens twice ticks twice.
    """

    expression: str
    tz: str = "UTC"

    @classmethod
    def parse(cls, expression: str, tz: str = "UTC") -> Schedule:
        """Makes a schedule. Raises InvalidSchedule, which names the wrong field."""
        zone_of(tz)
        schedule = cls(_text(expression), tz)
        schedule._check()
        return schedule

    def after(self, moment: float) -> int | None:
        """The first tick after ``moment``, both in epoch seconds; None if there is none."""
        if moment > _LAST_MOMENT:
            return None
        zone, start = zone_of(self.tz), math.floor(moment) + 1
        period = zone.period(start)
        while (local := self._first_local(self._since(start, period))) is not None:
            tick = local - period.offset
            if tick < period.end:
                return max(start, tick)  # a tick that a gap skipped comes right after the gap
            start = period.end
            period = zone.period(start)
        return None

    def ticks(self, after: float, until: float, most: int) -> list[int]:
        """The first ``most`` ticks later than ``after`` and not later than ``until``, in order."""
        found: list[int] = []
        tick = self.after(after)
        while tick is not None and tick <= until and len(found) < most:
            found.append(tick)
            tick = self.after(tick)
        return found

    def _since(self, start: int, period: Period) -> int:
        """The local time from which a match counts, for a search that begins at ``start``.

        For times of day, a period begins at the local time at which the period before it ended, so
        that no time of day is skipped and none comes twice.
        """
        local = start + period.offset
        if not self._means_times_of_day:
            return local
        begin = period.begin + period.before
        return begin if start == period.begin else max(local, begin)

    def _first_local(self, local: int) -> int | None:
        """The first match at ``local`` or later; local time, in seconds since 1970."""
        try:
            found = next(CronSim(self._fields, _EPOCH + _SECOND * (local - 1)))
        except StopIteration:  # no match in fifty years: cronsim searches no further
            return None
        return (found - _EPOCH) // _SECOND

    @property
    def fields(self) -> list[str]:
        """The fields of an expression: five, or six with seconds first; for an alias those that it
        stands for."""
        return self._fields.split()

    @property
    def _fields(self) -> str:
        return _ALIASES.get(self.expression.lower(), self.expression)

    @property
    def _means_times_of_day(self) -> bool:
        minute, hour = self.fields[-5:-3]
        return not minute.startswith("*") and not hour.startswith("*")

    def _check(self) -> None:
        if len(self.fields) not in (5, 6):
            raise self._refused(
                f"expected five fields (minute hour day month weekday), six (second first), or one "
                f"of {', '.join(_ALIASES)}"
            )
        try:
            CronSim(self._fields, _EPOCH)
        except (CronSimError, ValueError) as error:
            raise self._refused(self._why(error)) from None
        self._check_steps()
        if self._first_local(0) is None:
            raise self._refused("no date ever matches its day-of-month, month and day-of-week")

    def _check_steps(self) -> None:
        """Refuses a step that is wider than its field, such as ``*/90`` minutes: it would only ever
        match the first value."""
        for name, text in self._named_fields():
            first, last = (int(end) for end in _ENDS[name][:2])
            for step in (int(item.partition("/")[2] or 0) for item in text.split(",")):
                if step > last - first:
                    raise self._refused(
                        f"{name} is {text!r}: a step of {step} never reaches a second value within "
                        f"{first} to {last}; for longer pauses use the fields to the right"
                    )

    def _named_fields(self) -> list[tuple[str, str]]:
        texts = self.fields
        return list(zip(list(_FIELDS)[-len(texts) :], texts, strict=True))

    def _refused(self, why: str) -> InvalidSchedule:
        return InvalidSchedule(f"cron expression {self.expression!r}: {why}")

    def _why(self, error: Exception) -> str:
        """The field that cronsim refused, its value, and what is expected there."""
        name = str(error).removeprefix("Bad ")
        if name not in _FIELDS:
            return str(error)
        text = dict(self._named_fields())[name]
        return (
            f"{name} is {text!r}; expected {_FIELDS[name]}, or a list, "
            f'range or step of these ("1,15", "1-5", "*/2"){_descent(name, text)}'
        )


def _descent(name: str, text: str) -> str:
    """What to write instead of the first descending range in a field; "" if there is none."""
    for item in text.split(","):
        found = _RANGE.fullmatch(item)
        if found is None:
            continue
        begin, end = found.groups()
        if int(_ENDS[name][1]) >= _number(name, begin) > _number(name, end) >= 0:
            first, last = _ENDS[name][:2] if begin.isdecimal() else _ENDS[name][-2:]
            return f"; a range must ascend: for {item} write {begin}-{last},{first}-{end}"
    return ""


def _number(name: str, text: str) -> int:
    """The number that ``value`` stands for, as a number or as a name; -1 if it is neither."""
    names = _NAMES.get(name, [])
    if text.upper() in names:
        return names.index(text.upper()) + (name == "month")
    return int(text) if text.isdecimal() else -1


def _text(expression: object) -> str:
    if not isinstance(expression, str) or len(expression) > _LONGEST:
        raise InvalidSchedule(
            f"expected a cron expression of at most {_LONGEST} characters, such as "
            f'"*/5 * * * *", found {str(expression)[:60]!r}'
        )
    return " ".join(expression.split())
