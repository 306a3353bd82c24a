"""``forkq classes``: those that are held because their jobs have killed process after process."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import click

from ..api import HeldClass, held_classes, release_class
from ..units import format_moment
from ..wire.printable import shown_name
from .options import ListFirst, configuration, connected, finds_redis, json_option
from .output import echo, echo_objects, echo_table

_TITLES: Final = ("CLASS", "DEATHS", "HELD", "WAITING")
_NONE: Final = "no class is held"


@click.group(cls=ListFirst)
def classes() -> None:
    """Classes that are held: they have killed five processes within a minute.

    Their jobs run alone, one in each solo child, until one of them ends well. Jobs of other
    classes go on.
    """


@classes.command("list")
@json_option
@finds_redis
def list_(wants_json: bool, **flags: Any) -> int:
    """List the held classes, and how many of their jobs wait to run alone."""
    server = connected(configuration(**flags))
    found = held_classes(server)
    if wants_json:
        echo_objects(map(asdict, found))
    else:
        echo_table([_row(held) for held in found], _TITLES, _NONE, whole=("CLASS",))
    return 0


@classes.command()
@click.argument("names", nargs=-1, required=True, metavar="CLASS...")
@finds_redis
def release(names: tuple[str, ...], **flags: Any) -> int:
    """Run the jobs of these classes beside others again; say so if their fault is mended."""
    server = connected(configuration(**flags))
    known = {held.name: held for held in held_classes(server)}
    for name in names:
        if name not in known:
            raise click.ClickException(
                f"the class {shown_name(name)} is not held; `forkq classes` lists those that are"
            )
    for name in dict.fromkeys(names):
        release_class(name, server)
        back = f"{known[name].waiting:,} of its jobs go back to their queues"
        echo(f"{shown_name(name)} is released; {back}")
    return 0


def _row(held: HeldClass) -> tuple[str, ...]:
    return (
        shown_name(held.name),
        f"{held.deaths:,}",
        format_moment(held.since),
        f"{held.waiting:,}",
    )
