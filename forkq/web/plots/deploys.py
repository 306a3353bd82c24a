"""Deploy marks: a vertical line with its label in a chart over time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from markupsafe import Markup

from ...api import Deploy
from ...wire.printable import cut
from .axes import TimeAxis, clock
from .svg import element, joined, percent, tooltip

_LONGEST: Final = 24
_MOST: Final = 40
_APART: Final = 0.3  # labels nearer than this to the one before would cover it


def marks(deploys: Iterable[Deploy], axis: TimeAxis, height: int) -> Markup:
    """The marks of the latest deploys on ``axis``. A label that would cover another is left to the
    tooltip."""
    shown = sorted((one for one in deploys if axis.has(one.at)), key=lambda one: one.at)[-_MOST:]
    parts: list[Markup] = []
    free = -1.0
    for one in shown:
        share = axis.share(one.at)
        parts.append(_mark(one, share, height, named=share >= free))
        free = share + _APART if share >= free else free
    return joined(parts)


def _mark(deploy: Deploy, share: float, height: int, *, named: bool) -> Markup:
    x = percent(share)
    line = element("line", x1=x, x2=x, y1=0, y2=height)
    end = share > 0.5
    label = element(
        "text",
        cut(deploy.label, _LONGEST),
        x=x,
        y=10,
        dx=-4 if end else 4,
        class_="end" if end else None,
    )
    tip = tooltip(f"{clock(deploy.at)} UTC: deployed {deploy.label}")
    return element("g", tip, line, *([label] if named else []), class_="deploy")
