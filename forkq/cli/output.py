"""What commands print: tables, facts, JSON and times. The only table printer of the package."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import click

from ..cron.zones import zone_of
from ..wire.printable import printable, shown_name

_GAP: Final = 2
_WHOLE: Final = frozenset({"JID", "NAME", "KEY", "TICK", "NEXT"})


def table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """``rows`` under ``titles``, numbers to the right.

    On a terminal that is too narrow the widest columns are cut, but not those with names and ids
    that people copy. For a file or another program only names of absurd length are cut.
    """
    lines = [list(titles), *([shown_name(cell) for cell in row] for row in rows)]
    widths = _fitted(_widths(lines), [title in _WHOLE for title in titles])
    return _aligned(lines, widths, _numeric(lines[1:]) or [False] * len(titles))


def facts(pairs: Iterable[tuple[str, Any]]) -> str:
    """Names with their values, one pair a line, in a table without titles. Nothing is cut."""
    lines = [[name, str(value)] for name, value in pairs]
    return _aligned(lines, _widths(lines), _numeric(lines))


def as_json(value: Any) -> str:
    """For programs. An infinite number is null: JSON has none. What could control a terminal is
    escaped as JSON has it."""
    return _escaped(json.dumps(_finite(value), indent=2, ensure_ascii=False))


def as_json_line(value: Any) -> str:
    """As ``as_json``, on one line: one of many objects."""
    return _escaped(json.dumps(_finite(value), ensure_ascii=False))


def echo(text: str, *, err: bool = False) -> None:
    """Prints lines in which names from Redis may stand: none of them controls the terminal."""
    click.echo(printable(text, keep="\n"), err=err)


def echo_table(rows: Sequence[Any], titles: Sequence[str], if_empty: str) -> None:
    """Prints a table, or the sentence that says what is not there."""
    echo(table(titles, rows) if rows else if_empty)


def timestamp(stamp: float, tz: str | None = None) -> str:
    """An epoch second in its zone; without one, in this machine's."""
    try:
        at = datetime.fromtimestamp(stamp, None if tz is None else zone_of(tz).tz)
    except (ValueError, OverflowError, OSError):  # what is in Redis may be any number
        return "before the year 1" if stamp < 0 else "after the year 9999"
    return f"{at.astimezone() if tz is None else at:%Y-%m-%d %H:%M:%S %Z}"


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c).strip('"') for c in text)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*lines, strict=True)]


def _numeric(lines: Sequence[Sequence[str]]) -> list[bool]:
    """Which columns have numbers only."""
    return [all(map(_is_number, column)) for column in zip(*lines, strict=True)]


def _fitted(widths: list[int], whole: list[bool]) -> list[int]:
    """Column widths that fit, if cutting the others can make them."""
    widths = list(widths)
    free = [at for at in range(len(widths)) if not whole[at]]
    room = _room()
    while free and sum(widths) + _GAP * (len(widths) - 1) > room:
        widest = max(free, key=lambda at: widths[at])
        if widths[widest] <= 1:
            break
        widths[widest] -= 1
    return widths


def _room() -> float:
    """How many columns there are."""
    if sys.stdout is None or not sys.stdout.isatty():  # closed, or a pipe or file
        return math.inf
    return shutil.get_terminal_size((100, 24)).columns


def _aligned(lines: Iterable[Sequence[str]], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    return "\n".join(_line(cells, widths, numeric) for cells in lines)


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    parts = []
    for cell, width, number in zip(cells, widths, numeric, strict=True):
        cut = cell if len(cell) <= width else cell[: width - 1] + "…"
        parts.append(cut.rjust(width) if number else cut.ljust(width))
    return (" " * _GAP).join(parts).rstrip()


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "").isdigit()
