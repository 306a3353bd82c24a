"""Which jobs a command is about: its filters as options, and as a Filter of the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..api import Filter
from .completion import complete_queues
from .durations import age
from .options import WholeNumber

Command = TypeVar("Command", bound=Callable[..., Any])


def _text(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Callback: raises BadParameter for an empty text, such as that of a variable that is not set.
    It would let all jobs pass."""
    if value == "":
        raise click.BadParameter("it is empty; give a text, or leave the option out for all jobs")
    return value


_FILTERS = (
    click.option(
        "--class", "job", callback=_text, metavar="NAME",
        help="Only this class; * and ? may be in it.",
    ),
    click.option(
        "--error", callback=_text, metavar="NAME",
        help="Only jobs whose latest error is of this class.",
    ),
    click.option(
        "-q", "--queue", callback=_text, metavar="Q", shell_complete=complete_queues,
        help="Only this queue.",
    ),
    click.option("--jid", callback=_text, metavar="JID", help="Only the job with this id."),
    click.option(
        "--match", callback=_text, metavar="TEXT", help="Only jobs with this text in their payload."
    ),
    click.option(
        "--older-than", callback=age, metavar="T",
        help="Only those that are there for longer: 10m, 2h, 7d; or since before 2026-11-20.",
    ),
)  # fmt: skip
_NAMES = ("job", "error", "queue", "jid", "match", "older_than")

limit_option = click.option("--limit", type=WholeNumber(min=1), metavar="N", help="At most N jobs.")


def filters(command: Command) -> Command:
    """Adds the options that choose jobs."""
    for option in reversed(_FILTERS):
        command = option(command)
    return command


def take_filter(flags: dict[str, Any]) -> Filter:
    """The filter that those of ``flags`` make, which are removed."""
    return Filter(**{name: flags.pop(name) for name in _NAMES})
