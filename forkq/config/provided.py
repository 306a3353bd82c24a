"""A configuration that a framework has, in place of forkq.toml: the settings of a Django project.

Used by ``load`` only; an integration in ``contrib/`` sets ``source``. It is read with each load, so
that what is wrong in it is told as an error of the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError


@dataclass(frozen=True, slots=True)
class Provided:
    """``place`` is what messages call it. ``read`` returns a document as forkq.toml has it; an
    empty one leaves the word to forkq.toml. ``app`` is what children load before the rest."""

    place: str
    read: Callable[[], dict[str, Any]]
    app: str


source: Provided | None = None


def or_file(file: Path | None, document: dict[str, Any]) -> tuple[Path | None, dict[str, Any]]:
    """What is provided, else the file with its document. ConfigError: there are both."""
    given = source.read() if source is not None else {}
    if source is None or not given:
        return file, document
    if file is not None:
        raise ConfigError(
            f"both {source.place} and {file} configure forkq, which reads only one; remove one"
        )
    return Path(source.place), given


def with_app(apps: Iterable[str]) -> tuple[str, ...]:
    """What children load: first what loads the framework."""
    first = () if source is None else (source.app,)
    return (*first, *(app for app in apps if app not in first))
