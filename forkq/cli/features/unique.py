"""``forkq unique``: the locks of unique jobs; freeing them by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from ...api import LockFilter, unique_locks
from ...api.features.locks import places_of
from ...screens.features.locks import LOCKS, freed, of_locks
from ...screens.table import shown_of
from ...units import plural
from ..bulk import acts, confirmed
from ..options import (
    ListFirst,
    WholeNumber,
    age,
    configuration,
    connected,
    finds_redis,
    json_option,
)
from ..output import as_json, echo, print_values

Command = TypeVar("Command", bound=Callable[..., Any])
# How many locks a table has, unless --limit says another number.
_ROWS: Final = 50
_EVERY: Final = LockFilter()
_FILTERS: Final = (
    click.option("--class", "job", metavar="NAME", help="Only this class; * and ? may be in it."),
    click.option("--jid", metavar="JID", help="Only the lock of the job with this id."),
    click.option(
        "--older-than", callback=age, metavar="T", help="Only those that are held for longer: 10m."
    ),
)


def filters(command: Command) -> Command:
    """Adds the options that choose locks."""
    for option in reversed(_FILTERS):
        command = option(command)
    return command


def take_filter(flags: dict[str, Any]) -> LockFilter:
    """Removes the options of ``filters`` from ``flags``, and returns the filter that they make."""
    return LockFilter(**{name: flags.pop(name) for name in ("job", "jid", "older_than")})


@click.group(cls=ListFirst)
def unique() -> None:
    """The locks of unique jobs, and freeing them by hand.

    A lock ends with its job. One whose job is gone is freed once a push meets it.
    """


@unique.command("list")
@filters
@click.option("--limit", type=WholeNumber(min=1), metavar="N", help="At most N locks.")
@json_option
@finds_redis
def list_(limit: int | None, wants_json: bool, **flags: Any) -> int:
    """List the locks that are held, the oldest first, and where their jobs are. Exit code 1 if
    options choose some, and there is none.

    `-`: the search for the job took too long.
    """
    where = take_filter(flags)
    found = unique_locks(where, connected(configuration(**flags)))
    most = limit or (len(found) if wants_json else _ROWS)
    lines = of_locks(found[:most], places_of(found[:most]))
    print_values(LOCKS, lines, wants_json=wants_json)
    if len(found) > most and not wants_json:
        echo(shown_of(most, len(found), "forkq unique --json"), err=True)
    return 0 if found or where == _EVERY else 1


@unique.command()
@click.argument("names", nargs=-1, metavar="[LOCK_OR_JID]...")
@filters
@acts
@json_option
@finds_redis
def free(
    names: tuple[str, ...], everything: bool, dry_run: bool, yes: bool, wants_json: bool,
    **flags: Any,
) -> int:  # fmt: skip
    """Free locks: the next push of such a job succeeds. Their jobs stay where they are. Exit code 1
    if none is freed."""
    where = take_filter(flags)
    if not names and where == _EVERY and not everything:
        raise click.UsageError(
            "which locks? Give locks or jids, a filter such as --class or --older-than, or --all"
        )
    found = unique_locks(where, connected(configuration(**flags)))
    if names:
        found = [lock for lock in found if lock.digest in names or lock.jid in names]
    plan = freed(found)
    if dry_run:
        count = len(found)
    elif found and not yes and not confirmed("forkq unique free", f"{plan.says} {plan.details[0]}"):
        return 1
    else:
        count = (plan.do().count or 0) if found else 0
    if wants_json:
        click.echo(as_json({"matched": len(found), "freed": 0 if dry_run else count}))
    elif not found:
        echo("no such lock is held", err=True)
    else:
        echo(f"{plural(count, 'lock')} {'would be freed' if dry_run else 'freed'}")
    return 0 if count else 1
