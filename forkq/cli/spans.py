"""Lengths of time as options of commands: ``90s``, ``5m``, ``1h``, ``2d``, ``1h30m``; and days."""

from __future__ import annotations

import re
import time
from datetime import datetime

import click

_SIZES = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_PART = re.compile(r"(\d{1,9}(?:\.\d+)?)([smhd])")
_SPAN = re.compile(rf"(?:{_PART.pattern})+")


def span(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """The seconds in ``value``: callback of an option. A number without a unit is refused, because
    it could be in any unit. Raises BadParameter."""
    if value is None:
        return None
    if _SPAN.fullmatch(value) is None:
        raise click.BadParameter(
            f"{value!r} is not a length of time; write it like 90s, 5m, 1h, 2d or 1h30m"
        )
    return sum(float(number) * _SIZES[unit] for number, unit in _PART.findall(value))


def age(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """The epoch second that was so long ago, or at which a day or a moment of this machine's time
    zone begins: callback of an option. Raises BadParameter."""
    if value is None:
        return None
    if _SPAN.fullmatch(value):
        return time.time() - (span(context, option, value) or 0.0)
    try:
        moment = datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            f"{value!r} is neither a length of time, such as 10m, 2h or 7d, nor a time, such as "
            "2026-11-20 or 2026-11-20T13:00"
        ) from None
    if moment > time.time():
        raise click.BadParameter(f"{value} is in the future: every job is older than that")
    return moment
