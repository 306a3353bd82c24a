"""``forkq running``, ``stuck`` and ``find``: where jobs are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from .. import api
from ..default_client import use
from ..errors import MalformedPayload
from ..store.find_job import Found
from ..wire.lease import Progress
from ..wire.marks import is_suspect
from ..wire.payload import loads
from ..wire.printable import shown_name, signal_name
from ..wire.times import seconds
from .options import configuration, finds_redis, json_option
from .output import as_json, duration, echo, echo_table, facts, relative_time, timestamp
from .spans import span

_TITLES = ("JID", "JOB", "QUEUE", "RUNS", "SILENT", "PROGRESS", "PROCESS")
_SHOWN = (
    *("created_at", "enqueued_at", "retry_count"),
    *("error_class", "error_message", "failed_at"),
)


@click.command()
@click.option("--longer-than", callback=span, metavar="T", help="Only those: 90s, 5m, 1h, 2d.")
@json_option
@finds_redis
def running(longer_than: float | None, wants_json: bool, **flags: Any) -> int:
    """List the jobs that run now, the longest first, as of the last heartbeats."""
    use(configuration(**flags))
    bound = "" if longer_than is None else f" for more than {duration(longer_than)}"
    _print(api.running(longer_than), wants_json, f"no job is running{bound}")
    return 0


@click.command()
@click.option(
    "--minutes", type=click.FloatRange(min=0), default=10, show_default=True, metavar="N",
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
    use(configuration(**flags))
    jobs = api.stuck(minutes)
    _print(jobs, wants_json, f"no job has been silent for more than {duration(minutes * 60)}")
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
    """Show where a job is. Exit code 0 if it is somewhere, 1 if it is nowhere."""
    use(configuration(**flags))
    found = api.find(jid)
    job = None if found is None else {**_facts(found), **_run_of(found, jid)}
    if wants_json:
        click.echo(as_json(job))
    elif job is None:
        what = shown_name(jid)
        echo(f"{what} is nowhere: it is done, was discarded or deleted, or was never pushed")
    else:
        echo(facts(_rows(job)))
    return 1 if found is None else 0


def _print(jobs: Sequence[api.RunningJob], wants_json: bool, if_empty: str) -> None:
    if wants_json:
        click.echo(as_json([{**asdict(job), "silent_for": job.silent_for} for job in jobs]))
        return
    rows = [
        (
            job.jid,
            job.job,
            job.queue,
            duration(job.elapsed) if job.thread else f"< {duration(job.elapsed)}",
            duration(job.silent_for) if job.heartbeat else "no heartbeat",
            _progress(job.progress),
            _process(job.identity),
        )
        for job in jobs
    ]
    echo_table(rows, _TITLES, if_empty)


def _process(identity: str) -> str:
    """Host and pid; of a host name only what stands before its first dot."""
    host, _, rest = identity.partition(":")
    return f"{host.partition('.')[0]}:{rest.partition(':')[0]}"


def _progress(progress: Progress | None) -> str:
    if progress is None:
        return "-"
    if not progress.total:
        return f"{progress.done:g} {progress.note}".strip()
    share = f"{progress.done / progress.total:.0%}"
    return f"{progress.done:g}/{progress.total:g} {share} {progress.note}".strip()


def _facts(found: Found) -> dict[str, Any]:
    """What is shown of a job: everything but its arguments, which may be secrets."""
    try:
        job = loads(found.payload)
    except MalformedPayload:
        job = {}
    shown = {"jid": job.get("jid"), "job": job.get("class"), "location": found.location}
    shown |= {"queue": found.queue, "owner": found.owner or None, "at": found.at or None}
    for key in _SHOWN:
        shown[key] = job.get(key)
    if type(count := job.get("retry_count")) is int:
        shown["attempts"] = count + 1
    plain = {key: value for key, value in shown.items() if isinstance(value, str | int | float)}
    return {**plain, **_marks(job.get("forkq"))}


def _marks(marks: Any) -> dict[str, Any]:
    """Whether the job runs alone, and how its processes died."""
    if type(marks) is not dict:
        return {}
    alone = {"runs_alone": True} if is_suspect(marks) else {}
    found = marks.get("crashes")
    crashes = (
        [_plain(crash) for crash in found if type(crash) is dict] if type(found) is list else []
    )
    return {**alone, **({"crashes": crashes} if crashes else {})}


def _plain(crash: dict[str, Any]) -> dict[str, Any]:
    """What forkq writes into a crash record, of what stands there."""
    known = ("at", "signal", "exit", "rss", "jobs", "host", "reason", "uptime", "stack", "alone")
    return {key: crash[key] for key in known if isinstance(crash.get(key), str | int | float)}


def _run_of(found: Found, jid: str) -> dict[str, Any]:
    """When a running job began, and its progress, as of the last heartbeat of its process."""
    if found.location != "running":
        return {}
    job = next((job for job in api.running() if job.jid == jid), None)
    if job is None:
        return {}  # it began after the last heartbeat
    progress = {} if job.progress is None else {"progress": asdict(job.progress)}
    return {"running_since": job.started_at, **progress}


def _rows(job: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What ``find`` prints: name and value. Each crash has a row, and so has each line of its
    stack."""
    for name, value in job.items():
        if name != "crashes":
            yield name, _shown(name, value)
            continue
        for crash in value:
            yield "crash", shown_name(_crash(crash))
            for line in str(crash.get("stack", "")).splitlines():
                yield "", shown_name(line)


def _crash(crash: Mapping[str, Any]) -> str:
    at = crash.get("at")
    when = timestamp(seconds(at)) if isinstance(at, int | float) else "?"
    number = crash.get("signal")
    code = signal_name(number) if number else f"exit code {crash.get('exit')}"
    peak = f", peak {rss / 1024:.0f} MB" if isinstance(rss := crash.get("rss"), int) else ""
    jobs = "alone" if crash.get("alone") else f"with {crash.get('jobs')} jobs in progress"
    return f"{when} {crash.get('reason') or code}{peak}, {jobs}, on {crash.get('host')}"


def _shown(name: str, value: Any) -> str:
    if name == "progress":
        progress = Progress(**value)
        return f"{_progress(progress)} ({relative_time(progress.at)})"
    if name == "at":  # a score: always seconds, even if the pusher meant milliseconds
        return f"{timestamp(value)} ({relative_time(value)})"
    if name.endswith(("_at", "_since")):
        stamp = seconds(value) if isinstance(value, int | float) else 0.0
        return f"{timestamp(stamp)} ({relative_time(stamp)})"
    return shown_name(value)
