"""``forkq batches``: how far each has come; retrying, pausing, sealing and cancelling one."""

from __future__ import annotations

from typing import Any, Final

import click

from ...api import Batch
from ...api import batches as all_batches
from ...screens.features.batches import BATCHES, as_object, told
from ...screens.table import shown_of
from ...units import plural
from ..options import ListFirst, WholeNumber, configuration, finds_redis, json_option, searched
from ..output import as_json, echo, print_values

# How many batches a table has, unless --limit says another number.
_ROWS: Final = 50
_bid = click.argument("bid", metavar="BATCH")


@click.group(cls=ListFirst)
def batches() -> None:
    """Batches: jobs that belong together."""


@batches.command("list")
@click.option("--limit", type=WholeNumber(min=1), metavar="N", help="At most N batches.")
@json_option
@finds_redis
def list_(limit: int | None, wants_json: bool, **flags: Any) -> int:
    """List batches, the one that changed last first."""
    found = all_batches(searched(configuration(**flags)))
    most = limit or (len(found) if wants_json else _ROWS)
    print_values(BATCHES, found[:most], wants_json=wants_json)
    if len(found) > most and not wants_json:
        echo(shown_of(most, len(found), "forkq batches --json"), err=True)
    return 0


@batches.command()
@_bid
@json_option
@finds_redis
def show(bid: str, wants_json: bool, **flags: Any) -> int:
    """Show how far a batch has come, and what keeps it."""
    report = Batch(bid, searched(configuration(**flags))).report()
    if wants_json:
        click.echo(as_json(as_object(report)))
        return 0
    print_values(BATCHES, [report], wants_json=False)
    for line in told(report):
        echo(line)
    return 0


@batches.command()
@_bid
@finds_redis
def seal(bid: str, **flags: Any) -> int:
    """End the block of a batch whose process is dead, or that has raised an error. Its callbacks
    are pushed when what was pushed has ended."""
    Batch(bid, searched(configuration(**flags))).seal()
    echo(f"{bid} takes no more members")
    return 0


@batches.command()
@_bid
@finds_redis
def pause(bid: str, **flags: Any) -> int:
    """Keep the members of a batch that wait from being run, and those of the batches within it.
    What runs goes on."""
    Batch(bid, searched(configuration(**flags))).pause()
    echo(f"{bid} is paused: `forkq batches resume {bid}` lets its members run again")
    return 0


@batches.command()
@_bid
@finds_redis
def resume(bid: str, **flags: Any) -> int:
    """End the pause of a batch: its members run again."""
    count = Batch(bid, searched(configuration(**flags))).resume().done
    echo(f"{bid} goes on; {plural(count, 'member')} that had been put off sent to the queue")
    return 0


@batches.command()
@_bid
@finds_redis
def cancel(bid: str, **flags: Any) -> int:
    """Cancel all members of a batch, and the batches within it."""
    Batch(bid, searched(configuration(**flags))).cancel()
    echo(f"{bid} is cancelled: its members end where they wait and where they run")
    return 0


@batches.command()
@_bid
@finds_redis
def retry(bid: str, **flags: Any) -> int:
    """Send the dead members of a batch, and of those within it, to their queues now. Exit code 1 if
    there is none."""
    count = Batch(bid, searched(configuration(**flags))).retry_dead().done
    return tell_sent(count, "job", "the dead set has no member of this batch")


def tell_sent(count: int, noun: str, why_none: str) -> int:
    """Says how many went to their queues, or why none did. Returns the exit code."""
    none = "" if count else f": {why_none}"
    echo(f"{plural(count, noun)} sent to {'its queue' if count == 1 else 'their queues'}{none}")
    return 0 if count else 1
