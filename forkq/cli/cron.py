"""``forkq cron``: periodic jobs: shown, paused, resumed, run."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import click

from ..api import Server
from ..api import cron as periodic_jobs
from ..api.cron import Periodic
from ..screens.periodic import PERIODIC, RUNS, RunOfTick, next_text, of_jobs, resting_state
from ..screens.texts import timestamp
from ..units import format_moment
from .options import ListFirst, WholeNumber, configuration, connected, finds_redis, json_option
from .output import echo, echo_objects, echo_table, print_values

_NO_LEADER = "no clock leads: nothing is enqueued until a tree runs"


@click.group(cls=ListFirst)
def cron() -> None:
    """Look at periodic jobs, pause, resume and run them."""


@cron.command("list")
@json_option
@finds_redis
def list_(wants_json: bool, **flags: Any) -> int:
    """List the periodic jobs with their next ticks, each in its own time zone."""
    server = connected(configuration(**flags))
    found = periodic_jobs.list(server)
    print_values(PERIODIC, of_jobs(found), wants_json=wants_json)
    if wants_json:
        return 0
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
        echo_objects({"name": one.name, "tick": tick} for tick, one in ticks)
        return 0
    if name is not None and chosen[0].resting:
        echo(f"{name} is {resting_state(chosen[0])}: none of these will be enqueued", err=True)
    rows = [
        (timestamp(tick, one.entry.schedule.tz), format_moment(tick), one.name)
        for tick, one in ticks
    ]
    none = "no tick is coming" if chosen else PERIODIC.empty.brief
    echo_table(rows, ("TICK", "", "NAME"), none, whole=("TICK", "NAME"))
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
    lines = [RunOfTick(run, tz) for run in runs]
    print_values(RUNS, lines, wants_json=wants_json, if_empty=f"{name} has not run yet")
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


def _resumed(periodic: Periodic, changed: bool) -> str:
    """The state after ``resume``, in words."""
    if not periodic.resting:
        state = "goes on" if changed else "was not paused"
        return f"{state}; next: {' '.join(next_text(periodic))}"
    state = "is no longer paused" if changed else "was not paused"
    if not periodic.entry.enabled:
        return f"{state}, but it is disabled where it is defined: nothing is enqueued"
    return f"{state}, but it is asleep: no running tree has the app that defines it"


def _warn_without_leader(server: Server, found: Sequence[Periodic]) -> None:
    if found and not periodic_jobs.has_leader(server):
        echo(_NO_LEADER)
