"""Patterns: queue names with ``*``, ``?`` or ``[...]``. They match queues as in a shell."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase


def is_pattern(name: str) -> bool:
    """Whether ``name`` is a pattern."""
    return any(character in name for character in "*?[")


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Those of ``names`` that match ``pattern`` or are equal to it, in alphabetical order."""
    return sorted(name for name in names if name == pattern or fnmatchcase(name, pattern))


def readable(names: Iterable[bytes]) -> set[str]:
    """Names as Redis returns them, decoded. Names that are not UTF-8 are left out: no client of
    forkq or Sidekiq writes them, and no pattern matches them."""
    found = set()
    for name in names:
        try:
            found.add(name.decode())
        except UnicodeDecodeError:
            continue
    return found


def among(name: str, names: Iterable[str]) -> bool:
    """Whether ``name`` equals or matches one of ``names``, which may be patterns."""
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in names)
