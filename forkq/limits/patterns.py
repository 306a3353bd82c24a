"""Queue names with ``*``, ``?`` or ``[...]`` in them: patterns, which stand for every queue that
matches, as in a shell."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase


def is_pattern(name: str) -> bool:
    """Whether ``name`` stands for many queues."""
    return any(sign in name for sign in "*?[")


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Those of ``names`` that ``pattern`` stands for, in alphabetical order: one of just that name,
    too."""
    return sorted(name for name in names if name == pattern or fnmatchcase(name, pattern))


def readable(names: Iterable[bytes]) -> set[str]:
    """Names as Redis gives them, without those that are no UTF-8: no client of ours or Sidekiq's
    has written them, and no pattern means them."""
    found = set()
    for name in names:
        try:
            found.add(name.decode())
        except UnicodeDecodeError:
            continue
    return found


def among(name: str, names: Iterable[str]) -> bool:
    """Whether one of ``names``, which may be patterns, means ``name``."""
    return any(name == each or fnmatchcase(name, each) for each in names)
