"""``forkq shards``: how busy each shard is, and moving a queue from one to another."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from ..api.sharding.queue_move import QueueMove
from ..api.sharding.shard_load import Proposal, ShardLoad, measure, proposal
from ..config.config import Config
from ..config.shards import parts_of
from ..default_client import use
from ..errors import ConfigError, nearest, no_such_shard
from ..limits.patterns import is_pattern, matches_any
from ..runtime.exit_codes import INTERRUPTED
from ..screens.shards import sizes, sizes_in_words
from ..screens.table import Cell, Column, Empty, Phrase, Sheet
from ..servers import Server
from ..store.process_info import live_queues
from ..units import format_count, format_share, plural
from ..wire.printable import shown_name
from .options import ListFirst, complete_queues, configuration, finds_shards, json_option
from .output import as_json, echo, echo_objects, printed

_KINDS: Final = {
    "queued": "waiting",
    "suspects": "suspects",
    "scheduled": "scheduled",
    "retrying": "to be retried",
    "dead": "dead",
    "periodic": "periodic",
}
_INTERRUPTED: Final = (
    "forkq: interrupted: no job is lost, but up to a page of jobs may be between the shards, where "
    "no worker sees them; run the same command again, and the move goes on"
)
# Seconds between two lines that say how far a move is.
_EVERY: Final = 5.0


@click.group(cls=ListFirst)
def shards() -> None:
    """Shards: how busy they are, and moving a queue to another one (docs/sharding.md)."""


@shards.command("list")
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Measure for so long; below 10, shares of queues are those of all time.",
)
@json_option
@finds_shards
def list_(seconds: float, wants_json: bool, **flags: Any) -> int:
    """Show each shard, its load, and which queue would better be on another one.

    CPU (of one core) and commands are those of the whole server, which several shards may share.
    Exit code 6 if a shard is down.
    """
    config = configuration(**flags)
    if not config.shards:
        raise ConfigError("the configuration has no [[redis.shards]] (docs/sharding.md)")
    loads, down = measure(list(use(config).servers), seconds)
    if wants_json:
        echo_objects(map(SHARDS.as_object, loads))
    else:
        echo("\n".join([printed(SHARDS, loads), *_remarks(config, loads)]))
    for name, error in down.items():
        echo(f"forkq: shard {name}: {error}", err=True)
    return max((error.exit_code for error in down.values()), default=0)


def _remarks(config: Config, loads: Sequence[ShardLoad]) -> Iterator[str]:
    """What is to be done: queues that are not where they belong, and one to give to another."""
    servers = use(config).servers
    for queue in config.spread_queues:
        yield sizes_in_words(queue, sizes(queue, servers.parts_of(queue)))
    for load in loads:
        for queue in sorted({*load.strays, *load.moves}):
            there = parts_of(config.shards, queue)[0].name
            what = (
                f"{plural(load.strays[queue], 'job')} of" if queue in load.strays else "a page of"
            )
            name = shown_name(queue)
            yield f"{load.name} still has {what} {name}: forkq shards move {name} {there}"
    found = proposal(loads) if loads else None
    if found is not None:
        yield _proposed(found)


def _proposed(found: Proposal) -> str:
    source, target, queue = found.source, found.target, shown_name(found.queue)
    when = "of all time" if source.jobs_per_second is None else f"of {source.seconds:.0f} s"
    busy = (
        f"the server of {source.name} takes {format_share(source.cpu)} of a core, that of "
        f"{target.name} {format_share(target.cpu)}; {queue} has {format_share(found.share)} of its "
        f"jobs ({when})"
    )
    if found.is_all:
        remedy = "spread it over several ([spread] in forkq.toml), or split it into several queues"
        return f"{busy}: another shard would have the same load; {remedy}"
    command = f"forkq shards move {queue} {target.name}"
    return f"{busy}: give it to {target.name} in forkq.toml, then {command}"


def _number(value: float | None) -> Cell:
    return () if value is None else (Phrase(format_count(round(value))),)


def _slot(load: ShardLoad) -> Cell:
    return () if load.slot is None else (Phrase(str(load.slot)),)


SHARDS: Final[Sheet[ShardLoad]] = Sheet(
    "Shards",
    (
        Column("name", "Shard", lambda load: (Phrase(load.name),), whole=True),
        Column("slot", "Slot", _slot, "right"),
        Column("node", "Node", lambda load: (Phrase(load.node),) if load.node else ()),
        Column("waiting", "Waiting", lambda load: _number(load.waiting), "right"),
        Column("scheduled", "Scheduled", lambda load: _number(load.stats.scheduled), "right"),
        Column("retries", "Retries", lambda load: _number(load.stats.retry), "right"),
        Column("dead", "Dead", lambda load: _number(load.stats.dead), "right"),
        Column("jobs", "Jobs/s", lambda load: _number(load.jobs_per_second), "right"),
        Column("commands", "Commands/s", lambda load: _number(load.commands), "right"),
        Column("cpu", "CPU", lambda load: (Phrase(format_share(load.cpu)),), "right"),
    ),
    lambda load: load.name,
    Empty("No shard answers.", brief="no shard answers"),
    facts=lambda load: {
        "shard": load.name, "slot": load.slot, "node": load.node, "waiting": load.waiting,
        "scheduled": load.stats.scheduled, "retries": load.stats.retry, "dead": load.stats.dead,
        "jobs_per_second": load.jobs_per_second, "commands_per_second": load.commands,
        "cpu": load.cpu, "started": dict(load.jobs), "strays": dict(load.strays),
        "moves": list(load.moves),
    },
)  # fmt: skip


@shards.command()
@click.argument("queue", shell_complete=complete_queues)
@click.argument("shard")
@click.option("--no-wait", is_flag=True, help="Do not wait for jobs that still run there.")
@json_option
@finds_shards
def move(queue: str, shard: str, no_wait: bool, wants_json: bool, **flags: Any) -> int:
    """Bring to its shard what the other ones still have of a queue, while workers run.

    First forkq.toml gives the queue to SHARD, and the workers and the programs that push have it.
    Ctrl-C or TERM stops the move; the same command goes on with it. Exit code 0: nothing is left on
    the other shards; 1: jobs still run there (--no-wait).
    """
    config = configuration(**flags)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _check(config, queue, shard)
    servers = use(config).servers
    target = servers[shard]
    _warn_if_unserved(queue, target)
    moves = {
        server.name: QueueMove(queue, server, target, _MoveProgress(server.name))
        for server in servers
        if not server.has(queue)
    }
    code = 0
    try:
        for one in moves.values():
            one.run(wait=not no_wait)
    except KeyboardInterrupt:
        echo(_INTERRUPTED, err=True)
        code = INTERRUPTED
    _print(queue, shard, moves, wants_json=wants_json)
    if not wants_json and _is_unknown(config, queue):
        echo(f"forkq: {_unknown(config, queue)}", err=True)
    return code or int(any(one.running for one in moves.values()))


def _check(config: Config, queue: str, shard: str) -> None:
    """Raises ConfigError for a queue that the configuration does not have on that shard."""
    names = [one.name for one in config.shards]
    if shard not in names:
        raise no_such_shard(shard, names)
    if is_pattern(queue):
        raise ConfigError(f'"{queue}" is a pattern: name one queue after the other')
    here = [one.name for one in parts_of(config.shards, queue)]
    if shard not in here:
        place, name = config.source or "the configuration", shown_name(queue)
        unknown = f"; {_unknown(config, queue)}" if _is_unknown(config, queue) else ""
        raise ConfigError(
            f'{place} has the queue "{name}" {_elsewhere(here, shard)} (docs/sharding.md){unknown}'
        )


def _is_unknown(config: Config, queue: str) -> bool:
    """Whether the configuration does not name that queue anywhere."""
    listed = (name for shard in config.shards for name in shard.queues)
    return not matches_any(queue, [*config.queue_names, *config.spread_queues, *listed])


def _unknown(config: Config, queue: str) -> str:
    """The sentence that the configuration does not name a queue, with the nearest name."""
    near = nearest(queue, [*config.queue_names, *config.spread_queues])
    hint = f': the nearest is "{shown_name(near)}"' if near else ""
    return f'no shard and no capsule there names a queue "{shown_name(queue)}"{hint}'


def _elsewhere(here: Sequence[str], shard: str) -> str:
    """Where a queue is instead of on ``shard``, and what is to be done."""
    if len(here) > 1:
        return (
            f"spread over {', '.join(here)}, and not on {shard}: name one of these. It gets what "
            "other shards still have; parts do not move"
        )
    return (
        f"on the shard {here[0]}, and new jobs would go on being pushed there. Give it to {shard} "
        "first, then restart the workers, then deploy the programs that push, then move it"
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
    if move.unconfirmed:
        pages = plural(move.unconfirmed, "page")
        yield (
            f"no replica of {shard} has confirmed {pages} of it in time: a failover there now may "
            "lose these jobs"
        )
    if move.running:
        yield f"{_still_run(move.running)} on {source}: run this again later"
