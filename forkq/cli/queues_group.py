"""``forkq queues``: how long they are, who serves them, and why they do not drain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

import click

from .. import api
from ..api import QueueReport
from ..units import format_duration
from ..wire.printable import shown_name
from .bulk import How
from .completion import complete_queues
from .job_group import ListFirst, cleared, clears
from .options import configuration, connected, finds_redis, json_option
from .output import as_json, as_json_line, echo, echo_table, facts
from .queues import warn_of_unknown_queues

_TITLES: Final = ("QUEUE", "SIZE", "BUSY", "LATENCY", "THREADS", "WHY IT WAITS")
_NO_QUEUES: Final = "no job has been pushed to any queue"
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
    reports = api.queue_reports(server=server)
    if wants_json:
        for report in reports:
            click.echo(as_json_line(_as_object(report)))
    else:
        echo_table([_row(report) for report in reports], _TITLES, _NO_QUEUES)
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
    report = api.Queue(queue, server).report()
    echo(as_json(_as_object(report)) if wants_json else facts(_facts(report)))
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
    name, found = f'"{shown_name(queue)}"', api.Queue(queue, server)
    return cleared(f"{name} job", found, how, undo=not no_undo, empty=f"the queue {name} is empty")


def _row(report: QueueReport) -> tuple[str, ...]:
    state = report.state
    return (
        state.name,
        f"{state.size:,}",
        f"{state.busy:,}",
        format_duration(report.latency) if state.size else "-",
        f"{report.threads:,}",
        report.holds[0].text if report.holds else "",
    )


def _facts(report: QueueReport) -> Iterator[tuple[str, str]]:
    state = report.state
    yield "queue", shown_name(state.name)
    yield "size", f"{state.size:,}"
    if state.suspects:
        yield "suspects", f"{state.suspects:,}"
    yield "busy", f"{state.busy:,}"
    yield "latency", format_duration(report.latency)
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


def _as_object(report: QueueReport) -> dict[str, Any]:
    return {
        **asdict(report.state),
        "latency": report.latency,
        "threads": report.threads,
        "served_by": [process.identity for process in report.served_by],
        "in_flight": [job.jid for job in report.in_flight],
        "holds": [asdict(hold) for hold in report.holds],
    }
