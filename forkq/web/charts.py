"""Charts as SVG, made on the server: they need no JavaScript, and print well."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup


def sparkline(values: Sequence[float], label: str, width: int = 120, height: int = 28) -> Markup:
    """A line without axes. ``label`` says what it shows to those who do not see it."""
    points = _points(values, width, height, max(values, default=0))
    return Markup(
        '<svg class="spark" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" '
        'aria-label="{label}"><polyline points="{points}"/></svg>'
    ).format(w=width, h=height, label=label, points=points)


def area(
    series: Sequence[tuple[str, Sequence[float]]], label: str, width: int = 900, height: int = 180
) -> Markup:
    """Filled lines over each other: (CSS class, values) each, by one common scale."""
    most = max((value for _, values in series for value in values), default=0)
    shapes = Markup("").join(
        Markup(
            '<polygon class="{0}" points="0,{h} {1} {w},{h}"/><polyline class="{0}" points="{1}"/>'
        ).format(kind, _points(values, width, height, most), w=width, h=height)
        for kind, values in series
    )
    return Markup(
        '<svg class="area" viewBox="0 0 {w} {h}" preserveAspectRatio="none" role="img" '
        'aria-label="{label}">{shapes}</svg>'
    ).format(w=width, h=height, label=label, shapes=shapes)


def share(part: float, whole: float, label: str) -> Markup:
    """A bar: how much of the whole."""
    filled = 0.0 if whole <= 0 else min(1.0, max(0.0, part / whole)) * 100
    return Markup(
        '<svg class="share" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" '
        'aria-label="{label}"><rect class="all" width="100" height="8"/>'
        '<rect class="part" width="{filled:.1f}" height="8"/></svg>'
    ).format(label=label, filled=filled)


def _points(values: Sequence[float], width: int, height: int, most: float) -> str:
    """The corners of a line from the left edge to the right one; it stays a pixel inside."""
    if not values:
        return f"0,{height - 1} {width},{height - 1}"
    shown = [*values, *values] if len(values) == 1 else values
    step = width / (len(shown) - 1)
    top = most or 1
    return " ".join(
        f"{at * step:.1f},{height - 1 - value / top * (height - 3):.1f}"
        for at, value in enumerate(shown)
    )
