"""Patterns: queue names with ``*``, ``?`` or ``[...]``. They match queues as in a shell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase


def is_pattern(name: str) -> bool:
    """Whether ``name`` is a pattern."""
    return any(character in name for character in "*?[")


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The names among ``names`` that match ``pattern`` or are equal to it, in alphabetical
    order."""
    return sorted(name for name in names if name == pattern or fnmatchcase(name, pattern))


def decoded_names(
    names: Iterable[bytes],
    on_unreadable: Callable[[bytes, UnicodeDecodeError], None] = lambda name, error: None,
) -> set[str]:
    """Names of queues as Redis returns them, as text. A name that is not UTF-8 is left out, and
    passed to ``on_unreadable``: no pattern matches it, and no forkq or Sidekiq client wrote it."""
    found = set()
    for name in names:
        try:
            found.add(name.decode())
        except UnicodeDecodeError as error:
            on_unreadable(name, error)
    return found


def matches_any(name: str, names: Iterable[str]) -> bool:
    """Whether ``name`` equals or matches one of ``names``, which may be patterns."""
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in names)
