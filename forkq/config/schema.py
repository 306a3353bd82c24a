"""Typed keys: what a table may hold, and how one value is checked and converted.

It knows none of forkq's keys: a *table* maps each key to what is expected there: a type with its
limits and its Key (``Annotated[int, Meta(ge=1), Key("...")]``), another table, ``Each`` for a table
whose keys are names, ``Rows`` for a list of tables, or ``Either`` for a value with a longer form. A
function among the annotations of a type turns the converted value into the final one, or raises
ConfigError.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from ..errors import ConfigError, nearest
from ..values import replace
from ..wire.redis_url import redacted_url

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


class Key(msgspec.Struct, frozen=True):
    """What a key is for, and what sets it beside the file. It is among the annotations of the
    key's type: the one place where a key is declared.

    ``about`` is one sentence. The first of ``variables`` that is set counts; ``split`` is the
    pattern that cuts its text into a list. ``default`` describes one that is no constant;
    ``initial`` is one that is, taken from the key's dataclass (``keys_of``). The parsed flags have
    ``flag`` under its own name, or as ``parameter``. ``written`` is the type in the file, if the
    field has another one. A key that is ``per_capsule`` may be in a capsule's table, too.
    """

    about: str
    variables: tuple[str, ...] = ()
    flag: str = ""
    parameter: str = ""
    split: str = ""
    default: str = ""
    written: object = None
    per_capsule: bool = False
    initial: object = None

    @property
    def parsed_as(self) -> str:
        """The name of ``flag`` among the parsed flags."""
        return self.parameter or self.flag.lstrip("-").replace("-", "_")


class MadeOf(msgspec.Struct, frozen=True):
    """An annotation of a field that several keys of the file make together."""

    table: Table


class Each(msgspec.Struct, frozen=True):
    """A table with names of the user's choice for keys, and an ``item`` under each."""

    item: object
    check_name: Callable[[str], None] = lambda name: None


class Rows(msgspec.Struct, frozen=True):
    """A list of tables, ``[[cron]]`` in TOML, each with keys of ``item``: all those in ``required``
    and any others. No two may have the same ``name``."""

    item: Table
    required: tuple[str, ...]
    name: Callable[[Mapping[str, Any]], object]


class Either(msgspec.Struct, frozen=True):
    """A key whose value is plain, or a table that says more: the type of the plain value, and the
    keys of the table."""

    short: object
    long: Table


def keys_of(owner: type) -> dict[str, object]:
    """The table that a dataclass stands for: the types of its fields that have a Key."""
    table: dict[str, object] = {}
    hints = get_type_hints(owner, include_extras=True)
    for field in fields(owner):
        hint = hints[field.name]
        for note in _unwrapped(hint)[1]:
            if isinstance(note, MadeOf):
                table |= note.table
            elif isinstance(note, Key):
                key = replace(note, initial=None if field.default is MISSING else field.default)
                table[field.name] = with_key(note.written or hint, key)
    return table


def key_of(hint: object) -> Key:
    """The Key among the annotations of a type; the last, if there are several."""
    return [note for note in _unwrapped(hint)[1] if isinstance(note, Key)][-1]


def base_of(hint: object) -> object:
    """A type without its limits and its Key."""
    return _unwrapped(hint)[0]


def with_key(hint: object, key: Key) -> object:
    """The type ``hint`` with ``key`` among its annotations."""
    return Annotated[hint, key]


def walk(table: Table, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every key that a file may have, NAME and N standing for names and numbers, with its type: the
    short one of a value that has a longer form, and the table of one that has keys below it."""
    for key, expected in table.items():
        below = expected.item if isinstance(expected, Each | Rows) else expected
        here = (*path, f"{key}[N]") if isinstance(expected, Rows) else (*path, key)
        here = (*here, "NAME") if isinstance(expected, Each) else here
        yield here, below.short if isinstance(below, Either) else below
        below = below.long if isinstance(below, Either) else below
        if isinstance(below, Mapping):
            yield from walk(below, here)


def shown_path(path: KeyPath) -> str:
    """A path as people write it: ``cron[2].jitter``, counted from 0."""
    keys = (f"[{key}]" if isinstance(key, int) else f".{shown_key(key)}" for key in path)
    return "".join(keys).removeprefix(".")


def shown_key(key: str) -> str:
    """A key as TOML writes it: quoted unless it is bare. Never a password in a URL."""
    if re.fullmatch(r"[A-Za-z0-9_-]+", key):
        return key
    return f'"{redacted_url(key) if "://" in key else key}"'


def converted(found: object, hint: object, *, from_text: bool = False) -> Any:
    """``found`` as the type asks for; ConfigError says what was expected and what was found.

    ``from_text`` reads numbers and truth values from strings, which is all that variables have.
    Where a list is expected, a single string means a list of one.
    """
    base, notes = _unwrapped(hint)
    one = isinstance(found, str) and get_origin(base) is tuple
    if base in (str, Path) or get_origin(base) is tuple:
        _refuse_nul(found)
    try:
        value = msgspec.convert(
            [found] if one else found, cast(Any, hint), strict=not from_text, dec_hook=_path
        )
    except msgspec.ValidationError:
        near = _nearest_choice(base, found)
        raise ConfigError(f"expected {expectation(hint)}, found {described(found)}{near}") from None
    for note in notes:
        if callable(note):
            value = _noted(note, value, found)
    return value


def _nearest_choice(base: object, found: object) -> str:
    """What was probably meant by a misspelt choice, as the end of a message."""
    if get_origin(base) is not Literal or not isinstance(found, str):
        return ""
    near = nearest(found, get_args(base))
    return "" if near is None else f'; the nearest one is "{near}"'


def _noted(note: Callable[[Any], Any], value: Any, found: object) -> Any:
    """The value that ``note`` makes of ``value``. Its error does not repeat the password of a URL
    that was put into the wrong place."""
    try:
        return note(value)
    except ConfigError as error:
        if not isinstance(found, str):
            raise
        raise ConfigError(str(error).replace(found, redacted_url(found))) from None


def _refuse_nul(found: object) -> None:
    """Raises ConfigError for a text that no path, address or title of a process can have."""
    texts = found if isinstance(found, list) else [found]
    if any(isinstance(text, str) and "\0" in text for text in texts):
        raise ConfigError("expected a text without NUL characters, found one")


def expectation(hint: object) -> str:
    """The values that a type admits, in words: ``a whole number from 1 to 1000``."""
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
    except RuntimeError as error:  # of ~name
        raise ValueError("no such user") from error


def _unwrapped(hint: object) -> tuple[object, tuple[object, ...]]:
    if get_origin(hint) is Annotated:
        base, *notes = get_args(hint)
        return base, tuple(notes)
    return hint, ()
