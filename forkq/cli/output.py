"""What commands print: tables, facts, JSON and times. The only table printer of the package."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, TypeVar

import click

from ..screens.table import Cell, Moment, Part, Phrase, Sheet
from ..units import format_moment
from ..wire.printable import printable, shown_name

T = TypeVar("T")

_GAP: Final = 2


def table(titles: Sequence[str], rows: Iterable[Sequence[Any]], whole: Collection[str] = ()) -> str:
    """``rows`` under ``titles``, numbers to the right.

    On a terminal that is too narrow the widest columns are cut, but not those whose titles are in
    ``whole``: names and ids that people copy. For a file or another program only names of absurd
    length are cut.
    """
    lines = [list(titles), *([shown_name(cell) for cell in row] for row in rows)]
    widths = _fitted(_widths(lines), [title in whole for title in titles])
    return _aligned(lines, widths, _numeric(lines[1:]) or [False] * len(titles))


def facts(pairs: Iterable[tuple[str, Any]]) -> str:
    """Makes a table without titles of names and their values, one pair a line. Nothing is cut."""
    lines = [[name, str(value)] for name, value in pairs]
    return _aligned(lines, _widths(lines), _numeric(lines))


def as_json(value: Any) -> str:
    """The value as programs get it: one object, on one line. An infinite number is null: JSON has
    none. What could control a terminal is escaped as JSON has it."""
    return _escaped(json.dumps(_finite(value), ensure_ascii=False))


def echo_objects(objects: Iterable[dict[str, Any]]) -> int:
    """Prints each on a line of its own. Returns how many they are."""
    count = 0
    for each in objects:
        click.echo(as_json(each))
        count += 1
    return count


def echo(text: str, *, err: bool = False) -> None:
    """Prints lines in which names from Redis may be: no name controls the terminal."""
    click.echo(printable(text, keep="\n"), err=err)


def echo_table(
    rows: Sequence[Any], titles: Sequence[str], if_empty: str, whole: Collection[str] = ()
) -> None:
    """Prints a table, or the sentence that says what is not there."""
    echo(table(titles, rows, whole) if rows else if_empty)


def print_values(
    sheet: Sheet[T], values: Iterable[T], *, wants_json: bool, if_empty: str = ""
) -> None:
    """Prints a table, or the sentence that says what is not there; for programs each as an object
    on its own line."""
    if wants_json:
        echo_objects(map(sheet.as_object, values))
        return
    echo(printed(sheet, values, if_empty))


def printed(sheet: Sheet[T], values: Iterable[T], if_empty: str = "") -> str:
    """The table, or the sentence that says what is not there."""
    found = sheet.table("cli", list(values))
    rows = [[cell_text(row.cells[c.name]) for c in found.columns] for row in found.rows]
    titles = [column.heading for column in found.columns]
    whole = [column.heading for column in found.columns if column.whole]
    return table(titles, rows, whole) if rows else if_empty or found.empty.brief


def cell_text(cell: Cell) -> str:
    """A cell in words, without the notes beside them."""
    if not cell:
        return "-"
    return " ".join(text for text in map(_text, cell) if text)


def _text(part: Part) -> str:
    if isinstance(part, Phrase):
        return "" if part.kind in ("note", "tag", "copy") else part.text
    if isinstance(part, Moment):
        return part.text or ("-" if part.at is None else format_moment(part.at))
    return ""


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
    """The columns that have numbers only."""
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
