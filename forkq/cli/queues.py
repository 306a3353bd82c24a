"""``forkq queues``, ``pause``, ``resume`` and ``limits``: how long queues are, why they do not
drain, and their rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import click

from .. import api
from ..api import QueueReport
from ..config.config import Config
from ..errors import nearest
from ..limits.overrides import Fields, limit_to, process_limit_to, rate_to
from ..limits.patterns import matches_any
from ..limits.rules import HIGHEST_LIMIT
from ..screens import queues as screen
from ..screens.queue_acts import operator
from ..units import format_duration
from ..wire.printable import shown_name
from .bulk import How, cleared, clears
from .options import (
    ListFirst,
    WholeNumber,
    complete_queues,
    configuration,
    connected,
    finds_redis,
    json_option,
    queue_named,
)
from .output import as_json, echo, facts, print_values

_COUNT: Final = WholeNumber(0, HIGHEST_LIMIT)


_queue_argument = click.argument("queue", shell_complete=complete_queues)


@click.group(cls=ListFirst)
def queues() -> None:
    """Queues: how long they are, who serves them, and why they do not drain.

    The jobs in them: `forkq jobs`. To hold them: `forkq pause`, `forkq limits`.
    """


@queues.command("list")
@json_option
@finds_redis
def list_(wants_json: bool, **flags: Any) -> int:
    """List the queues."""
    server = connected(configuration(**flags))
    lines = screen.of_reports(api.queue_reports(server=server))
    print_values(screen.QUEUES, lines, wants_json=wants_json)
    return 0


@queues.command()
@_queue_argument
@json_option
@finds_redis
def show(queue: str, wants_json: bool, **flags: Any) -> int:
    """Show all that tells why a queue drains, or does not."""
    config = configuration(**flags)
    server = connected(config)
    warn_of_unknown_queues(server, [queue], config)
    report = queue_named(queue, server).report()
    [line] = screen.of_reports([report])
    known = screen.QUEUES.as_object(line)
    echo(as_json(known) if wants_json else facts(_facts(report)))
    return 0


@queues.command()
@_queue_argument
@clears
def clear(
    queue: str, dry_run: bool, yes: bool, no_undo: bool, wants_json: bool, **flags: Any
) -> int:
    """Delete every queued job of a queue. Up to 100,000 can be put back for a while.

    Jobs in progress go on.
    """
    config = configuration(**flags)
    server = connected(config)
    warn_of_unknown_queues(server, [queue], config)
    how = How(dry_run, yes, wants_json=wants_json)
    name, found = f'"{shown_name(queue)}"', queue_named(queue, server)
    return cleared(f"{name} job", found, how, undo=not no_undo, empty=f"the queue {name} is empty")


def _facts(report: QueueReport) -> Iterator[tuple[str, str]]:
    state = report.state
    yield "queue", shown_name(state.name)
    yield "size", f"{state.size:,}"
    if state.suspects:
        yield "suspects", f"{state.suspects:,}"
    yield "busy", f"{state.busy:,}"
    yield "latency", format_duration(report.latency)
    for name, part in report.parts.items():
        counts = f"size {part.state.size:,}, busy {part.state.busy:,}"
        yield "part", f"{name}: {counts}, latency {format_duration(part.latency)}"
    for hold in report.holds:
        yield "why it waits", shown_name(hold.text)
    yield "threads", f"{report.threads:,}"
    if not report.served_by:
        yield "served by", "no living process"
    for process in report.served_by:
        threads = f"{process.busy} of {process.concurrency} busy"
        yield "served by", shown_name(f"{process.hostname}:{process.pid}, {threads}")
    for job in report.in_flight:
        time = f"{'' if job.thread else 'at most '}{format_duration(job.elapsed)}"
        yield "runs", shown_name(f"{job.jid} {job.job}, for {time}")


@click.command()
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
@finds_redis
def pause(queues: tuple[str, ...], **flags: Any) -> int:
    """Fetch no more jobs from these queues, on all hosts; running ones go on."""
    config = configuration(**flags)
    server = connected(config)
    # It raises on a pattern, before any queue is paused.
    chosen = [queue_named(name, server) for name in queues]
    warn_of_unknown_queues(server, queues, config)
    for queue in chosen:
        changed = queue.pause(operator())
        state = "is paused" if changed else "was paused already"
        echo(f"{shown_name(queue.name)} {state}; busy {queue.busy}, size {queue.size}")
    return 0


@click.command()
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
@finds_redis
def resume(queues: tuple[str, ...], **flags: Any) -> int:
    """Fetch from these queues again."""
    server = connected(configuration(**flags))
    for queue in [queue_named(name, server) for name in queues]:
        changed = queue.resume()
        echo(f"{shown_name(queue.name)} {'goes on' if changed else 'was not paused'}")
    return 0


@click.group(cls=ListFirst)
def limits() -> None:
    """Limit how many jobs of a queue run, and how fast they start.

    What is set here counts at once on all hosts, outlives restarts, and wins over forkq.toml.
    """


@limits.command("show")
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@json_option
@finds_redis
def show_(queues: tuple[str, ...], wants_json: bool, **flags: Any) -> int:
    """Show the queues with their rules, their jobs in progress (busy) and waiting (size)."""
    config = configuration(**flags)
    server = connected(config)
    for name in queues:
        api.Queue(name, server)  # raises on a pattern
    warn_of_unknown_queues(server, queues, config)
    states = api.queues(*queues, server=server)
    print_values(screen.LIMITS, screen.of_states(states), wants_json=wants_json)
    if not wants_json and any(state.changed for state in states):
        echo(f"\n{screen.CHANGED}")
    return 0


@limits.command("set")
@click.argument("queue")
@click.argument("limit", required=False, type=_COUNT, metavar="[N]")
@click.option("--process", "process", type=_COUNT, metavar="N", help="At most N in one child.")
@click.option("--rate", metavar="RATE", help="100/minute, 5/second, 10/30s...")
@click.option(
    "--burst", type=WholeNumber(1, HIGHEST_LIMIT), metavar="N", help="With --rate: N at once."
)
@finds_redis
def set_(
    queue: str,
    limit: int | None,
    process: int | None,
    rate: str | None,
    burst: int | None,
    **flags: Any,
) -> int:
    """Let at most N jobs of a queue be in progress on all hosts, 0 for none."""
    if burst is not None and rate is None:
        raise click.UsageError("--burst belongs to a --rate; give both")
    fields: dict[str, str] = {}
    if limit is not None:
        fields |= limit_to(limit)
    if process is not None:
        fields |= process_limit_to(process)
    if rate is not None:
        fields |= rate_to(rate, burst)
    if not fields:
        raise click.UsageError("to what? Give a number, --process N or --rate RATE")
    return _change(queue, fields, flags)


@limits.command()
@click.argument("queue")
@click.option("--process", "process", is_flag=True, help="The limit of each child.")
@click.option("--rate", "rate", is_flag=True, help="The rate.")
@finds_redis
def unset(queue: str, process: bool, rate: bool, **flags: Any) -> int:
    """Lift a queue's limit, also one that forkq.toml has. `reset` goes back to that."""
    fields: dict[str, str] = {}
    if process:
        fields |= process_limit_to(None)
    if rate:
        fields |= rate_to(None)
    return _change(queue, fields or limit_to(None), flags)


