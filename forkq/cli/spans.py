"""Lengths of time and ages as options of commands."""

from __future__ import annotations

from collections.abc import Callable

import click

from ..api import spans
from ..errors import ForkqError


def span(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """The seconds in ``value``: callback of an option. Raises BadParameter."""
    return _read(spans.span, value)


def age(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """The seconds in ``value``, or since that time: callback of an option. Raises BadParameter."""
    return _read(spans.age, value)


def delay(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """As ``span``; a number alone is seconds, as in ``perform_in``: callback of an option. Raises
    BadParameter."""
    try:
        return None if value is None else float(value)
    except ValueError:
        return _read(spans.span, value)


def _read(parse: Callable[[str], float], value: str | None) -> float | None:
    try:
        return None if value is None else parse(value)
    except ForkqError as error:
        raise click.BadParameter(str(error)) from None
