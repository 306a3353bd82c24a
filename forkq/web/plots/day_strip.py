"""The strip of the next 24 hours: when each periodic job ticks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from markupsafe import Markup

from .axes import LABELS, TimeAxis, clock
from .svg import chart, element, joined, percent, tooltip

_ROW: Final = 26
DAY: Final = 86_400.0
# More ticks than this touch each other: they are one bar.
MOST_TICKS: Final = 120


class Ticks(msgspec.Struct, frozen=True):
    """The ticks of one periodic job in a day, epoch seconds; more than MOST_TICKS count as
    always. ``resting``: no tick is enqueued."""

    name: str
    moments: Sequence[float]
    resting: bool = False


def day_strip(rows: Sequence[Ticks], now: float) -> Markup:
    """The strip: one row for each periodic job, its name over its ticks; at the left is now."""
    axis = TimeAxis(now, now + DAY)
    height = len(rows) * _ROW
    drawn = (_row(one, number * _ROW, axis) for number, one in enumerate(rows))
    hours = (_hour(moment, axis, height) for moment in axis.round_times())
    summary = f"the next 24 hours of {len(rows)} periodic jobs; the table below has the times"
    parts = (joined(hours), joined(drawn), axis.labels(height))
    return chart(summary, height + LABELS, *parts, kind="strip")


def _hour(moment: int, axis: TimeAxis, height: int) -> Markup:
    x = percent(axis.share(moment))
    return element("line", x1=x, x2=x, y1=0, y2=height, class_="grid")


def _row(row: Ticks, top: int, axis: TimeAxis) -> Markup:
    name = element("text", row.name[:60], x=2, y=top + 12, class_="name")
    if len(row.moments) > MOST_TICKS:
        marks = [_always(row, top)]
    else:
        marks = [_tick(at, top, axis) for at in row.moments if axis.has(at)]
    return element("g", *marks, name, class_="row resting" if row.resting else "row")


def _always(row: Ticks, top: int) -> Markup:
    tip = tooltip(f"{row.name}: more than {MOST_TICKS} times a day")
    return element("rect", tip, x=0, y=top + 16, width="100%", height=6, class_="always")


def _tick(at: float, top: int, axis: TimeAxis) -> Markup:
    x = percent(axis.share(at))
    tip = tooltip(f"{clock(at)} UTC")
    return element("line", tip, x1=x, x2=x, y1=top + 15, y2=top + 23, class_="tick")
