"""Rates as people write them (``100/minute``, ``5/second``, ``10/30s``) and as Redis holds them."""

from __future__ import annotations

import re
from typing import Final

from ..errors import InvalidRule
from .rules import Rate

EXPECTED: Final = 'a rate like "100/minute", "5/second" or "10/30s"'

_SIZES: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
_UNITS: Final = _SIZES | {name[0]: size for name, size in _SIZES.items()}
_WRITTEN: Final = re.compile(
    r"([1-9][0-9]{0,6})\s*/\s*(?:(second|minute|hour|day)|([1-9][0-9]{0,5})?\s*([smhd]))"
)
_MOST_AT_ONCE: Final = 9_999_999
_STORED: Final = re.compile(r"([0-9.]+)/([0-9.]+)")


def parse_rate(text: str, burst: float | None = None) -> Rate:
    """``"100/minute"`` -> 100 in 60 seconds. Raises InvalidRule."""
    match = _WRITTEN.fullmatch(text.strip()) if type(text) is str else None
    if match is None:
        raise InvalidRule(
            f'expected {EXPECTED}, found "{text}": a whole number from 1 to 9999999, a slash, and '
            "second, minute, hour, day or so many s, m, h or d; for none at all, use a limit of 0"
        )
    count, unit, times, sign = match.groups()
    return Rate(int(count), int(times or 1) * _UNITS[unit or sign], check_burst(burst))


def check_burst(burst: float | None) -> float | None:
    """Returns ``burst`` if it is None or a whole number in range. Raises InvalidRule."""
    if burst is None or (type(burst) is int and 1 <= burst <= _MOST_AT_ONCE):
        return burst
    raise InvalidRule(f"expected a whole number from 1 for the burst, found {burst!r}")


def rate_text(rate: Rate) -> str:
    """The rate as people write it, in the longest unit that fits."""
    fitting = [name for name, size in _SIZES.items() if rate.seconds % size == 0]
    unit = fitting[-1] if fitting and rate.seconds else "second"
    times = rate.seconds / _SIZES[unit]
    return f"{_plain(rate.count)}/{unit if times == 1 else _plain(times) + unit[0]}"


def stored_rate(rate: Rate) -> str:
    """The rate as ``COUNT/SECONDS``, which fetch.lua reads (``Keys.control``)."""
    return f"{_plain(rate.count)}/{_plain(rate.seconds)}"


def read_stored(text: str) -> Rate | None:
    """The rate that ``stored_rate`` wrote; None for a text that fetch.lua cannot read either."""
    match = _STORED.fullmatch(text)
    try:
        return None if match is None else Rate(float(match[1]), float(match[2]))
    except ValueError:  # 1.2.3
        return None


def capacity(rate: Rate) -> float:
    """How many jobs may start at once from a full bucket, computed as in fetch.lua."""
    if rate.count <= 0 or rate.seconds <= 0:
        return 0.0
    return max(1.0, rate.burst or 1 + rate.count / rate.seconds / 10)


def _plain(number: float) -> str:
    """The number without an exponent and without zeros at its end."""
    return f"{number:.6f}".rstrip("0").rstrip(".")
