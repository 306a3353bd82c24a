"""Where the boxes of a graph in layers stand: lines from one layer to the next cross little."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Final, NamedTuple, TypeAlias

# A box by its place in the shape; or a point, by which a long line comes through a layer.
Item: TypeAlias = "int | tuple[int, int, int]"

# How much room a point takes, and a box.
_POINT: Final = 0.4
_BOX: Final = 1.0
# More points than this would push the boxes apart: long lines are straight then.
_MOST_POINTS: Final = 300
_ROUNDS: Final = 3


class Arrangement(NamedTuple):
    """``at``: of each item its layer, and where it stands there, counted in boxes from 0 on.
    ``lines``: the items through which each line goes. ``layers``, ``width``: how many there are,
    and the room of the widest one."""

    at: dict[Item, tuple[int, float]]
    lines: list[list[Item]]
    layers: int
    width: float


def arranged(layers: Sequence[int], edges: Sequence[tuple[int, int]]) -> Arrangement:
    """The places of boxes. ``layers``: that of each box; ``edges`` go from a lower layer to a
    higher one."""
    numbers = {layer: at for at, layer in enumerate(sorted(set(layers)))}
    level = [numbers[layer] for layer in layers]
    lines = _lines(level, edges)
    rows: list[list[Item]] = [[] for _ in numbers]
    for item, row in _all_items(level, lines).items():
        rows[row].append(item)
    above, below = _neighbours(lines)
    for _ in range(_ROUNDS):
        _sort(rows, above)
        _sort(rows[::-1], below)
    _sort(rows, above)
    found = _placed(rows, above, below)
    lowest = min(found.values(), default=0.0)
    at = {item: (row, found[item] - lowest) for row, items in enumerate(rows) for item in items}
    width = max((across + _BOX for _, across in at.values()), default=0.0)
    return Arrangement(at, lines, len(rows), width)


def _lines(level: Sequence[int], edges: Sequence[tuple[int, int]]) -> list[list[Item]]:
    """The items on the way of each edge: its boxes, and a point in each layer between them."""
    points = sum(level[behind] - level[before] - 1 for before, behind in edges)
    if points > _MOST_POINTS:
        return [[before, behind] for before, behind in edges]
    return [
        [
            before,
            *((before, behind, row) for row in range(level[before] + 1, level[behind])),
            behind,
        ]
        for before, behind in edges
    ]


def _all_items(level: Sequence[int], lines: Iterable[Sequence[Item]]) -> dict[Item, int]:
    """Each item and its layer."""
    found: dict[Item, int] = dict(enumerate(level))
    for line in lines:
        found.update((item, item[2]) for item in line if isinstance(item, tuple))
    return found


def _neighbours(
    lines: Iterable[Sequence[Item]],
) -> tuple[dict[Item, list[Item]], dict[Item, list[Item]]]:
    """The items before and behind each one."""
    above: dict[Item, list[Item]] = {}
    below: dict[Item, list[Item]] = {}
    for line in lines:
        for one, other in pairwise(line):
            above.setdefault(other, []).append(one)
            below.setdefault(one, []).append(other)
    return above, below


def _sort(rows: Sequence[list[Item]], near: Mapping[Item, Sequence[Item]]) -> None:
    """Puts the items of each row where those stand, on average, that they are near to in the rows
    before."""
    place = dict[Item, float]()
    for row in rows:
        now = _shares(row)
        row.sort(key=lambda item: _mean(near.get(item, ()), place, now[item]))
        place.update(_shares(row))


def _shares(row: Sequence[Item]) -> dict[Item, float]:
    """Where each item of a row is, from 0 to 1."""
    return {item: at / max(1, len(row) - 1) for at, item in enumerate(row)}


def _mean(items: Sequence[Item], place: Mapping[Item, float], otherwise: float) -> float:
    known = [place[item] for item in items if item in place]
    return fmean(known) if known else otherwise


def _placed(
    rows: Sequence[Sequence[Item]],
    above: Mapping[Item, Sequence[Item]],
    below: Mapping[Item, Sequence[Item]],
) -> dict[Item, float]:
    """Where each item stands: as near as there is room to those before it, and then to those
    behind it."""
    place = dict[Item, float]()
    for near, ordered in ((above, rows), (below, rows[::-1]), (above, rows)):
        for row in ordered:
            _spread(row, near, place)
    return place


def _spread(
    row: Sequence[Item], near: Mapping[Item, Sequence[Item]], place: dict[Item, float]
) -> None:
    """Places a row without an overlap: all that stand together move as far as is best for them on
    average."""
    end, wanted, found = 0.0, list[float](), list[float]()
    for item in row:
        wish = _mean(near.get(item, ()), place, place.get(item, end))
        wanted.append(wish)
        found.append(wish if not found else max(wish, end))
        end = found[-1] + (_POINT if isinstance(item, tuple) else _BOX)
    shift = fmean(wish - at for wish, at in zip(wanted, found, strict=True))
    place.update((item, at + shift) for item, at in zip(row, found, strict=True))
