"""One bar of a chart: what went well, and what failed on top of it."""

from __future__ import annotations

from markupsafe import Markup

from .axes import ValueAxis
from .svg import element, percent, tooltip

_GAP = 0.15  # of a bar's place
_LEAST = 1.5  # pixels: a single failure among a thousand jobs must be seen


def column(
    start: float, width: float, axis: ValueAxis, counts: tuple[int, int], tip: str
) -> Markup:
    """The SVG of one bar. ``counts``: good and failed. ``start`` and ``width`` are shares of the
    chart's width."""
    good, failed = counts
    middle, top = axis.y(good), axis.y(good + failed)
    x, wide = percent(start + width * _GAP / 2), percent(width * (1 - _GAP))
    parts = [tooltip(tip)]
    if good:
        parts.append(_rect(x, middle, wide, axis.height - middle, "good"))
    if failed:
        parts.append(_rect(x, top, wide, middle - top, "failed"))
    return element("g", *parts)


def _rect(x: str, y: float, width: str, height: float, kind: str) -> Markup:
    tall = max(_LEAST, height)
    return element(
        "rect", x=x, y=round(y + height - tall, 2), width=width, height=tall, class_=kind
    )
