"""Walks the document of forkq.toml once: what is right becomes settings, what is wrong is reported.

Used by ``load`` only. Which keys there are is declared in ``config``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from ..errors import nearest
from .expand import expanded, mentions_variable, variables_in
from .schema import (
    Each,
    Either,
    KeyPath,
    Rows,
    Table,
    converted,
    described,
    expectation,
    shown_key,
    shown_path,
    walk,
)
from .settings import ConfigProblems, Origin, Setting, Settings


class Checker(msgspec.Struct):
    """Checks every value, in force or not. Of one with ``${VAR}`` in it only the spelling can be
    checked here: its variables are expanded when it turns out to be in force.

    ``variables`` are the names of all variables that the values refer to.
    """

    file: Path | None
    root: Table
    problems: ConfigProblems
    variables: set[str] = msgspec.field(default_factory=set)

    def table(self, keys: Table, value: object, path: KeyPath = ()) -> Settings:
        """The settings that are right in ``value``, a table with these ``keys``. What is wrong is
        reported."""
        settings: Settings = {}
        for key, item in self._items(value, path):
            if key in keys:
                self._put(settings, keys[key], item, (*path, key))
            else:
                self._add_problem((*path, key), self._unknown(keys, key, path))
        return settings

    def _put(self, settings: Settings, expected: object, value: object, path: KeyPath) -> None:
        checked = self._checked(expected, value, path)
        if checked is not None:
            settings[str(path[-1])] = checked

    def _checked(
        self, expected: object, value: object, path: KeyPath
    ) -> Setting | Settings | list[Settings] | None:
        if isinstance(expected, Each):
            return self._each(expected, value, path)
        if isinstance(expected, Rows):
            return self._rows(expected, value, path)
        if isinstance(expected, Either):
            expected = expected.long if isinstance(value, dict) else expected.short
        if isinstance(expected, Mapping):
            return self.table(expected, value, path)
        return self._setting(expected, value, path)

    def _each(self, each: Each, value: object, path: KeyPath) -> Settings:
        settings: Settings = {}
        for name, item in self._items(value, path):
            with self.problems.at(self._origin((*path, name))):
                each.check_name(name)
            self._put(settings, each.item, item, (*path, name))
        return settings

    def _rows(self, rows: Rows, value: object, path: KeyPath) -> list[Settings]:
        if not isinstance(value, list):
            expected = f"a list of tables, each [[{'.'.join(map(str, path))}]]"
            self._add_problem(path, f"expected {expected}, found {described(value)}")
            return []
        settings = []
        for index, row in enumerate(value):
            settings.append(self.table(rows.item, row, (*path, index)))
            for key in rows.required if isinstance(row, dict) else ():
                if key not in row:
                    missing = f"missing, expected {expectation(rows.item[key])}"
                    self._add_problem((*path, index, key), missing)
        pairs = zip(settings, value, strict=True)
        understood = [table for table, row in pairs if table and len(table) == len(row)]
        self.problems += names_given_twice(rows, understood)
        return settings

    def _setting(self, hint: object, value: object, path: KeyPath) -> Setting | None:
        origin, setting = self._origin(path), None
        with self.problems.at(origin):
            if mentions_variable(value):
                expanded(value, None)
                self.variables.update(variables_in(value))
                setting = Setting(value, origin, hint)
            else:
                setting = Setting(converted(value, hint), origin)
        return setting

    def _items(self, value: object, path: KeyPath) -> list[tuple[str, object]]:
        if isinstance(value, dict):
            return list(value.items())
        self._add_problem(path, f"expected a table, found {described(value)}")
        return []

    def _add_problem(self, path: KeyPath, text: str) -> None:
        self.problems.append(f"{self._origin(path)}: {text}")

    def _origin(self, path: KeyPath) -> Origin:
        return Origin("file", shown_path(path), self.file)

    def _unknown(self, keys: Table, key: str, path: KeyPath) -> str:
        valid = f"valid here: {', '.join(map(shown_key, keys))}"
        near = nearest(key, keys)
        if near is not None:
            return f"unknown key, the nearest valid one is {shown_path((*path, near))} ({valid})"
        places = [".".join(found) for found, _ in walk(self.root) if found[-1] == key]
        if places:  # a key of a row is rarely what is meant
            return f"unknown key here, it belongs to {min(places, key=_is_of_row)} ({valid})"
        return f"unknown key ({valid})"


def _is_of_row(place: str) -> bool:
    return "[N]" in place


def names_given_twice(rows: Rows, tables: list[Settings]) -> Iterator[str]:
    """A problem for each row that has the name of an earlier one. A row with variables that are
    not expanded yet is left out."""
    first: dict[object, str] = {}
    for table in tables:
        row = {key: setting for key, setting in table.items() if isinstance(setting, Setting)}
        if any(setting.hint is not None for setting in row.values()):
            continue
        origin = next(iter(row.values())).origin
        here = origin.name.rpartition(".")[0]
        name = rows.name({key: setting.value for key, setting in row.items()})
        if first.setdefault(name, here) != here:
            taken = f"{name!r} is the name of {first[name]} too; give one of them another name"
            yield f"{origin.file}: {here}: {taken}"