@limits.command()
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@finds_redis
def reset(queues: tuple[str, ...], **flags: Any) -> int:
    """Forget what was changed at run time, of these queues or of all: forkq.toml counts again."""
    server = connected(configuration(**flags))
    chosen = [queue_named(name, server) for name in queues or _changed(server)]
    for queue in chosen:
        queue.reset()
        echo(f"{shown_name(queue.name)}: as configured")
    if not chosen:
        echo("nothing was changed at run time")
    return 0


def _change(name: str, fields: Fields, flags: dict[str, Any]) -> int:
    config = configuration(**flags)
    server = connected(config)
    queue = queue_named(name, server)
    warn_of_unknown_queues(server, [name], config)
    queue.change(fields)
    echo(f"{shown_name(name)}: {_summary(queue.report().state)}")
    return 0


def _changed(server: api.Server) -> Sequence[str]:
    return [state.name for state in api.queues(server=server) if state.changed]


def _summary(state: api.QueueState) -> str:
    limit = "no limit" if state.limit is None else f"limit {state.limit}"
    process = "" if state.process_limit is None else f", {state.process_limit} per child"
    rate = "" if state.rate is None else f", {screen.rate_of(state)}"
    return f"{limit}{process}{rate}; busy {state.busy}, size {state.size}"


def warn_of_unknown_queues(server: api.Server, names: Iterable[str], config: Config) -> None:
    """Warns on standard error of each queue that had no push so far and that no capsule serves."""
    known = sorted({*api.queue_names(server), *config.queue_names, *config.spread_queues})
    for name in names:
        if not matches_any(name, known):
            near = nearest(name, known)
            hint = f'; the nearest is "{shown_name(near)}"' if near else ""
            shown = shown_name(name)
            echo(f'warning: no job has been pushed to "{shown}" so far{hint}', err=True)
