"""``forkq shards``: moving a queue from one to another."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import click

from ..api.sharding.queue_move import QueueMove
from ..config.config import Config
from ..config.shards import shard_of
from ..default_client import use
from ..errors import ConfigError, no_such_shard
from ..limits.patterns import is_pattern, matches_any
from ..runtime.exit_codes import INTERRUPTED
from ..servers import Server
from ..store.process_info import live_queues
from ..units import plural
from ..wire.printable import shown_name
from .options import VerbAnywhere, complete_queues, configuration, finds_shards, json_option
from .output import as_json, echo

_KINDS: Final = {
    "queued": "waiting",
    "suspects": "suspects",
    "scheduled": "scheduled",
    "retrying": "to be retried",
    "dead": "dead",
    "periodic": "periodic",
}
# Seconds between two lines that say how far a move is.
_EVERY: Final = 5.0


@click.group(cls=VerbAnywhere)
def shards() -> None:
    """Shards: moving a queue to another one (docs/sharding.md)."""


@shards.command()
@click.argument("queue", shell_complete=complete_queues)
@click.argument("shard")
@click.option("--no-wait", is_flag=True, help="Do not wait for jobs that still run there.")
@json_option
@finds_shards
def move(queue: str, shard: str, no_wait: bool, wants_json: bool, **flags: Any) -> int:
    """Bring to its shard what the other ones still have of a queue, while workers run.

    First forkq.toml gives the queue to SHARD, and the workers and the programs that push have it.
    Ctrl-C stops the move; the same command goes on with it. Exit code 0: nothing is left on the
    other shards; 1: jobs still run there (--no-wait).
    """
    config = configuration(**flags)
    _check(config, queue, shard)
    servers = use(config).servers
    target = servers[shard]
    _warn_if_unserved(queue, target)
    moves = {
        server.name: QueueMove(queue, server, target, _MoveProgress(server.name))
        for server in servers
        if server is not target
    }
    code = 0
    try:
        for one in moves.values():
            one.run(wait=not no_wait)
    except KeyboardInterrupt:
        echo("forkq: interrupted; no job is lost: run it again, and the move goes on", err=True)
        code = INTERRUPTED
    _print(queue, shard, moves, wants_json=wants_json)
    return code or int(any(one.running for one in moves.values()))


def _check(config: Config, queue: str, shard: str) -> None:
    """Raises ConfigError for a queue that the configuration does not have on that shard."""
    names = [one.name for one in config.shards]
    if shard not in names:
        raise no_such_shard(shard, names)
    if is_pattern(queue):
        raise ConfigError(f'"{queue}" is a pattern: name one queue after the other')
    here = shard_of(config.shards, queue).name
    if here != shard:
        place = config.source or "the configuration"
        raise ConfigError(
            f'{place} has the queue "{queue}" on the shard {here}, and new jobs would go on being '
            f"pushed there. Give it to {shard} first, then restart the workers, then deploy the "
            "programs that push, then move it (docs/sharding.md)"
        )


def _warn_if_unserved(queue: str, target: Server) -> None:
    with target.connection() as connection:
        served = live_queues(connection, target.keys)
    if not matches_any(queue, served):
        echo(
            f"forkq: no living process serves {shown_name(queue)} on the shard {target.name} yet: "
            "its jobs wait there until one does",
            err=True,
        )


class _MoveProgress:
    """Says on a terminal, now and then, how far the move from one shard is."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._due = time.monotonic() + _EVERY

    def __call__(self, move: QueueMove) -> None:
        if not sys.stderr.isatty() or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _EVERY
        waits = f"; {_still_run(move.running)} there" if move.running else ""
        echo(f"{move.counts.total():,} moved from {self._source}{waits}", err=True)


def _still_run(count: int) -> str:
    return f"{plural(count, 'job')} still run{'s' if count == 1 else ''}"


def _print(queue: str, shard: str, moves: Mapping[str, QueueMove], *, wants_json: bool) -> None:
    if wants_json:
        counts = {name: {kind: one.counts[kind] for kind in _KINDS} for name, one in moves.items()}
        running = {name: one.running for name, one in moves.items()}
        echo(as_json({"queue": queue, "shard": shard, "moved": counts, "running": running}))
        return
    lines = [line for name, one in moves.items() for line in _lines(queue, shard, name, one)]
    echo("\n".join(lines) or f"no other shard has anything of {shown_name(queue)}")


def _lines(queue: str, shard: str, source: str, move: QueueMove) -> Iterator[str]:
    found = {word: move.counts[kind] for kind, word in _KINDS.items() if move.counts[kind]}
    if found:
        parts = ", ".join(f"{count:,} {word}" for word, count in found.items())
        yield f"{shown_name(queue)} moved from {source} to {shard}: {parts}"
    if move.running:
        yield f"{_still_run(move.running)} on {source}: run this again later"
