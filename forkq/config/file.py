"""forkq.toml: found, read, its environments laid over the base, checked. Used by ``config`` only.

Which keys there are is said in ``config``; how a value is checked, in ``schema``.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .expand import expanded, variables_in
from .schema import Checker, Each, KeyPath, Table, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

USUAL_NAME = "forkq.toml"
DEFAULT_ENVIRONMENT = "development"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a file says, unchecked; without a file (``source`` is None) it says nothing."""

    source: Path | None = None
    document: dict[str, Any] = field(default_factory=dict)

    def variables(self) -> Iterator[str]:
        """The names of all variables that the file refers to, in force or not."""
        return variables_in(self.document)

    def environment(self, environ: Mapping[str, str]) -> str:
        """The one that the file names; if that is wrong, ``values`` will say so."""
        named = _dig(self.document, ("forkq", "environment"))
        try:
            found = expanded(named, environ)
        except ConfigError:
            return DEFAULT_ENVIRONMENT
        return found if isinstance(found, str) else DEFAULT_ENVIRONMENT

    def values(
        self, tables: Table, environment: str, environ: Mapping[str, str]
    ) -> tuple[dict[str, Any], list[str]]:
        """The checked values in force, and everything that is wrong in the file.

        It is walked twice: as written, with every environment, so that a mistake in production's
        is found in development; then what is in force, where alone the variables must be set.
        """
        written = Checker(str(self.source), {**tables, "environments": Each(_overrides(tables))})
        written.check(self.document)
        overrides = _dig(self.document, ("environments", environment))
        base = {key: value for key, value in self.document.items() if key in tables}

        def locate(path: KeyPath) -> KeyPath:
            overridden = _dig(overrides, _until_list(path)) is not None
            return ("environments", environment, *path) if overridden else path

        in_force = Checker(str(self.source), tables, environ, locate)
        values = in_force.check(_overlaid(base, overrides))
        problems = [*written.problems, *in_force.problems, *self._misspelt(environment)]
        return values, list(dict.fromkeys(problems))

    def _misspelt(self, environment: str) -> Iterator[str]:
        """An environment without a table is fine, unless one is called almost the same."""
        named = _dig(self.document, ("environments",))
        if not isinstance(named, dict) or environment in named:
            return
        near = nearest(environment, list(named), 0.75)
        if near is not None:
            yield (
                f"{self.source}: environments: there is none called {environment}, the nearest one "
                f"is {near}; if both exist, add an empty table [environments.{environment}]"
            )


def open_config(path: Path | None, environ: Mapping[str, str], cwd: Path) -> ConfigFile:
    """``path``, else FORKQ_CONFIG, else ./forkq.toml if there is one. ConfigError: unusable."""
    named = path or environ.get("FORKQ_CONFIG")
    file = cwd / Path(named or USUAL_NAME)
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        if not named:
            return ConfigFile()
        origin = "-C" if path else "FORKQ_CONFIG"
        raise ConfigError(f"{file}: no such file ({origin} names it)") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    return ConfigFile(file, _parsed(file, content))


def _parsed(file: Path, content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 at byte {error.start}, as TOML must be") from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError; 5,000 digits; endless nesting
        raise ConfigError(f"{file}: not valid TOML: {error}") from error


def _overrides(tables: Table) -> dict[str, object]:
    """An environment may say all that the base says, except which environment it is."""
    forkq = tables["forkq"]
    assert isinstance(forkq, Mapping)
    return {**tables, "forkq": {key: hint for key, hint in forkq.items() if key != "environment"}}


def _overlaid(base: object, over: object) -> object:
    """``over`` laid over ``base``: tables merge key by key, anything else is replaced."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return base if over is None else over
    return {key: _overlaid(base.get(key), over.get(key)) for key in [*base, *over]}


def _until_list(path: KeyPath) -> KeyPath:
    """``path`` up to the first list in it, which an environment replaces as a whole."""
    return tuple(itertools.takewhile(lambda key: isinstance(key, str), path))


def _dig(found: object, path: KeyPath) -> object:
    """The value at ``path``, or None; TOML itself has no null."""
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found
