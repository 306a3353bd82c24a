"""The settings that a web framework has for forkq, such as FORKQ in Flask's ``app.config``.

``load`` lays them over forkq.toml, whose tables and keys they have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import ConfigError
from .check import Checker
from .config import FILE
from .schema import KeyPath, shown_path
from .settings import Problems, Settings

# Where the settings stand, for messages, and the settings.
Given: TypeAlias = "tuple[str, Mapping[str, Any]]"

_source: Callable[[], Given] | None = None


def give(source: Callable[[], Given] | None) -> None:
    """From now on each configuration of this process has the settings that ``source`` returns. It
    may raise ConfigError."""
    global _source  # noqa: PLW0603 - a process has one app, and reads its settings late
    _source = source


def settings(problems: Problems) -> Settings:
    """What the framework has set; what is wrong joins ``problems``."""
    if _source is None:
        return {}
    place, given = _source()
    try:
        document = plain(given)
    except ConfigError as error:
        problems.append(f"{place}: {error}")
        return {}
    return Checker(Path(place), FILE, problems).table(FILE, document)


def plain(value: Any, path: KeyPath = ()) -> Any:
    """``value`` as TOML has it: tuples are lists, paths are texts, and None is not given. Raises
    ConfigError for what TOML cannot say."""
    if isinstance(value, Mapping):
        items = ((str(key), item) for key, item in value.items() if item is not None)
        return {key: plain(item, (*path, key)) for key, item in items}
    if isinstance(value, list | tuple):
        return [plain(item, (*path, number)) for number, item in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if not isinstance(value, str | int | float):
        raise ConfigError(f"{shown_path(path)}: a {type(value).__name__} is no value of a setting")
    return value
