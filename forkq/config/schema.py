"""Checks plain data (a TOML file, variables, flags) against typed keys, and words what is wrong.

Used by ``config`` only, before anything is started. It knows none of forkq's keys: a *table* maps
each key to what is expected there: a type with its limits (``Annotated[int, Meta(ge=1)]``), another
table, ``Each`` for a table whose keys are names, ``Rows`` for a list of tables, or ``Either`` for a
value with a longer form. A function among
the annotations of a type turns the converted value into the final one, or raises ConfigError.
"""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from ..errors import ConfigError
from ..wire.redis_url import redacted_url
from .expand import expanded, mentions_variable

KeyPath = tuple[str | int, ...]
Table = Mapping[str, object]

_LONGEST_SHOWN = 60  # characters of a wrong value that a message repeats
_MOST_SHOWN = 3  # items of a wrong list
_NOUNS: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    tuple: "a list of strings",
    Path: "a path",
}


@dataclass(frozen=True, slots=True)
class Each:
    """A table whose keys are names of the user's choice, with an ``item`` under each."""

    item: object
    check_name: Callable[[str], None] = lambda name: None


@dataclass(frozen=True, slots=True)
class Rows:
    """A list of tables, ``[[cron]]`` in TOML, each with the keys of ``item``: those in ``required``
    and any others. ``name`` says what a row is called; no two may be called the same."""

    item: Table
    required: tuple[str, ...]
    name: Callable[[Mapping[str, Any]], object]


@dataclass(frozen=True, slots=True)
class Either:
    """A plain value, or a table that says more: the type of the one, the keys of the other."""

    short: object
    long: Table


def keys_of(owner: type, *, without: tuple[str, ...] = ()) -> dict[str, object]:
    """The table that a dataclass stands for: its fields and their types, ``without`` some."""
    hints = get_type_hints(owner, include_extras=True)
    return {key: hint for key, hint in hints.items() if key not in without}


@dataclass(slots=True)
class Checker:
    """Walks a file's data once, keeps what is right and lists every problem it meets.

    With ``variables`` the ``${VAR}`` in strings are expanded; without, such values are left out of
    the result, and only their spelling is checked. ``locate`` says where the user wrote a key.
    """

    source: str
    root: Table
    variables: Mapping[str, str] | None = None
    locate: Callable[[KeyPath], KeyPath] = lambda path: path
    problems: list[str] = field(default_factory=list)

    def check(self, found: object) -> dict[str, Any]:
        """What is right in ``found``, in the shape of the root table."""
        return self._table(self.root, found, ())

    def report(self, path: KeyPath, text: str) -> None:
        self.problems.append(f"{self.source}: {shown_path(self.locate(path))}: {text}")

    def _table(self, table: Table, found: object, path: KeyPath) -> dict[str, Any]:
        clean: dict[str, Any] = {}
        for key, value in self._items(found, path):
            if key in table:
                self._put(clean, table[key], value, (*path, key))
            else:
                self.report((*path, key), self._unknown(table, key, path))
        return clean

    def _named(self, each: Each, found: object, path: KeyPath) -> dict[str, Any]:
        clean: dict[str, Any] = {}
        for name, value in self._items(found, path):
            try:
                each.check_name(name)
            except ConfigError as error:
                self.report((*path, name), str(error))
            self._put(clean, each.item, value, (*path, name))
        return clean

    def _rows(self, rows: Rows, found: object, path: KeyPath) -> list[dict[str, Any]]:
        if not isinstance(found, list):
            self.report(
                path, f"expected a list of tables, each [[{path[-1]}]], found {described(found)}"
            )
            return []
        clean = [self._table(rows.item, row, (*path, index)) for index, row in enumerate(found)]
        first: dict[object, int] = {}
        for index, (row, written) in enumerate(zip(clean, found, strict=True)):
            if isinstance(written, dict):
                self._demand(rows, written, (*path, index))
            if row and len(row) == len(written):  # wholly understood: its name is known
                name = rows.name(row)
                if first.setdefault(name, index) != index:
                    self.report((*path, index), _taken(name, (*path, first[name])))
        return clean

    def _demand(self, rows: Rows, written: Mapping[str, object], path: KeyPath) -> None:
        for key in rows.required:
            if key not in written:
                self.report((*path, key), f"missing, expected {expectation(rows.item[key])}")

    def _items(self, found: object, path: KeyPath) -> list[tuple[str, object]]:
        if isinstance(found, dict):
            return list(found.items())
        self.report(path, f"expected a table, found {described(found)}")
        return []

    def _put(self, clean: dict[str, Any], expected: object, found: object, path: KeyPath) -> None:
        if isinstance(expected, Each):
            clean[str(path[-1])] = self._named(expected, found, path)
        elif isinstance(expected, Rows):
            clean[str(path[-1])] = self._rows(expected, found, path)
        elif isinstance(expected, Either):
            form = expected.long if isinstance(found, dict) else expected.short
            self._put(clean, form, found, path)
        elif isinstance(expected, Mapping):
            clean[str(path[-1])] = self._table(expected, found, path)
        else:
            self._put_value(clean, expected, found, path)

    def _put_value(
        self, clean: dict[str, Any], expected: object, found: object, path: KeyPath
    ) -> None:
        expands = mentions_variable(found)
        try:
            if expands:
                found = expanded(found, self.variables)
            if not expands or self.variables is not None:
                clean[str(path[-1])] = converted(found, expected, from_text=expands)
        except ConfigError as error:
            self.report(path, str(error))

    def _unknown(self, table: Table, key: str, path: KeyPath) -> str:
        valid = f"valid here: {', '.join(map(_shown_key, table))}"
        near = nearest(key, table)
        if near is not None:
            return f"unknown key, the nearest valid one is {shown_path((*path, near))} ({valid})"
        elsewhere = next((place for place in _places(self.root) if place[-1] == key), None)
        if elsewhere is not None:
            return f"unknown key here, it belongs to {'.'.join(map(str, elsewhere))} ({valid})"
        return f"unknown key ({valid})"


