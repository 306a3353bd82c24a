"""``forkq stats``: the counts of the cluster and its queues; those of this host's tree as of now.

Children add their counts to those in Redis with each heartbeat. What a child of the tree that runs
here has counted since, its master knows. So ``forkq stats`` shows what ``forkq status`` shows, and
no job and no heartbeat costs Redis more.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any, Final

import click

from .. import api
from ..config.config import Config
from ..errors import ForkqError
from ..limits.patterns import is_pattern
from ..screens import queues as screen
from ..store.damage import about
from ..values import replace
from .options import WholeNumber, configuration, connected, finds_redis, json_option
from .output import as_json, echo, facts, printed, table

_INCLUDED: Final = (
    "processed: failed runs included, as in `forkq status`; not what a killed process ran after\n"
    "its last heartbeat\n"
    "ran on two hosts: taken over from a host that was cut off and went on; crashes do not count"
)
_OF_HEARTBEATS: Final = "processed, failed, busy and processes: as of the last heartbeats"
_OF_NOW: Final = (
    "processed, failed and busy: as of now in the tree of this host, else as of the last heartbeats"
)

_LOOKS = 5
_COUNTS = ("processed", "failed")


@click.command()
@click.option("--days", type=WholeNumber(1, 1825), metavar="N", help="And the last N days, UTC.")
@json_option
@finds_redis
def stats(days: int | None, wants_json: bool, **flags: Any) -> int:
    """Show counts, queue lengths and how long their next jobs have waited."""
    config = configuration(**flags)
    server = connected(config)
    reported = api.stats(server)
    local = with_local_counts(server, reported, config)
    found = local or reported
    named = [name for name in config.queue_names if not is_pattern(name)]
    damaged = api.damaged_keys(named, server)
    history = api.history(days, server) if days else []
    if wants_json:
        past = [{**asdict(day), "date": day.date.isoformat()} for day in history]
        known = {**asdict(found), "enqueued": found.enqueued, "damaged": damaged}
        click.echo(as_json({**known, "history": past} if days else known))
        return 0
    note = _OF_HEARTBEATS if local is None else _OF_NOW
    echo(
        "\n\n".join(
            [
                f"{_counts(found)}\n{_INCLUDED}\n{note}",
                printed(screen.WAITING, screen.of_figures(found.queues)),
                *([_days(history)] if days else []),
            ]
        )
    )
    if damaged:
        echo(f"\n{_damage(damaged)}")
    return 0


def _counts(found: api.Stats) -> str:
    counts = {
        "processed": found.processed,
        "failed": found.failed,
        "ran on two hosts": found.ran_twice,
        **found.ended,
        "busy": found.busy,
        "enqueued": found.enqueued,
        "scheduled": found.scheduled,
        "retry": found.retry,
        "dead": found.dead,
        "processes": found.processes,
    }
    return facts((name, f"{count:,}") for name, count in counts.items())


def _damage(keys: list[str]) -> str:
    rows = [tuple(about(key).values()) for key in keys]
    return table(("DAMAGED KEY: IT WORKS NO MORE", "WHAT BELONGS THERE", "REMEDY"), rows)


def _days(history: list[api.Day]) -> str:
    rows = [(day.date.isoformat(), f"{day.processed:,}", f"{day.failed:,}") for day in history]
    return table(("DAY (UTC)", "PROCESSED", "FAILED"), rows)


def with_local_counts(server: api.Server, found: api.Stats, config: Config) -> api.Stats | None:
    """``found`` with what the children of this host's tree have counted since their last
    heartbeats; None if no tree runs here, or it may not be asked."""
    children = _children(config) if hasattr(os, "fork") else []
    for _ in range(_LOOKS if children else 0):
        before, after, counts, busy = _look(server, children)
        if before == after:  # else a child has flushed in between: look again
            return _added(found, children, after, counts, busy)
    return None


def _children(config: Config) -> list[dict[str, Any]]:
    """What the master of this host says of its children, as of now."""
    from ..master.pidfile import running_master  # noqa: PLC0415 - there is none on Windows
    from .tree import fresh_status  # noqa: PLC0415

    try:
        master = running_master(config.pidfile)
        status = None if master is None else fresh_status(config, master)
    except (ForkqError, OSError):
        return []
    children = [] if status is None else status["children"]
    return [child for child in children if child["concurrency"] and "identity" in child]


def _look(
    server: api.Server, children: list[dict[str, Any]]
) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """Looks at the counters. Returns what each child has flushed before and after the look; the
    counters; and how many jobs the record of each child says that it runs."""
    names = [child["identity"] for child in children]
    keys = server.keys
    flushed = [("HMGET", keys.flushed(name), *_COUNTS) for name in names]
    replies = server.ask(
        *flushed,
        *(("GET", keys.stat(name)) for name in _COUNTS),
        *flushed,
        *(("HGET", keys.process(name), "busy") for name in names),
    )
    size, rest = len(names), replies[len(names) :]
    return replies[:size], rest[2 : 2 + size], rest[:2], rest[2 + size :]


def _added(
    found: api.Stats,
    children: list[dict[str, Any]],
    flushed: list[Any],
    counts: list[Any],
    busy: list[Any],
) -> api.Stats:
    """``found`` with the counts that the children have not flushed yet. A child without a note of
    its flushes uses another Redis, or has not begun."""
    more = [0, 0, 0]
    for child, (processed, failed), running in zip(children, flushed, busy, strict=True):
        if processed is not None:
            more[0] += max(0, child["processed"] - int(processed))
            more[1] += max(0, child["failed"] - int(failed))
            more[2] += child["busy"] - int(running or 0)
    return replace(
        found,
        processed=int(counts[0] or 0) + more[0],
        failed=int(counts[1] or 0) + more[1],
        busy=max(0, found.busy + more[2]),
    )
