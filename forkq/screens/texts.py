"""Lengths of time, moments, numbers and names in the words of every screen."""

from __future__ import annotations

import json
import time
from typing import Any, Final

from ..wire.printable import cut, printable

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_FOREVER: Final = 1e12  # seconds
_LONGEST_ARGS: Final = 200


def length(seconds: float, units: int = 2) -> str:
    """A length of time in at most two units: ``2 d 3 h``, ``4.2 s``, ``12 ms``; "-" if no clock
    has such a time."""
    if not seconds < _FOREVER:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    left, parts = round(seconds), list[str]()
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
        if len(parts) == units:
            break
    return " ".join(filter(None, parts))


def relative(epoch: float, units: int = 2) -> str:
    """A moment as seen from now: ``in 4 min``, ``3 h ago``, ``just now``; "-" for the score of
    a set that is none."""
    away = epoch - time.time()
    if not abs(away) < _FOREVER:
        return "-"
    if abs(away) < 1:
        return "just now"
    return f"in {length(away, units)}" if away > 0 else f"{length(-away, units)} ago"


def count(number: float | None) -> str:
    """With separators: ``1,234,567``; ``-`` for None."""
    return "-" if number is None else f"{number:,.0f}"


def size(kib: float) -> str:
    """Memory, from KiB: ``84 MiB``."""
    mib = kib / 1024
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"


def arguments(args: Any, longest: int = _LONGEST_ARGS) -> str:
    """Arguments as JSON, cut. ``JobEntry.args`` has masked its secrets."""
    try:
        text = json.dumps(args, ensure_ascii=False, default=str)
    except RecursionError:
        text = "(nested too deeply to be shown)"
    return printable(cut(text, longest))


def plural(number: int, word: str, words: str = "") -> str:
    """``1 job``, ``2 jobs``."""
    return f"{number:,} {word if number == 1 else words or word + 's'}"


def name(text: object) -> str:
    """A job's class, a queue's name, or other text of Redis: printable, and not too long."""
    return printable(cut(str(text)))
