"""Durations, sizes, counts and shares: how forkq writes them for people, and reads them.

One place for every room: log lines, commands and screens write the same words.
"""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Final

from .errors import ConfigError, ForkqError, shown

# Seconds: more years than any clock has.
_FOREVER: Final = 1e12
_DURATIONS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_SECONDS_IN: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])")
_DURATION: Final = re.compile(rf"(?:{_PART.pattern}){{1,9}}")
_SIZES: Final = ("", "K", "M", "G", "T")
_SIZE: Final = re.compile(r"\s*([0-9]{1,12}(?:\.[0-9]{1,3})?)\s*(?:([KMGT])(?:i?B)?|B)?\s*", re.I)
EXPECTED_SIZE: Final = 'a size such as "512MB" or "1.5GB", or "0" for no limit'


def format_duration(seconds: float) -> str:
    """Writes a length of time in one unit, with two digits: ``12 ms``, ``4.2 s``, ``90 min``, ``47
    h``; "-" if no clock has such a time."""
    if not seconds < _FOREVER:
        return "-"
    if 0 < seconds < 1:
        return f"{_digits(seconds * 1000)} ms"
    if seconds < 10:
        return f"{_digits(max(seconds, 0))} s"
    size, unit = next((one for one in _DURATIONS if seconds >= 2 * one[0]), _DURATIONS[-1])
    return f"{_digits(seconds / size)} {unit}"


def format_moment(epoch: float) -> str:
    """Writes a moment as seen from now: ``in 4 min``, ``3 h ago``, ``just now``."""
    away = epoch - time.time()
    if not abs(away) < _FOREVER:  # what is in Redis may be any number
        return "never" if away > 0 else "long ago" if away < 0 else "-"
    if abs(away) < 1:
        return "just now"
    lasts = format_duration(abs(away))
    return f"in {lasts}" if away > 0 else f"{lasts} ago"


def parse_duration(text: str) -> float:
    """The seconds in ``90s``, ``5m``, ``1h``, ``2d`` or ``1h30m``. A number without a unit is
    refused, because it could be in any unit. Raises ForkqError."""
    if _DURATION.fullmatch(text) is None:
        raise ForkqError(
            f"{shown(text)} is not a length of time; write it like 90s, 5m, 1h, 2d or 1h30m"
        )
    return sum(float(number) * _SECONDS_IN[unit] for number, unit in _PART.findall(text))


def parse_age(text: str) -> float:
    """The seconds in ``text``, or since the day or the moment that it names, in this machine's time
    zone: for ``Filter.older_than``. Raises ForkqError."""
    if _DURATION.fullmatch(text):
        return parse_duration(text)
    try:
        seconds = time.time() - datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ForkqError(
            f"{shown(text)} is neither a length of time, such as 10m, 2h or 7d, nor a time, such "
            "as 2026-11-20 or 2026-11-20T13:00"
        ) from None
    if seconds < 0:
        raise ForkqError(f"{text} is in the future: every job is older than that")
    return seconds


def format_size(size: float) -> str:
    """Writes bytes as forkq.toml has them: ``812MB``, ``1.5GB``; 1MB is 1024 * 1024 bytes."""
    number, unit = float(size), 0
    while number >= 1000 and unit < len(_SIZES) - 1:
        number, unit = number / 1024, unit + 1
    return f"{_digits(number)}{_SIZES[unit]}B"


def parse_size(text: str) -> int:
    """``"512MB"`` in bytes. Raises ConfigError. A number without a unit would be in bytes, which is
    hardly meant."""
    match = _SIZE.fullmatch(text)
    if match is None or (match[2] is None and float(match[1]) and "b" not in text.lower()):
        raise ConfigError(f'expected {EXPECTED_SIZE}, found the string "{text[:60]}"')
    return int(float(match[1]) * 1024 ** _SIZES.index((match[2] or "").upper()))


def format_count(number: float | None) -> str:
    """Writes a whole number with separators: ``1,234,567``; ``-`` for None."""
    return "-" if number is None else f"{number:,.0f}"


def plural(count: int, noun: str, nouns: str = "") -> str:
    """A number with its noun, such as ``1 job`` and ``1,204 jobs``. ``nouns`` is a plural that has
    more than an s."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def format_share(share: float, digits: int = 0) -> str:
    """Writes a part of a whole that is 1: ``42%``."""
    return f"{share:.{digits}%}"


def _digits(number: float) -> str:
    """Writes a number with two digits at least, and no more than it takes."""
    return f"{number:.1f}".removesuffix(".0") if number < 9.95 else f"{number:.0f}"
