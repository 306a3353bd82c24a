"""The picture of a flow: a box for each step, or for a group of steps that are alike; lines go from
each to those behind it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from markupsafe import Markup

from ...screens.features.flow_shape import AlikeSteps, Edge, FlowShape
from ...wire.printable import cut, printable
from .layers import Arrangement, Item, arranged
from .svg import element, joined, tooltip

_WIDTH: Final = 168
_HEIGHT: Final = 44
_GAP: Final = 12  # between two boxes beside each other
_BETWEEN: Final = 52  # between two layers beside each other
_BELOW: Final = 30  # between two layers below each other
_EDGE: Final = 6  # around the picture
_ROOM: Final = 1160  # pixels of a page
# Each state has a sign of its own, beside its colour.
SIGNS: Final = {
    "done": "✓", "dead": "✕", "retried": "↻", "started": "▸", "waits": "…", "cancelled": "⊘",
}  # fmt: skip
_OTHER: Final = "!"

# The address to which a box leads.
Link: TypeAlias = "Callable[[AlikeSteps], str]"


class _Plan(NamedTuple):
    """Where what stands: the layers go to the right, or down if that takes less width."""

    places: Arrangement
    down: bool

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the picture."""
        return _size(self.places, down=self.down)

    def corner(self, item: Item) -> tuple[float, float]:
        """The upper left corner of a box; or where it would be for a point."""
        layer, across = self.places.at[item]
        if self.down:
            return _EDGE + across * (_WIDTH + _GAP), _EDGE + layer * (_HEIGHT + _BELOW)
        return _EDGE + layer * (_WIDTH + _BETWEEN), _EDGE + across * (_HEIGHT + _GAP)

    def ends(self, item: Item) -> tuple[tuple[float, float], tuple[float, float]]:
        """Where lines come in, and where they go out."""
        x, y = self.corner(item)
        half = 0.2 if isinstance(item, tuple) else 0.5
        if self.down:
            return (x + _WIDTH * half, y), (x + _WIDTH * half, y + _HEIGHT)
        return (x, y + _HEIGHT * half), (x + _WIDTH, y + _HEIGHT * half)


def flow_graph(shape: FlowShape, link: Link, chosen: AlikeSteps | None = None) -> Markup:
    """The picture. It is hidden from a screen reader, to which the table below it says more."""
    edges = [(edge.before, edge.behind) for edge in shape.edges]
    places = arranged([group.layer for group in shape.groups], edges)
    width, _ = _size(places, down=False)
    plan = _Plan(places, down=width > max(_ROOM, _size(places, down=True)[0]))
    width, height = plan.size
    lines = (_line(plan, way, edge) for way, edge in zip(places.lines, shape.edges, strict=True))
    boxes = (
        _box(group, plan.corner(at), link(group), is_chosen=group is chosen)
        for at, group in enumerate(shape.groups)
    )
    return element(
        "svg",
        *(_arrow(), joined(lines), joined(boxes)),
        class_="graph",
        aria_hidden="true",
        width=f"{width:.0f}",
        height=f"{height:.0f}",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
    )


def sign_of(state: str) -> str:
    """The sign of a state of a step."""
    return SIGNS.get(state, _OTHER)


def kind_of(state: str) -> str:
    """The class of style of a state of a step."""
    return state if state in SIGNS else "otherwise"


def _size(places: Arrangement, *, down: bool) -> tuple[float, float]:
    across, along = places.width, places.layers
    wide, high = (across, along) if down else (along, across)
    gap_x, gap_y = (_GAP, _BELOW) if down else (_BETWEEN, _GAP)
    return (
        2 * _EDGE + wide * (_WIDTH + gap_x) - gap_x,
        2 * _EDGE + high * (_HEIGHT + gap_y) - gap_y,
    )


def _arrow() -> Markup:
    point = element("path", d="M0 0 L8 4 L0 8 z")
    size = {"markerWidth": 8, "markerHeight": 8, "refX": 7, "refY": 4}
    return element("defs", element("marker", point, id="arrow", orient="auto", **size))


def _line(plan: _Plan, way: list[Item], edge: Edge) -> Markup:
    first, *_ = way
    parts = ["M{:.0f} {:.0f}".format(*plan.ends(first)[1])]
    for one, other in pairwise(way):
        (begin, end), (_, out) = (plan.ends(one)[1], plan.ends(other)[0]), plan.ends(other)
        parts.append(_curve(begin, end, down=plan.down))
        if isinstance(other, tuple):
            parts.append("L{:.0f} {:.0f}".format(*out))
    shown = {"d": " ".join(parts), "marker_end": "url(#arrow)"}
    return element("path", class_=f"edge {edge.how}", **shown)


def _curve(begin: tuple[float, float], end: tuple[float, float], *, down: bool) -> str:
    (x, y), (to_x, to_y) = begin, end
    if down:
        middle = (y + to_y) / 2
        return f"C{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} {to_x:.0f} {to_y:.0f}"
    middle = (x + to_x) / 2
    return f"C{middle:.0f} {y:.0f} {middle:.0f} {to_y:.0f} {to_x:.0f} {to_y:.0f}"


def _box(group: AlikeSteps, corner: tuple[float, float], url: str, *, is_chosen: bool) -> Markup:
    x, y = corner
    state, name = group.state, printable(group.title)
    parts = (
        tooltip(f"{name}: {group.said}"),
        element("rect", width=_WIDTH, height=_HEIGHT, rx=8),
        element("text", sign_of(state), class_="sign", x=16, y=27),
        _text(cut(name, 18), 4, "name"),
        _text(group.said, 22, "said"),
    )
    many = " many" if len(group.steps) > 1 else ""
    kind = f"step {kind_of(state)}{many}{' chosen' if is_chosen else ''}"
    place = f"translate({x:.0f} {y:.0f})"
    return element("a", *parts, href=url, class_=kind, transform=place, tabindex=-1)


def _text(text: str, top: int, kind: str) -> Markup:
    """A line that ends where the box does."""
    line = element("text", text[:60], x=0, y=14, class_=kind)
    return element("svg", line, x=28, y=top, width=_WIDTH - 32, height=20)
