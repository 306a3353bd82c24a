"""``forkq stats``: the counts of the cluster and its queues."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import click

from .. import api
from ..limits.patterns import is_pattern
from ..store.damage import about
from ..units import format_duration
from .local_counts import with_local_counts
from .options import WholeNumber, configuration, connected, finds_redis, json_option
from .output import as_json, echo, facts, table

_INCLUDED: Final = (
    "processed: failed runs included, as in `forkq status`\n"
    "ran twice: jobs that were taken over while they ran, from a host that was cut off"
)
_OF_HEARTBEATS: Final = "processed, failed, busy and processes: as of the last heartbeats"
_OF_NOW: Final = (
    "processed, failed and busy: as of now in the tree of this host, else as of the last heartbeats"
)


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
                _queues(found),
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
        "ran twice": found.ran_twice,
        "busy": found.busy,
        "enqueued": found.enqueued,
        "scheduled": found.scheduled,
        "retry": found.retry,
        "dead": found.dead,
        "processes": found.processes,
    }
    return facts((name, f"{count:,}") for name, count in counts.items())


def _queues(found: api.Stats) -> str:
    if not found.queues:
        return "no job has been pushed to any queue"
    rows = [
        (queue.name, f"{queue.size:,}", format_duration(queue.latency) if queue.size else "-")
        for queue in found.queues
    ]
    return table(("QUEUE", "SIZE", "LATENCY"), rows)


def _damage(keys: list[str]) -> str:
    rows = [tuple(about(key).values()) for key in keys]
    return table(("DAMAGED KEY: IT WORKS NO MORE", "WHAT BELONGS THERE", "REMEDY"), rows)


def _days(history: list[api.Day]) -> str:
    rows = [(day.date.isoformat(), f"{day.processed:,}", f"{day.failed:,}") for day in history]
    return table(("DAY (UTC)", "PROCESSED", "FAILED"), rows)
