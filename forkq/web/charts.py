"""Charts as SVG, made on the server: they need no JavaScript, and print well.

Sizes are attributes, since the pages allow no inline style. Words stand beside a chart, as HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

_WIDTH: Final = 1000
_HEIGHT: Final = 100
_GAP: Final = 0.25  # of a bar
_LEAST: Final = 1.5  # a bar of anything can be seen


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: what went well, what failed on top of it, and the words for a pointer on it."""

    good: float
    bad: float
    title: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line in a chart of bars, before the bar with the number ``at``."""

    at: float
    title: str


def sparkline(values: Sequence[float], label: str, width: int = 120, height: int = 28) -> Markup:
    """A line without axes. ``label`` says what it shows to those who do not see it."""
    return Markup(
        '<svg class="spark" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" '
        'aria-label="{label}" preserveAspectRatio="none"><polyline points="{points}"/></svg>'
    ).format(w=width, h=height, label=label, points=_points(values, width, height))


def bars(shown: Sequence[Bar], label: str, marks: Sequence[Mark] = ()) -> Markup:
    """Bars from left to right by one scale, as wide as their place."""
    top = max((bar.good + bar.bad for bar in shown), default=0) or 1
    step = _WIDTH / max(1, len(shown))
    made = [_bar(bar, at * step, step, top) for at, bar in enumerate(shown)]
    lines = [
        Markup(
            '<line class="mark" x1="{0:.1f}" x2="{0:.1f}" y1="0" y2="100"><title>{1}</title></line>'
        ).format(mark.at * step, mark.title)
        for mark in marks
    ]
    return Markup(
        '<svg class="bars" viewBox="0 0 {w} {h}" preserveAspectRatio="none" role="img" '
        'aria-label="{label}">{parts}</svg>'
    ).format(w=_WIDTH, h=_HEIGHT, label=label, parts=Markup("").join([*made, *lines]))


def share(part: float, whole: float, label: str, kind: str = "") -> Markup:
    """A line that is filled from the left: how much of the whole."""
    filled = 0.0 if whole <= 0 else min(1.0, max(0.0, part / whole)) * 100
    return Markup(
        '<svg class="share {kind}" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" '
        'aria-label="{label}"><rect class="all" width="100" height="8"/>'
        '<rect class="part" width="{filled:.1f}" height="8"/></svg>'
    ).format(label=label, filled=filled, kind=kind)


def _bar(bar: Bar, left: float, step: float, top: float) -> Markup:
    width, left = step * (1 - _GAP), left + step * _GAP / 2
    good, bad = _tall(bar.good, top), _tall(bar.bad, top)
    return Markup(
        "<g><title>{title}</title>"
        '<rect class="ground" x="{x:.1f}" y="0" width="{w:.1f}" height="100"/>'
        '<rect class="good" x="{x:.1f}" y="{good_y:.1f}" width="{w:.1f}" height="{good:.1f}"/>'
        '<rect class="failed" x="{x:.1f}" y="{bad_y:.1f}" width="{w:.1f}" height="{bad:.1f}"/></g>'
    ).format(
        title=bar.title, x=left, w=width, good=good, bad=bad,
        good_y=_HEIGHT - good, bad_y=_HEIGHT - good - bad,
    )  # fmt: skip


def _tall(value: float, top: float) -> float:
    return max(_LEAST, value / top * _HEIGHT * 0.96) if value else 0.0


def _points(values: Sequence[float], width: int, height: int) -> str:
    """The corners of a line from the left edge to the right one; it stays a pixel inside."""
    if not values:
        return f"0,{height - 1} {width},{height - 1}"
    shown = [*values, *values] if len(values) == 1 else values
    step, top = width / (len(shown) - 1), max(values) or 1
    return " ".join(
        f"{at * step:.1f},{height - 2 - value / top * (height - 4):.1f}"
        for at, value in enumerate(shown)
    )
