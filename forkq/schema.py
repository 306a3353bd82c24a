"""Checks plain data (a TOML file, variables, flags) against typed keys, and words what is wrong.

Used by ``config`` only, before anything is started. It knows none of forkq's keys: a *table* maps
each key to what is expected there: a type with its limits (``Annotated[int, Meta(ge=1)]``), another
table, or ``Each`` for a table whose keys are names. A function among the annotations of a type
turns the converted value into the final one, or raises ConfigError.
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

from .errors import ConfigError
from .redis_url import redacted_url

KeyPath = tuple[str, ...]
Table = Mapping[str, object]

_VARIABLE = re.compile(
    r"""(?P<literal>\$\$\{)                     # $${ stands for ${
      | \$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)
            (?P<fallback>:-(?:(?!\$\{)[^}])*)?\}
      | (?P<malformed>\$\{)""",
    re.VERBOSE,
)
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
        where = ".".join(map(_shown_key, self.locate(path)))
        self.problems.append(f"{self.source}: {where}: {text}")

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

    def _items(self, found: object, path: KeyPath) -> list[tuple[str, object]]:
        if isinstance(found, dict):
            return list(found.items())
        self.report(path, f"expected a table, found {described(found)}")
        return []

    def _put(self, clean: dict[str, Any], expected: object, found: object, path: KeyPath) -> None:
        if isinstance(expected, Each):
            clean[path[-1]] = self._named(expected, found, path)
        elif isinstance(expected, Mapping):
            clean[path[-1]] = self._table(expected, found, path)
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
                clean[path[-1]] = converted(found, expected, from_text=expands)
        except ConfigError as error:
            self.report(path, str(error))

    def _unknown(self, table: Table, key: str, path: KeyPath) -> str:
        valid = f"valid here: {', '.join(map(_shown_key, table))}"
        near = nearest(key, table)
        if near is not None:
            return f"unknown key, the nearest valid one is {'.'.join((*path, near))} ({valid})"
        elsewhere = next((place for place in _places(self.root) if place[-1] == key), None)
        if elsewhere is not None:
            return f"unknown key here, it belongs to {'.'.join(elsewhere)} ({valid})"
        return f"unknown key ({valid})"


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


def mentions_variable(found: object) -> bool:
    """Whether a string, or one anywhere in a list, has ``${`` in it."""
    if isinstance(found, list):
        return any(map(mentions_variable, found))
    return isinstance(found, str) and "${" in found


def expanded(found: object, variables: Mapping[str, str] | None) -> object:
    """``${VAR}`` and ``${VAR:-default}`` replaced, in lists too; ConfigError names an unset one.

    As in a shell, the default also stands in for an empty variable. Without ``variables`` only the
    spelling is checked.
    """
    if isinstance(found, list):
        return [expanded(item, variables) for item in found]
    if isinstance(found, str):
        return _VARIABLE.sub(lambda match: _substitute(match, variables), found)
    return found


def variables_in(found: object) -> Iterator[str]:
    """The names of the variables that strings anywhere in ``found`` refer to."""
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, list):
        for item in found:
            yield from variables_in(item)
    elif isinstance(found, str):
        yield from (match["name"] for match in _VARIABLE.finditer(found) if match["name"])


def _substitute(match: re.Match[str], variables: Mapping[str, str] | None) -> str:
    if match["literal"]:
        return "${"
    name, fallback = match["name"], match["fallback"]
    if name is None:
        raise ConfigError(
            "a ${ that cannot be read: write ${NAME} or ${NAME:-default}, and $${ for a plain ${"
        )
    if variables is None:
        return ""
    if fallback is not None:
        return variables.get(name) or fallback.removeprefix(":-")
    if name not in variables:
        raise ConfigError(
            f"the variable {name} is not set: set it, or give it a default as in ${{{name}:-...}}"
        )
    return variables[name]


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
        below = expected.item if isinstance(expected, Each) else expected
        here = (*path, key, "NAME") if isinstance(expected, Each) else (*path, key)
        yield here
        if isinstance(below, Mapping):
            yield from _places(below, here)


def _shown_key(key: str) -> str:
    """A key as TOML writes it: quoted unless it is bare."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f'"{key}"'
