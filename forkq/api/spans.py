"""Lengths of time as people write them: ``90s``, ``5m``, ``1h``, ``2d``, ``1h30m``; and ages. The
commands and the web UI read both here."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Final

from ..errors import ForkqError, shown

_SIZES: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])")
_SPAN: Final = re.compile(rf"(?:{_PART.pattern}){{1,9}}")


def span(text: str) -> float:
    """The seconds in ``text``. A number without a unit is refused, because it could be in any unit.
    Raises ForkqError."""
    if _SPAN.fullmatch(text) is None:
        raise ForkqError(
            f"{shown(text)} is not a length of time; write it like 90s, 5m, 1h, 2d or 1h30m"
        )
    return sum(float(number) * _SIZES[unit] for number, unit in _PART.findall(text))


def age(text: str) -> float:
    """The seconds in ``text``, or since the day or the moment that it names, in this machine's time
    zone: for ``Filter.older_than``. Raises ForkqError."""
    if _SPAN.fullmatch(text):
        return span(text)
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
