"""Charts over time: bars of counts, and lines of values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec
from markupsafe import Markup

from ...api import Deploy
from .axes import LABELS, TimeAxis, ValueAxis, clock
from .columns import column
from .deploys import marks
from .svg import chart, element, joined, stretched, tooltip

Label: TypeAlias = Callable[[float], str]

_HEIGHT: Final = 180
_NOTHING: Final = "No job has ended in this time. Figures come with the heartbeats of the children."


class TimeSlot(msgspec.Struct, frozen=True):
    """What was counted in one slot of time: ``good`` in the bar's foot, ``failed`` on top of it."""

    good: int
    failed: int = 0


class PlotLine(msgspec.Struct, frozen=True):
    """A line: its ``name`` is its class, too. None in ``values``: nothing is known there."""

    name: str
    values: Sequence[float | None]


def bars(
    slots: Sequence[TimeSlot],
    axis: TimeAxis,
    *,
    summary: str,
    deploys: Sequence[Deploy] = (),
    height: int = _HEIGHT,
) -> Markup:
    """A chart with one bar for each slot of ``axis``; a sentence if there is nothing."""
    if not (deploys or any(one.good or one.failed for one in slots)):
        return element("p", _NOTHING, class_="quiet")
    upward = ValueAxis.over(max((one.good + one.failed for one in slots), default=0), height)
    width = 1 / max(1, len(slots))
    step = (axis.end - axis.start) * width
    drawn = (
        column(
            at * width, width, upward, (one.good, one.failed), _told(one, axis.start + at * step)
        )
        for at, one in enumerate(slots)
        if one.good or one.failed
    )
    return chart(
        summary,
        height + LABELS,
        upward.grid(),
        joined(drawn),
        upward.values(lambda value: f"{value:,.10g}"),
        marks(deploys, axis, height),
        axis.labels(height),
        kind="bars",
    )


def _told(slot: TimeSlot, moment: float) -> str:
    return f"{clock(moment)} UTC: {slot.good:,} done, {slot.failed:,} failed"


def lines(
    series: Sequence[PlotLine],
    axis: TimeAxis,
    *,
    summary: str,
    label: Label,
    deploys: Sequence[Deploy] = (),
) -> Markup:
    """A chart with each of ``series`` as a line. A single value between two gaps is a dot: it is
    seen, too."""
    known = [value for line in series for value in line.values if value is not None]
    upward = ValueAxis.over(max(known, default=0), _HEIGHT)
    drawn = [path for line in series for path in _line(line, upward)]
    return chart(
        summary,
        _HEIGHT + LABELS,
        upward.grid(),
        stretched(_HEIGHT, *drawn),
        upward.values(label),
        marks(deploys, axis, _HEIGHT),
        axis.labels(_HEIGHT),
        kind="lines",
    )


def _line(line: PlotLine, axis: ValueAxis) -> list[Markup]:
    """One line: a path for each run of known values. A stroke with round ends and no length is a
    dot."""
    step = 1000 / max(1, len(line.values))
    found: list[Markup] = []
    for run in _runs(line.values):
        points = [f"{(at + 0.5) * step:.5g} {axis.y(value)}" for at, value in run]
        path = f"M{points[0]}h0" if len(points) == 1 else "M" + "L".join(points)
        found.append(element("path", tooltip(line.name), d=path, class_=f"line {line.name}"))
    return found


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    runs: list[list[tuple[int, float]]] = [[]]
    for at, value in enumerate(values):
        if value is not None:
            runs[-1].append((at, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]
