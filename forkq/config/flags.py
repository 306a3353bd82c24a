"""What flags and variables set, as settings. Used by ``load`` only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..errors import nearest
from .config import KEYS
from .schema import Key, Table, converted, key_of
from .settings import ConfigProblems, Origin, Setting, Settings

# Variables of forkq that are no key of the configuration, and prefixes that belong to others.
_OTHER_VARIABLES = frozenset({"FORKQ_CONFIG"})
_FOREIGN_PREFIXES = ("FORKQ_DEMO_", "FORKQ_TEST_", "FORKQ_BENCH_")


def read_options(
    keys: Table, flags: Mapping[str, Any], environ: Mapping[str, str], problems: ConfigProblems
) -> Settings:
    """Every key of the table ``keys`` that a flag or a variable gives; what is wrong joins
    ``problems``."""
    settings: Settings = {}
    for name, hint in keys.items():
        option = _option(key_of(hint), flags, environ)
        if option is None:
            continue
        origin, value = option
        with problems.at(origin):
            settings[name] = Setting(converted(value, hint, from_text=True), origin)
    return settings


def _option(
    key: Key, flags: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[Origin, object] | None:
    """The flag, or else the first variable, that sets the key, and the value that it gives."""
    value = flags.get(key.parsed_as)
    if value not in (None, "", (), []):
        return Origin("flag", key.flag), list(value) if isinstance(value, tuple) else value
    for variable in key.variables:
        text = environ.get(variable, "").strip()
        if text:
            parts = [part for part in re.split(key.split, text) if part] if key.split else text
            return Origin("variable", variable), parts
    return None


def misspelt_variables(environ: Mapping[str, str], used: Iterable[str]) -> Iterator[str]:
    """A problem for each FORKQ_ variable that is unknown, but close to a known one.

    Other FORKQ_ variables are left alone: people name things after their tools. So are those that
    the file ``used``.
    """
    known = {name for key in KEYS.values() for name in key.variables} | _OTHER_VARIABLES
    ours = {name.removeprefix("FORKQ_").lower(): name for name in known if _is_ours(name)}
    for name in sorted(set(environ) - known - set(used)):
        if _is_ours(name):
            word = name.removeprefix("FORKQ_").lower()
            near = nearest(word, ours, 0.7) or _completed(word, ours)
            if near is not None:
                yield f"{name}: no such variable, the nearest one is {ours[near]}"


def _completed(word: str, words: Iterable[str]) -> str | None:
    """The known variable that ``word`` begins: FORKQ_ENV and FORKQ_LOG are too short for a measure
    of likeness, but clear enough."""
    return next((known for known in sorted(words) if word and known.startswith(word)), None)


def _is_ours(name: str) -> bool:
    return name.startswith("FORKQ_") and not name.startswith(_FOREIGN_PREFIXES)
