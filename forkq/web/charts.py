"""Small pictures beside a number, as SVG: a line of what it was, and how much of the whole it is.

Sizes are attributes, since the pages allow no inline style. Charts with axes: plots/.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape


def sparkline(
    values: Sequence[float],
    label: str,
    width: int = 120,
    height: int = 28,
    marks: Sequence[tuple[float, str]] = (),
) -> Markup:
    """The SVG of a line without axes. ``label`` says what it shows to those who do not see it.
    ``marks`` are vertical lines: where, from 0 to 1, and what it is."""
    lines = "".join(_mark(share * width, height, text) for share, text in marks)
    return Markup(  # noqa: S704 - label and texts are escaped; Markup.format takes longer
        f'<svg class="spark" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(label)}" preserveAspectRatio="none">{lines}'
        f'<polyline points="{_points(values, width, height)}"/></svg>'
    )


def _mark(x: float, height: int, text: str) -> Markup:
    return Markup(
        '<line class="mark" x1="{0}" x2="{0}" y1="0" y2="{1}"><title>{2}</title></line>'
    ).format(round(x, 1), height, text)


def share(part: float, whole: float, label: str, kind: str = "") -> Markup:
    """The SVG of a line that is filled from the left: a part of a whole."""
    filled = 0.0 if whole <= 0 else min(1.0, max(0.0, part / whole)) * 100
    return Markup(
        '<svg class="share {kind}" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" '
        'aria-label="{label}"><rect class="all" width="100" height="8"/>'
        '<rect class="part" width="{filled:.1f}" height="8"/></svg>'
    ).format(label=label, filled=filled, kind=kind)


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
