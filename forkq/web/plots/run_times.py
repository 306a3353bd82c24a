"""Charts of run times: how they are spread (histogram), and how that changes (heat map)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from ...api import Deploy
from ...units import format_duration
from .axes import LABELS, TimeAxis, ValueAxis, clock
from .columns import column
from .deploys import marks
from .svg import chart, element, joined, percent, tooltip

_HEIGHT: Final = 160
_ROW: Final = 12  # pixels of a heat map's row
_FEWEST_ROWS: Final = 8
_MOST_LABELS: Final = 7
_PALEST: Final = 0.12


def histogram(counts: Sequence[int], bounds: Sequence[float], *, summary: str) -> Markup:
    """The chart of how many jobs ran for how long. ``bounds`` are the upper bounds of all buckets
    but the last, in seconds. Empty buckets at both ends are left out."""
    first, last = used(counts)
    upward = ValueAxis.over(max(counts, default=0), _HEIGHT)
    width = 1 / (last - first)
    drawn = (
        column((at - first) * width, width, upward, (counts[at], 0), _counted(at, counts, bounds))
        for at in range(first, last)
        if counts[at]
    )
    return chart(
        summary,
        _HEIGHT + LABELS,
        upward.grid(),
        joined(drawn),
        upward.values(lambda value: f"{value:,.10g}"),
        _bounds(first, last, bounds),
        kind="histogram",
    )


def used(counts: Sequence[int]) -> tuple[int, int]:
    """The first bucket to show, and the one after the last: the buckets with jobs, and one more on
    either side."""
    full = [at for at, count in enumerate(counts) if count]
    if not full:
        return 0, len(counts)
    return max(0, full[0] - 1), min(len(counts), full[-1] + 2)


def bucket(at: int, bounds: Sequence[float]) -> str:
    """The run times of a bucket, in words."""
    if at == 0:
        return f"under {format_duration(bounds[0])}"
    if at >= len(bounds):
        return f"{format_duration(bounds[-1])} and longer"
    return f"{format_duration(bounds[at - 1])} to {format_duration(bounds[at])}"


def _counted(at: int, counts: Sequence[int], bounds: Sequence[float]) -> str:
    return f"{bucket(at, bounds)}: {counts[at]:,}"


def _bounds(first: int, last: int, bounds: Sequence[float]) -> Markup:
    """The labels of the bounds between the buckets, as many as have room."""
    inner = range(first + 1, last)
    step = max(1, -(-len(inner) // _MOST_LABELS))
    return joined(
        element(
            "text",
            format_duration(bounds[at - 1]),
            x=percent((at - first) / (last - first)),
            y=_HEIGHT + 14,
            class_="time",
        )
        for at in inner[step // 2 :: step]
    )


def heat_map(
    columns: Sequence[Sequence[int]],
    bounds: Sequence[float],
    axis: TimeAxis,
    *,
    summary: str,
    deploys: Sequence[Deploy] = (),
) -> Markup:
    """A chart with one column for each slot of ``axis``, and a histogram in each: the more jobs,
    the darker. Longer times are higher."""
    total = [sum(column[at] for column in columns) for at in range(len(bounds) + 1)]
    first, last = _rows(total)
    height = (last - first) * _ROW
    most = max((count for column in columns for count in column), default=0)

    def cell(x: int, row: int) -> Markup:
        share, told = columns[x][row] / most, _told(axis, x, columns, row, bounds)
        return _cell(x, len(columns), last - 1 - row, share, told)

    places = ((x, row) for x in range(len(columns)) for row in range(first, last))
    return chart(
        summary,
        height + LABELS,
        joined(cell(x, row) for x, row in places if columns[x][row]),
        _row_names(first, last, bounds),
        marks(deploys, axis, height),
        axis.labels(height),
        kind="heat",
    )


def _rows(total: Sequence[int]) -> tuple[int, int]:
    first, last = used(total)
    last = min(len(total), max(last, first + _FEWEST_ROWS))
    return min(first, max(0, last - _FEWEST_ROWS)), last


def _told(
    axis: TimeAxis, x: int, columns: Sequence[Sequence[int]], row: int, bounds: Sequence[float]
) -> str:
    at = axis.start + (axis.end - axis.start) * x / len(columns)
    return f"{clock(at)} UTC, {bucket(row, bounds)}: {columns[x][row]:,}"


def _cell(x: int, columns: int, y: int, share: float, told: str) -> Markup:
    """A cell of the heat map. The square root makes few jobs among many visible."""
    return element(
        "rect",
        tooltip(told),
        x=percent(x / columns),
        y=y * _ROW,
        width=percent(0.96 / columns),
        height=_ROW - 1,
        fill_opacity=f"{_PALEST + (1 - _PALEST) * share**0.5:.2f}",
        class_="cell",
    )


def _row_names(first: int, last: int, bounds: Sequence[float]) -> Markup:
    """The labels of the rows: the upper bound of each third row, over the cells."""
    rows = range(first, min(last, len(bounds)), 3)
    return joined(
        element(
            "text",
            format_duration(bounds[row]),
            x=2,
            y=(last - 1 - row) * _ROW + 10,
            class_="value",
        )
        for row in rows
    )
