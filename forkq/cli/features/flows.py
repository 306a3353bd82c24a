"""``forkq flows``: how far each has come, its steps as a tree; retrying and cancelling one."""

from __future__ import annotations

from typing import Any, Final

import click

from ...api import Flow
from ...api import flows as all_flows
from ...screens.features.batches import as_object
from ...screens.features.flow_shape import folded_lines, shape_of
from ...screens.features.flows import FLOWS, object_of_step, told, tree
from ...screens.table import shown_of
from ..options import ListFirst, WholeNumber, configuration, finds_redis, json_option, searched
from ..output import as_json, echo, print_values
from .batches import tell_sent

# How many flows a table has, unless --limit says another number.
_ROWS: Final = 50
# Of a larger flow a tree is no help.
_IN_TREE: Final = 200
_bid = click.argument("bid", metavar="FLOW")


@click.group(cls=ListFirst)
def flows() -> None:
    """Flows: steps that start once those before them have ended."""


@flows.command("list")
@click.option("--limit", type=WholeNumber(min=1), metavar="N", help="At most N flows.")
@json_option
@finds_redis
def list_(limit: int | None, wants_json: bool, **flags: Any) -> int:
    """List flows, the one that changed last first."""
    found = all_flows(searched(configuration(**flags)))
    most = limit or (len(found) if wants_json else _ROWS)
    print_values(FLOWS, found[:most], wants_json=wants_json)
    if len(found) > most and not wants_json:
        echo(shown_of(most, len(found), "forkq flows --json"), err=True)
    return 0


@flows.command()
@_bid
@json_option
@finds_redis
def show(bid: str, wants_json: bool, **flags: Any) -> int:
    """Show the steps of a flow as a tree: how each has ended, and what it waits for.

    In a flow of more than 200 steps those that are alike share a line.
    """
    flow = Flow(bid, searched(configuration(**flags)))
    report, steps = flow.report(), flow.steps()
    if wants_json:
        click.echo(as_json({**as_object(report), "steps": [object_of_step(one) for one in steps]}))
        return 0
    print_values(FLOWS, [report], wants_json=False)
    is_large = len(steps) > _IN_TREE
    lines = folded_lines(shape_of(steps)) if is_large else tree(steps)
    for line in (*told(report, steps), *lines):
        echo(line)
    if is_large:
        echo("steps that are alike share a line; --json has each of them", err=True)
    return 0


@flows.command()
@_bid
@finds_redis
def cancel(bid: str, **flags: Any) -> int:
    """Cancel a flow: no step starts any more, and those that wait in their queues or run end."""
    Flow(bid, searched(configuration(**flags))).cancel()
    echo(f"{bid} is cancelled: no further step starts, and those that wait or run end")
    return 0


@flows.command()
@_bid
@finds_redis
def retry(bid: str, **flags: Any) -> int:
    """Send the dead steps of a flow to their queues now; once they are done, it goes on. Exit code
    1 if there is none."""
    count = Flow(bid, searched(configuration(**flags))).retry_dead().done
    return tell_sent(count, "step", "the dead set has no step of this flow")
