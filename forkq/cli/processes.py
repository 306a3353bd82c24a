"""``forkq processes``: those that run jobs, on all hosts, and the orders that they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, Final

import click

from ..api import Process, ProcessSet, WorkSet
from ..api.processes import untaken
from ..doctor.finding import listed
from ..screens.processes import PROCESSES, ProcessLine, blocks_the_loop, of_processes
from ..units import format_duration, format_moment, plural
from ..wire.printable import printable, shown_name
from .bulk import confirmed
from .options import ListFirst, configuration, connected, finds_redis, json_option
from .output import as_json, cell_text, echo, facts, print_values

# Seconds: three heartbeats of forkq and of Sidekiq, and less than an order lives.
_ANSWER_LIMIT: Final = 30.0
_POLL: Final = 0.1
_NO_ANSWER: Final = "is it stopped, or cut off from Redis? The order is soon forgotten"
_names = click.argument("names", nargs=-1, required=True, metavar="PROCESS...")


@click.group(cls=ListFirst)
def processes() -> None:
    """Processes that run jobs, on all hosts.

    PROCESS is an identity (--json shows it), HOST:PID, or HOST for all of a host. They take an
    order with their next heartbeat, within some seconds; the command waits for that. The tree of
    this host: `forkq status`.
    """


@processes.command("list")
@json_option
@finds_redis
def list_(wants_json: bool, **flags: Any) -> int:
    """List the processes, as of their last heartbeats."""
    server = connected(configuration(**flags))
    print_values(PROCESSES, of_processes(server, ProcessSet(server)), wants_json=wants_json)
    return 0


@processes.command()
@click.argument("name", metavar="PROCESS")
@json_option
@finds_redis
def show(name: str, wants_json: bool, **flags: Any) -> int:
    """Show processes, and the jobs that they run."""
    server = connected(configuration(**flags))
    for line in of_processes(server, _chosen(ProcessSet(server), [name])):
        process = line.process
        jobs = WorkSet(server).of_process(process.identity)
        if wants_json:
            known = PROCESSES.as_object(line)
            click.echo(as_json({**known, "jobs": [asdict(job) for job in jobs]}))
            continue
        runs = (f"{job.jid} {job.job}, for {format_duration(job.elapsed)}" for job in jobs)
        echo(facts([*_facts(line), *(("runs", shown_name(run)) for run in runs)]))
    return 0


@processes.command()
@_names
@finds_redis
def quiet(names: tuple[str, ...], **flags: Any) -> int:
    """Fetch no more jobs; running ones go on. Only a restart of the tree ends that."""
    server = connected(configuration(**flags))
    return _order(ProcessSet(server), names, ProcessSet.quiet, "told to go quiet")


@processes.command()
@_names
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@finds_redis
def stop(names: tuple[str, ...], yes: bool, **flags: Any) -> int:
    """Stop as at TERM; the master starts a new child in the place of each."""
    server = connected(configuration(**flags))
    if not (yes or confirmed("stop", f"Stop {_counted(len(_chosen(ProcessSet(server), names)))}?")):
        return 1
    return _order(ProcessSet(server), names, ProcessSet.stop, "told to stop")


@processes.command()
@_names
@finds_redis
def stacks(names: tuple[str, ...], **flags: Any) -> int:
    """Write the stack of each thread into the log of the process."""
    server = connected(configuration(**flags))
    return _order(ProcessSet(server), names, ProcessSet.dump_stacks, "told to log their stacks")


def _order(living: ProcessSet, names: Iterable[str], order: Callable[..., int], done: str) -> int:
    """Gives an order, and waits until each process has taken it, or for three heartbeats."""
    chosen = {process.identity: process for process in _chosen(living, names)}
    sent = order(living, *chosen)
    echo(f"{_counted(sent)} {done}, with the next heartbeat")
    deadline = time.monotonic() + _ANSWER_LIMIT
    while (left := untaken(list(chosen), living.server)) and time.monotonic() < deadline:
        time.sleep(_POLL)
    if left:
        silent = listed([shown_name(_names_of(chosen[name])[1]) for name in left])
        echo(f"forkq: no answer from {silent} in {_ANSWER_LIMIT:g} s: {_NO_ANSWER}", err=True)
    elif sent:
        echo("the order is taken")
    return 0 if sent and not left else 1


def _counted(count: int) -> str:
    return plural(count, "process", "processes")


def _chosen(living: ProcessSet, names: Iterable[str]) -> list[Process]:
    """The processes of these names. Raises ClickException for a name that is none's."""
    known = list(living)
    chosen: dict[str, Process] = {}
    for name in names:
        found = [process for process in known if name in _names_of(process)]
        if not found:
            raise click.ClickException(
                f"no living process is called {shown_name(name)}; write HOST, HOST:PID or the "
                "identity, such as web-1:4711; `forkq processes` lists them"
            )
        chosen |= {process.identity: process for process in found}
    return list(chosen.values())


def _names_of(process: Process) -> tuple[str, str, str]:
    return process.identity, f"{process.hostname}:{process.pid}", process.hostname


def _facts(line: ProcessLine) -> Iterator[tuple[str, str]]:
    process = line.process
    yield "identity", shown_name(process.identity)
    for column in PROCESSES.columns_on("cli")[2:]:
        yield column.heading.lower(), shown_name(cell_text(column.cell(line)))
    yield "started", format_moment(process.started_at)
    yield "round trip", format_duration(process.rtt_us / 1e6)
    yield "version", shown_name(process.version)
    if process.blocking is not None:
        where = f"in {printable(process.blocking.place)}"
        yield "blocked", shown_name(f"{blocks_the_loop(process.blocking)}, {where}")
    if process.refused:
        yield "refused", printable(process.refused)
