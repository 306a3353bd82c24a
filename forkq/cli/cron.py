"""``forkq cron``: periodic jobs: shown, paused, resumed, run."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from ..api import Server
from ..api import cron as periodic_jobs
from ..api.cron import Periodic
from ..api.cron_runs import Run
from ..units import format_duration, format_moment
from .options import WholeNumber, configuration, connected, finds_redis, json_option
from .output import as_json, echo, echo_table, timestamp

_NO_ENTRIES = (
    "no periodic job is known: an app publishes its own (@forkq.every, [[cron]]) at its start"
)
_NO_LEADER = "no clock leads: nothing is enqueued until a tree runs"


@click.group()
def cron() -> None:
    """Look at periodic jobs, pause, resume and run them."""


@cron.command("list")
@json_option
@finds_redis
def list_(wants_json: bool, **flags: Any) -> int:
    """List the periodic jobs with their next ticks, each in its own time zone."""
    server = connected(configuration(**flags))
    found = periodic_jobs.list(server)
    if wants_json:
        click.echo(as_json([_facts(periodic) for periodic in found]))
        return 0
    rows = [
        (one.name, one.entry.schedule.expression, *_next(one), _latest(one), _job(one))
        for one in found
    ]
    echo_table(rows, ("NAME", "SCHEDULE", "NEXT", "", "LAST", "JOB"), _NO_ENTRIES)
    _warn_without_leader(server, found)
    return 0


@cron.command("next")
@click.argument("name", required=False)
@click.option("-n", "count", metavar="N", type=WholeNumber(1, 1000), default=10, show_default=True)
@json_option
@finds_redis
def next_(name: str | None, count: int, wants_json: bool, **flags: Any) -> int:
    """Show the next ticks of one periodic job, or of all that are awake."""
    server = connected(configuration(**flags))
    chosen = periodic_jobs.list(server) if name is None else [periodic_jobs.get(name, server)]
    awake = [one for one in chosen if name is not None or not one.resting]
    coming = [[(tick, one) for tick in one.ticks(count)] for one in awake]
    ticks = list(heapq.merge(*coming, key=lambda pair: pair[0]))[:count]
    if wants_json:
        click.echo(as_json([{"name": one.name, "tick": tick} for tick, one in ticks]))
        return 0
    if name is not None and chosen[0].resting:
        echo(f"{name} is {_resting_state(chosen[0])}: none of these will be enqueued", err=True)
    rows = [
        (timestamp(tick, one.entry.schedule.tz), format_moment(tick), one.name)
        for tick, one in ticks
    ]
    echo_table(rows, ("TICK", "", "NAME"), "no tick is coming" if chosen else _NO_ENTRIES)
    _warn_without_leader(server, chosen)
    return 0


@cron.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@finds_redis
def pause(names: tuple[str, ...], **flags: Any) -> int:
    """Let the ticks of periodic jobs pass by until they are resumed."""
    server = connected(configuration(**flags))
    for name in names:
        periodic_jobs.get(name, server)  # raises on a misspelt name, before any is paused
    for name in names:
        changed = periodic_jobs.pause(name, server)
        echo(f"{name} is paused" if changed else f"{name} was paused already")
    return 0


@cron.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@finds_redis
def resume(names: tuple[str, ...], **flags: Any) -> int:
    """Let periodic jobs go on with their next ticks; paused ticks are not enqueued late."""
    server = connected(configuration(**flags))
    for name in names:
        periodic_jobs.get(name, server)
    for name in names:
        changed = periodic_jobs.resume(name, server)
        echo(f"{name} {_resumed(periodic_jobs.get(name, server), changed)}")
    return 0


@cron.command()
@click.argument("name")
@finds_redis
def run(name: str, **flags: Any) -> int:
    """Push the job of a periodic job now, and print its jid. The schedule stays as it is."""
    server = connected(configuration(**flags))
    jid = periodic_jobs.run(name, server)
    echo(jid or "vetoed by a client middleware")
    return 0 if jid else 1


@cron.command()
@click.argument("name")
@click.option("-n", "count", metavar="N", type=WholeNumber(1, 100), default=20, show_default=True)
@json_option
@finds_redis
def history(name: str, count: int, wants_json: bool, **flags: Any) -> int:
    """Show what became of the last ticks of a periodic job, the latest first."""
    server = connected(configuration(**flags))
    tz = periodic_jobs.get(name, server).entry.schedule.tz
    runs = periodic_jobs.history(name, count, server)
    if wants_json:
        click.echo(as_json([asdict(one) for one in runs]))
        return 0
    rows = [_history_row(one, tz) for one in runs]
    echo_table(rows, ("TICK", "", "WHAT", "TOOK", "JID"), f"{name} has not run yet")
    return 0


@cron.command()
@click.argument("name")
@finds_redis
def remove(name: str, **flags: Any) -> int:
    """Remove a periodic job that was added at run time, or was left by an app that does not run."""
    server = connected(configuration(**flags))
    periodic_jobs.remove(name, server)
    echo(f"{name} is removed")
    return 0


def _next(periodic: Periodic) -> tuple[str, str]:
    """The next tick in the entry's own zone, and as seen from now; or why there is none."""
    if periodic.resting:
        return _resting_state(periodic), ""
    tick = next(iter(periodic.ticks(1)), None)
    if tick is None:
        return "never", ""
    return _short_timestamp(tick, periodic), format_moment(tick)


