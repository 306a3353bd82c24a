"""Lengths of time and ages as options of commands."""

from __future__ import annotations

from collections.abc import Callable

import click

from ..errors import ForkqError
from ..units import parse_age, parse_duration


def duration(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """The seconds in ``value``: callback of an option. Raises BadParameter."""
    return _read(parse_duration, value)


def age(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """The seconds in ``value``, or since that time: callback of an option. Raises BadParameter."""
    return _read(parse_age, value)


def delay(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """As ``duration``; a number alone is seconds, as in ``perform_in``: callback of an option.
    Raises BadParameter."""
    try:
        return None if value is None else float(value)
    except ValueError:
        return _read(parse_duration, value)


def _read(parse: Callable[[str], float], value: str | None) -> float | None:
    try:
        return None if value is None else parse(value)
    except ForkqError as error:
        raise click.BadParameter(str(error)) from None
