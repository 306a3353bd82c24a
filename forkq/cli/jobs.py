"""``forkq running``, ``stuck`` and ``find``: where jobs are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from .. import api
from ..units import format_duration
from ..wire.printable import shown_name
from .durations import duration
from .job_facts import print_job, progress_text, ran_twice, ran_twice_text, why_nowhere
from .options import Number, configuration, connected, finds_redis, json_option, searched
from .output import as_json, echo, echo_table

_TITLES = ("JID", "JOB", "QUEUE", "RUNS", "SILENT", "PROGRESS", "PROCESS")


@click.command()
@click.option("--longer-than", callback=duration, metavar="T", help="Only those: 90s, 5m, 1h, 2d.")
@json_option
@finds_redis
def running(longer_than: float | None, wants_json: bool, **flags: Any) -> int:
    """List the jobs that run now, the longest first; their progress as of the last heartbeats.

    `< 8 s`: no heartbeat has told of the job yet. It runs for a shorter time than that.
    """
    server = connected(configuration(**flags))
    bound = "" if longer_than is None else f" for more than {format_duration(longer_than)}"
    _print(api.running(longer_than, server), wants_json, f"no job is running{bound}")
    return 0


@click.command()
@click.option(
    "--minutes", type=Number(min=0), default=10, show_default=True, metavar="N",
    help="How long a job may be silent.",
)  # fmt: skip
@json_option
@finds_redis
def stuck(minutes: float, wants_json: bool, **flags: Any) -> int:
    """List running jobs without progress for N minutes, and those without a heartbeat. Exit code 0
    if there are none, 1 if any.

    A job that never reports progress counts from its beginning. One in a process without a
    heartbeat, which hangs or is gone, counts at once.
    """
    server = connected(configuration(**flags))
    jobs = api.stuck(minutes, server)
    silence = format_duration(minutes * 60)
    _print(jobs, wants_json, f"no job has been silent for more than {silence}")
    return 1 if jobs else 0


def _jid(_context: click.Context, _argument: click.Parameter, jid: str) -> str:
    if not jid:
        raise click.BadParameter("pass the jid that a push has returned")
    return jid


@click.command()
@click.argument("jid", callback=_jid)
@json_option
@finds_redis
def find(jid: str, wants_json: bool, **flags: Any) -> int:
    """Show where a job is. Exit code 0 if it is somewhere, 1 if it is nowhere.

    It shows what `show` does of `forkq dead` and the like, but the arguments.
    """
    where = searched(configuration(**flags))
    entry = api.entry(jid, where)
    if entry is not None:
        print_job(entry, wants_json=wants_json, with_args=False)
        return 0
    again = ran_twice(jid, where)
    if wants_json:
        click.echo(as_json({"jid": jid, **again} if again else None))
        return 1
    what = shown_name(jid)
    echo(f"{what} is nowhere: {why_nowhere(jid)}")
    for found in again.values():
        echo(f"it ran twice: {ran_twice_text(found)}")
    return 1


def _print(jobs: Sequence[api.RunningJob], wants_json: bool, if_empty: str) -> None:
    if wants_json:
        click.echo(as_json([{**asdict(job), "silent_for": job.silent_for} for job in jobs]))
        return
    rows = [
        (
            job.jid,
            job.job,
            job.queue,
            _at_most(job, job.elapsed),
            _silence(job),
            progress_text(job.progress),
            _process(job.identity),
        )
        for job in jobs
    ]
    echo_table(rows, _TITLES, if_empty)


def _silence(job: api.RunningJob) -> str:
    return _at_most(job, job.silent_for) if job.heartbeat else "no heartbeat"


def _at_most(job: api.RunningJob, time: float) -> str:
    return format_duration(time) if job.thread else f"< {format_duration(time)}"


def _process(identity: str) -> str:
    """Host and pid; of a host name only what stands before its first dot."""
    host, _, rest = identity.partition(":")
    return f"{host.partition('.')[0]}:{rest.partition(':')[0]}"