def shown_path(path: KeyPath) -> str:
    """A path as people write it: ``cron[2].jitter``, counted from 0."""
    keys = (f"[{key}]" if isinstance(key, int) else f".{_shown_key(key)}" for key in path)
    return "".join(keys).removeprefix(".")


def nearest(word: str, words: Table | list[str], cutoff: float = 0.6) -> str | None:
    """The one of ``words`` that was probably meant."""
    return next(iter(difflib.get_close_matches(word.lower(), list(words), 1, cutoff)), None)


def converted(found: object, hint: object, *, from_text: bool = False) -> Any:
    """``found`` as the type asks for; ConfigError says what was expected and what was found.

    ``from_text`` reads numbers and truth values from strings, which is all that variables have.
    Where a list is expected, a single string stands for a list of one.
    """
    base, notes = _unwrapped(hint)
    one = isinstance(found, str) and get_origin(base) is tuple
    try:
        value = msgspec.convert(
            [found] if one else found, cast(Any, hint), strict=not from_text, dec_hook=_path
        )
    except msgspec.ValidationError:
        raise ConfigError(f"expected {expectation(hint)}, found {described(found)}") from None
    for note in notes:
        if callable(note):
            value = note(value)
    return value


def expectation(hint: object) -> str:
    """What a type admits, for people: ``a whole number from 1 to 1000``."""
    base, notes = _unwrapped(hint)
    if get_origin(base) is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in get_args(base))
    meta = next((note for note in notes if isinstance(note, Meta)), Meta())
    if meta.description is not None:
        return meta.description
    noun = _NOUNS[get_origin(base) or base]
    if meta.ge is not None and meta.le is not None:
        return f"{noun} from {meta.ge} to {meta.le}"
    return noun


def described(found: object) -> str:
    """A wrong value and its type, for people; never a password in a URL."""
    if isinstance(found, str):
        return f'the string "{redacted_url(found)[:_LONGEST_SHOWN]}"'
    if isinstance(found, bool):
        return f"the truth value {str(found).lower()}"
    if isinstance(found, int | float):
        noun = "whole number" if isinstance(found, int) else "number"
        return f"the {noun} {str(found)[:_LONGEST_SHOWN]}"
    if isinstance(found, datetime.date | datetime.time):
        return f"the date or time {found}"
    if isinstance(found, list) and found:
        return "a list with " + ", ".join(map(described, found[:_MOST_SHOWN]))
    return "a table" if isinstance(found, dict) else "an empty list"


def _path(wanted: type, found: object) -> Path:
    """msgspec's hook for the one type of ours that it does not know."""
    if wanted is not Path or not isinstance(found, str) or not found.strip():
        raise ValueError("not a path")
    try:
        return Path(found).expanduser()
    except RuntimeError as error:  # ~nobody
        raise ValueError("no such user") from error


def _unwrapped(hint: object) -> tuple[object, tuple[object, ...]]:
    if get_origin(hint) is Annotated:
        base, *notes = get_args(hint)
        return base, tuple(notes)
    return hint, ()


def _places(table: Table, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Every key path that a file may have, NAME standing for names."""
    for key, expected in table.items():
        below = expected.item if isinstance(expected, Each | Rows) else expected
        below = below.long if isinstance(below, Either) else below
        here: KeyPath = (*path, key)
        if isinstance(expected, Each):
            here = (*here, "NAME")
        elif isinstance(expected, Rows):
            here = (*path, f"{key}[N]")
        yield here
        if isinstance(below, Mapping):
            yield from _places(below, here)


def _taken(name: object, path: KeyPath) -> str:
    return f"{name!r} is the name of {shown_path(path)} too; give one of them another name"


def _shown_key(key: str) -> str:
    """A key as TOML writes it: quoted unless it is bare."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f'"{key}"'
