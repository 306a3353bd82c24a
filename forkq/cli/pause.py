"""``forkq pause`` and ``forkq resume``: no child fetches from a paused queue."""

from __future__ import annotations

from typing import Any

import click

from .. import api
from ..wire.printable import shown_name
from .options import configuration, connected, finds_redis
from .output import echo
from .queues import warn_of_unknown_queues


@click.command()
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
@finds_redis
def pause(queues: tuple[str, ...], **flags: Any) -> int:
    """Fetch no more jobs from these queues, on all hosts; running ones go on."""
    config = configuration(**flags)
    server = connected(config)
    chosen = [
        api.Queue(name, server) for name in queues
    ]  # raises on a pattern, before any is paused
    warn_of_unknown_queues(server, queues, config)
    for queue in chosen:
        changed = queue.pause()
        state = "is paused" if changed else "was paused already"
        echo(f"{shown_name(queue.name)} {state}; busy {queue.busy}, size {queue.size}")
    return 0


@click.command()
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
@finds_redis
def resume(queues: tuple[str, ...], **flags: Any) -> int:
    """Fetch from these queues again."""
    server = connected(configuration(**flags))
    for queue in [api.Queue(name, server) for name in queues]:
        changed = queue.resume()
        echo(f"{shown_name(queue.name)} {'goes on' if changed else 'was not paused'}")
    return 0
