"""Settings: values that know where they were given, in tables as forkq.toml has them.

Used by ``config`` only. The file, its environments, the variables and the flags become such tables;
``overlaid`` puts them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from ..errors import ConfigError
from .expand import expanded
from .schema import KeyPath, converted, shown_path


class Origin(msgspec.Struct, frozen=True):
    """Where a value was given. ``name`` is the flag, the variable, or the key in ``file``."""

    kind: Literal["flag", "variable", "file", "default"]
    name: str = ""
    file: Path | None = None

    def __str__(self) -> str:
        if self.kind == "file":
            return f"{self.file}: {self.name}"
        return self.name or self.kind


DEFAULT = Origin("default")


class Setting(msgspec.Struct, frozen=True):
    """One value and its origin. ``hint`` is the type to convert it to once its variables are
    expanded; None if that is done."""

    value: Any
    origin: Origin
    hint: object = None

    def expanded(self, variables: Mapping[str, str]) -> Setting:
        """This setting with its variables expanded. Raises ConfigError."""
        if self.hint is None:
            return self
        text = expanded(self.value, variables)
        return Setting(converted(text, self.hint, from_text=True), self.origin)


class ConfigProblems(list[str]):
    """Everything that is wrong, one line for each problem."""

    @contextmanager
    def at(self, place: object) -> Iterator[None]:
        """Makes a ConfigError in its block a problem at ``place``: an origin, or its text."""
        try:
            yield
        except ConfigError as error:
            self.append(f"{place}: {error}")


Settings: TypeAlias = "dict[str, Setting | Settings | list[Settings]]"
_Tree: TypeAlias = "Setting | Settings | list[Settings]"


def overlaid(base: Settings, over: Settings) -> Settings:
    """The settings of ``base`` with those of ``over`` laid over them: tables merge key by key, all
    else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        below = base.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            merged[key] = overlaid(below, value)
        else:
            merged[key] = value
    return merged


def table_of(settings: Settings, key: str) -> Settings:
    """The table under ``key``; empty if there is none."""
    table = settings.get(key)
    return table if isinstance(table, dict) else {}


def mapped(tree: _Tree, change: Callable[[Setting], Any]) -> Any:
    """A table of the shape of ``settings``, with the result of ``change`` for each setting."""
    if isinstance(tree, Setting):
        return change(tree)
    if isinstance(tree, list):
        return [mapped(row, change) for row in tree]
    return {key: mapped(below, change) for key, below in tree.items()}


def origins(tree: _Tree, path: KeyPath = ()) -> Iterator[tuple[str, Origin]]:
    """The key of each setting, as people write it, and its origin."""
    if isinstance(tree, Setting):
        yield shown_path(path), tree.origin
        return
    for key, below in enumerate(tree) if isinstance(tree, list) else tree.items():
        yield from origins(below, (*path, key))
