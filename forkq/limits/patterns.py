"""Queue names with ``*``, ``?`` or ``[...]`` in them: patterns, which stand for every queue that
matches, as in a shell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase


def is_pattern(name: str) -> bool:
    """Whether ``name`` stands for many queues."""
    return any(sign in name for sign in "*?[")


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Those of ``names`` that ``pattern`` stands for, in alphabetical order: one of just that name,
    too."""
    return sorted(name for name in names if name == pattern or fnmatchcase(name, pattern))


def readable(
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


def among(name: str, names: Iterable[str]) -> bool:
    """Whether one of ``names``, which may be patterns, means ``name``."""
    return any(name == each or fnmatchcase(name, each) for each in names)
