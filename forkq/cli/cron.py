"""``forkq cron``: looking at periodic jobs, and steering them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from ..api import cron as periodic_jobs
from ..api.cron import Periodic
from ..api.cron_runs import Run
from ..default_client import use
from .options import configuration, finds_redis
from .output import as_json, length, moment, relative, show, tell

_NOTHING = (
    "no periodic job is known: an app publishes its own (@forkq.every, [[cron]]) at its start"
)
_UNLED = "no clock leads: nothing is enqueued until a tree runs"
_JSON = click.option("--json", "wants_json", is_flag=True, help="As JSON, for programs.")


@click.group()
def cron() -> None:
    """Look at periodic jobs, pause, resume and run them."""


@cron.command("list")
@_JSON
@finds_redis
def list_(wants_json: bool, **flags: Any) -> int:
    """List the periodic jobs with their next ticks, each in its own time zone."""
    use(configuration(**flags))
    found = periodic_jobs.list()
    if wants_json:
        click.echo(as_json([_facts(periodic) for periodic in found]))
        return 0
    rows = [
        (one.name, one.entry.schedule.expression, *_next(one), _latest(one), _job(one))
        for one in found
    ]
    show(rows, ("NAME", "SCHEDULE", "NEXT", "", "LAST", "JOB"), _NOTHING)
    _tell_of_the_lead(found)
    return 0


@cron.command("next")
@click.argument("name", required=False)
@click.option("-n", "count", type=click.IntRange(1, 1000), default=10, show_default=True)
@_JSON
@finds_redis
def next_(name: str | None, count: int, wants_json: bool, **flags: Any) -> int:
    """Show the next ticks of one periodic job, or of all that are awake."""
    use(configuration(**flags))
    chosen = periodic_jobs.list() if name is None else [periodic_jobs.get(name)]
    awake = [one for one in chosen if name is not None or not one.resting]
    coming = [[(tick, one) for tick in one.ticks(count)] for one in awake]
    ticks = list(heapq.merge(*coming, key=lambda pair: pair[0]))[:count]
    if wants_json:
        click.echo(as_json([{"name": one.name, "tick": tick} for tick, one in ticks]))
        return 0
    if name is not None and chosen[0].resting:
        tell(f"{name} is {_rest(chosen[0])}: none of these will be enqueued", err=True)
    rows = [(moment(tick, one.entry.schedule.tz), relative(tick), one.name) for tick, one in ticks]
    show(rows, ("TICK", "", "NAME"), "no tick is coming" if chosen else _NOTHING)
    _tell_of_the_lead(chosen)
    return 0


@cron.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@finds_redis
def pause(names: tuple[str, ...], **flags: Any) -> int:
    """Let the ticks of periodic jobs pass by until they are resumed."""
    use(configuration(**flags))
    for name in names:
        periodic_jobs.get(name)  # a misspelt one: nothing is paused
    for name in names:
        changed = periodic_jobs.pause(name)
        tell(f"{name} is paused" if changed else f"{name} was paused already")
    return 0


@cron.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@finds_redis
def resume(names: tuple[str, ...], **flags: Any) -> int:
    """Let periodic jobs go on with their next ticks; nothing is made up for."""
    use(configuration(**flags))
    for name in names:
        periodic_jobs.get(name)
    for name in names:
        changed = periodic_jobs.resume(name)
        tell(f"{name} {_resumed(periodic_jobs.get(name), changed)}")
    return 0


@cron.command()
@click.argument("name")
@finds_redis
def run(name: str, **flags: Any) -> int:
    """Push the job of a periodic job now, and print its jid. The schedule stays as it is."""
    use(configuration(**flags))
    jid = periodic_jobs.run(name)
    tell(jid or "vetoed by a client middleware")
    return 0 if jid else 1


@cron.command()
@click.argument("name")
@click.option("-n", "count", type=click.IntRange(1, 100), default=20, show_default=True)
@_JSON
@finds_redis
def history(name: str, count: int, wants_json: bool, **flags: Any) -> int:
    """Show what became of the last ticks of a periodic job, the latest first."""
    use(configuration(**flags))
    tz = periodic_jobs.get(name).entry.schedule.tz
    runs = periodic_jobs.history(name, count)
    if wants_json:
        click.echo(as_json([asdict(one) for one in runs]))
        return 0
    rows = [
        (
            moment(one.tick or one.at, tz),
            relative(one.tick or one.at),
            _became(one),
            "-" if one.elapsed is None else length(one.elapsed),
            one.jid or "-",
        )
        for one in runs
    ]
    show(rows, ("TICK", "", "WHAT", "TOOK", "JID"), f"{name} has not run yet")
    return 0


@cron.command()
@click.argument("name")
@finds_redis
def remove(name: str, **flags: Any) -> int:
    """Remove a periodic job that was added at run time, or was left by an app that does not run."""
    use(configuration(**flags))
    periodic_jobs.remove(name)
    tell(f"{name} is removed")
    return 0


def _next(periodic: Periodic) -> tuple[str, str]:
    """The next tick in the entry's own zone, and as seen from now; or why there is none."""
    if periodic.resting:
        return _rest(periodic), ""
    tick = next(iter(periodic.ticks(1)), None)
    if tick is None:
        return "never", ""
    return _brief(tick, periodic), relative(tick)


def _brief(tick: int, periodic: Periodic) -> str:
    """A tick without its seconds, where an expression has none."""
    shown = moment(tick, periodic.entry.schedule.tz)
    day, clock, zone = shown.split(" ", 2)
    return f"{day} {clock.removesuffix(':00')} {zone}"


def _rest(periodic: Periodic) -> str:
    if periodic.paused:
        return "paused"
    return "asleep" if periodic.entry.enabled else "disabled"


def _latest(periodic: Periodic) -> str:
    """What was last heard of it, and how long ago."""
    run = periodic.latest
    return "-" if run is None else f"{run.event} {relative(run.ended_at or run.at)}"


def _job(periodic: Periodic) -> str:
    name: str = periodic.entry.job["class"]
    return "-" if name == periodic.name else name


def _resumed(periodic: Periodic, changed: bool) -> str:
    """How it stands after ``resume``."""
    if not periodic.resting:
        state = "goes on" if changed else "was not paused"
        return f"{state}; next: {' '.join(_next(periodic))}"
    state = "is no longer paused" if changed else "was not paused"
    if not periodic.entry.enabled:
        return f"{state}, but it is disabled where it is defined: nothing is enqueued"
    return f"{state}, but it is asleep: nobody runs the app that defines it"


def _tell_of_the_lead(found: Sequence[Periodic]) -> None:
    if found and not periodic_jobs.led():
        tell(_UNLED)


def _became(run: Run) -> str:
    what = {"enqueued": "enqueued, not ended"}.get(run.event, run.event)
    if run.event == "missed" and run.count is not None and run.count > 1:
        what = f"missed {run.count} ticks"
    elif run.event == "skipped":
        what = "skipped, still running"
    by_hand = ", by hand" if run.by_hand and run.event != "run by hand" else ""
    why = f": {run.why}" if run.event == "missed" and run.why else ""
    return f"{what}{by_hand}{why}"


def _facts(periodic: Periodic) -> dict[str, Any]:
    """For programs; without the arguments, which are other people's data."""
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
