"""A configuration that a framework has, in place of forkq.toml: the settings of a Django project.

Used by ``load`` only; an integration in ``contrib/`` sets ``source``. It is read with each load, so
that what is wrong in it is told as an error of the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigError, configuration


class Provided(msgspec.Struct, frozen=True):
    """``place`` is what messages call it. ``read`` returns a document as forkq.toml has it; an
    empty one leaves the word to forkq.toml. ``app`` is what children load before the rest.
    ``command`` is how a test starts the project, for what it names as the app ("" if it names
    none): arguments of Python, and variables. None: as without a framework."""

    place: str
    read: Callable[[], dict[str, Any]]
    app: str
    command: Callable[[str], tuple[list[str], dict[str, str]] | None] = lambda _app: None


source: Provided | None = None


def use(given: Provided | None) -> None:
    """From now on this process is configured by ``given``; None: by forkq.toml."""
    global source  # noqa: PLW0603 - a process has one configuration
    source = given
    configuration.place = "forkq.toml" if given is None else given.place


def found(file: Path | None, cwd: Path, *, is_named: bool) -> tuple[Path, dict[str, Any]] | None:
    """What is provided, with its place. Raises ConfigError if there is a ``file`` too, in ``cwd``
    or named.

    A file elsewhere may be another program's: a repository of several services has one above all.
    """
    given = source.read() if source is not None else {}
    if source is None or not given:
        return None
    if file is not None and (is_named or file.parent == cwd):
        raise ConfigError(
            f"both {source.place} and {file} configure forkq, which reads only one; remove one"
        )
    return Path(source.place), given


def with_app(apps: Iterable[str]) -> tuple[str, ...]:
    """The modules that children load: first the one that loads the framework."""
    first = () if source is None else (source.app,)
    return (*first, *(app for app in apps if app not in first))