def _short_timestamp(tick: int, periodic: Periodic) -> str:
    """A tick without its seconds, where an expression has none."""
    shown = timestamp(tick, periodic.entry.schedule.tz)
    day, clock, zone = shown.split(" ", 2)
    return f"{day} {clock.removesuffix(':00')} {zone}"


def _resting_state(periodic: Periodic) -> str:
    if periodic.paused:
        return "paused"
    return "asleep" if periodic.entry.enabled else "disabled"


def _latest(periodic: Periodic) -> str:
    """The latest event of its history, and how long ago that was."""
    run = periodic.latest
    return "-" if run is None else f"{run.event} {format_moment(run.ended_at or run.at)}"


def _job(periodic: Periodic) -> str:
    name: str = periodic.entry.job["class"]
    return "-" if name == periodic.name else name


def _resumed(periodic: Periodic, changed: bool) -> str:
    """The state after ``resume``, in words."""
    if not periodic.resting:
        state = "goes on" if changed else "was not paused"
        return f"{state}; next: {' '.join(_next(periodic))}"
    state = "is no longer paused" if changed else "was not paused"
    if not periodic.entry.enabled:
        return f"{state}, but it is disabled where it is defined: nothing is enqueued"
    return f"{state}, but it is asleep: no running tree has the app that defines it"


def _warn_without_leader(server: Server, found: Sequence[Periodic]) -> None:
    if found and not periodic_jobs.has_leader(server):
        echo(_NO_LEADER)


def _history_row(run: Run, tz: str) -> tuple[str, ...]:
    at = run.tick or run.at
    took = "-" if run.elapsed is None else format_duration(run.elapsed)
    return timestamp(at, tz), format_moment(at), _outcome(run), took, run.jid or "-"


def _outcome(run: Run) -> str:
    what = {"enqueued": "enqueued, not ended"}.get(run.event, run.event)
    if run.event == "missed" and run.count is not None and run.count > 1:
        what = f"missed {run.count} ticks"
    elif run.event == "skipped":
        what = "skipped, still running"
    by_hand = ", by hand" if run.by_hand and run.event != "run by hand" else ""
    why = f": {run.why}" if run.event == "missed" and run.why else ""
    return f"{what}{by_hand}{why}"


def _facts(periodic: Periodic) -> dict[str, Any]:
    """For programs; without the arguments, which may be secrets."""
    entry = periodic.entry
    return {
        "name": entry.name,
        "cron": entry.schedule.expression,
        "tz": entry.schedule.tz,
        "job": entry.job["class"],
        "queue": entry.job.get("queue"),
        "overlap": entry.overlap,
        "missed": entry.missed,
        "jitter": entry.jitter,
        "enabled": entry.enabled,
        "paused": periodic.paused,
        "asleep": periodic.asleep,
        "origin": entry.origin,
        "last": None if periodic.latest is None else asdict(periodic.latest),
        "next": None if periodic.resting else next(iter(periodic.ticks(1)), None),
    }
