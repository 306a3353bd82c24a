"""A job as the commands show it: a row of a table, an object for programs, all that is known."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any, Final

import click

from .. import api
from ..api import JobEntry, WorkSet
from ..api.life import crash_of
from ..servers import Server, Servers
from ..units import format_duration, format_moment, format_share, format_size, plural
from ..wire.lease import Progress
from ..wire.marks import KEY
from ..wire.printable import cut, printable, shown_name, signal_name
from ..wire.times import seconds
from .output import as_json, as_json_line, echo, echo_table, facts, timestamp

# How many jobs a table has, unless --limit says another number.
_ROWS: Final = 50
_LONGEST: Final = 300
# How many lines of a backtrace or a stack, which begin with where it happened.
_MOST_LINES: Final = 12
_PART_OF_JID: Final = re.compile(r"[0-9a-f]{6,23}")
_STAMPS: Final = ("at", "since", "created_at", "enqueued_at", "failed_at", "last_failed_at")
_TIMES: Final = (*_STAMPS, "running_since")
_WHEN: Final = {"scheduled": "DUE", "retrying": "NEXT TRY", "dead": "DIED", "queued": "QUEUED"}


def print_jobs(
    entries: Iterable[JobEntry],
    location: str,
    if_empty: str,
    *,
    limit: int | None,
    wants_json: bool,
) -> int:
    """A table of the first jobs, or each as an object on its own line. Returns how many."""
    if wants_json:
        return _print_lines(islice(entries, limit))
    shown = limit or _ROWS
    found = list(islice(entries, shown + 1))
    rows = [_row(entry) for entry in found[:shown]]
    titles = ("JID", "JOB", "QUEUE", _WHEN[location], "FAILED", "ERROR")
    echo_table(rows, titles, if_empty)
    if len(found) > shown:
        echo(f"and more: these are the first {shown:,}; --limit N shows N")
    return len(rows)


def print_job(entry: JobEntry, *, wants_json: bool, with_args: bool) -> None:
    """All that is known of one job. Its arguments are masked where they are secret."""
    known = {
        **as_object(entry),
        **_crashes(entry.job.get(KEY)),
        **_run_of(entry),
        **ran_twice(entry.jid, entry.server),
    }
    if wants_json:
        args = {"args": entry.args} if with_args else {}
        click.echo(as_json({**known, **args, "backtrace": entry.backtrace}))
        return
    echo(facts(_rows(entry, known, with_args=with_args)))


def ran_twice(jid: str, where: Server | Servers) -> dict[str, Any]:
    """Which process has also run the job to its end, and when it knew; empty if none has."""
    found = api.ran_twice(jid, where)
    return {} if found is None else {"ran_twice": asdict(found)}


def ran_twice_text(found: Mapping[str, Any]) -> str:
    """Such as "also in web1:4711:3f6c, which was cut off from Redis; it knew at ..."."""
    return (
        f"also in {shown_name(found['identity'])}, which was cut off from Redis: it noticed at "
        f"{timestamp(found['at'])}"
    )


def why_nowhere(jid: str) -> str:
    """Why there may be no job ``jid``. At a terminal, log lines have its first digits only."""
    if _PART_OF_JID.fullmatch(jid):
        options = "`--match` of `forkq jobs`, `retries`, `dead` and `scheduled`"
        return f"a jid has 24 digits, this is a part of one; {options} finds a job by it"
    return "it is done, was discarded or deleted, or was never pushed"


def as_object(entry: JobEntry) -> dict[str, Any]:
    """For programs. Without its arguments, which may be secrets."""
    known = {
        "shard": entry.server.name,
        "jid": entry.jid,
        "job": entry.name,
        "location": entry.location,
        "queue": entry.queue,
        "owner": entry.owner,
        **{name: getattr(entry, name) for name in _STAMPS},
        "at": entry.score or None,
        "attempts": _attempts(entry),
        "retry_count": entry.retry_count,
        "error_class": entry.error_class,
        "error_message": entry.error_message,
        "tags": list(entry.tags),
        "malformed": entry.malformed,
        "runs_alone": entry.suspect or None,
        "key": entry.key,
    }
    return {name: value for name, value in known.items() if value not in (None, "")}


def _print_lines(entries: Iterable[JobEntry]) -> int:
    count = 0
    for entry in entries:
        click.echo(as_json_line(as_object(entry)))
        count += 1
    return count


def _row(entry: JobEntry) -> Sequence[str]:
    moment = entry.at if entry.at is not None else entry.since
    when = "?" if moment is None else format_moment(moment)
    failed = f"{_attempts(entry)}x" if _attempts(entry) else "-"
    name = entry.name or f"(no job: {entry.malformed})"
    return entry.jid or "-", name, entry.queue or "-", when, failed, _note(entry)


def _attempts(entry: JobEntry) -> int:
    """How many times it has failed."""
    return 0 if entry.retry_count is None else entry.retry_count + 1


def _note(entry: JobEntry) -> str:
    """Its error, and whether it runs alone."""
    return "; ".join(filter(None, ("suspect" if entry.suspect else "", _error(entry)))) or "-"


def _error(entry: JobEntry) -> str:
    if not entry.error_class:
        return ""
    message = " ".join(entry.error_message.split())
    return cut(f"{entry.error_class}: {message}" if message else entry.error_class, 80)


def progress_text(progress: Progress | None) -> str:
    """Such as "120/1000 12% pages"."""
    if progress is None:
        return "-"
    if not progress.total:
        return f"{progress.done:g} {progress.note}".strip()
    share = f"{format_share(progress.done / progress.total)}"
    return f"{progress.done:g}/{progress.total:g} {share} {progress.note}".strip()


def _crashes(marks: Any) -> dict[str, Any]:
    """How the processes died that had the job in progress."""
    if type(marks) is not dict:
        return {}
    found = marks.get("crashes")
    crashes = (
        [_plain(crash) for crash in found if type(crash) is dict] if type(found) is list else []
    )
    return {"crashes": crashes} if crashes else {}


def _plain(crash: dict[str, Any]) -> dict[str, Any]:
    """What forkq writes into a crash record, of what stands there."""
    known = ("at", "signal", "exit", "rss", "jobs", "host", "reason", "uptime", "stack", "alone")
    return {
        key: crash[key] for key in (*known, "ran") if isinstance(crash.get(key), str | int | float)
    }


def _run_of(entry: JobEntry) -> dict[str, Any]:
    """When a running job began, and its progress, as of the last heartbeat of its process."""
    job = WorkSet(entry.server).find(entry.jid) if entry.location == "running" else None
    if job is None or not job.thread:
        return {}  # it does not run, or no heartbeat has told since when
    progress = {} if job.progress is None else {"progress": asdict(job.progress)}
    return {"running_since": job.started_at, **progress}


def _rows(entry: JobEntry, known: dict[str, Any], *, with_args: bool) -> Iterator[tuple[str, str]]:
    """Name and value. Each crash has a row, and so has each of the first lines of its stack."""
    for name, value in known.items():
        if name not in ("error_message", "key", "tags", "crashes"):
            yield name, _shown(name, value)
    if entry.error_message:
        yield "error_message", printable(cut(entry.error_message, _LONGEST))
    yield from _first_lines(entry.backtrace)
    if with_args:
        yield "args", printable(cut(json.dumps(entry.args, ensure_ascii=False), _LONGEST))
    for crash in known.get("crashes", ()):
        yield "crash", shown_name(_crash(crash))
        yield from _first_lines(str(crash.get("stack", "")).splitlines())
    for event in entry.events:
        what = f"{event.what} {event.detail}".strip()
        yield "event", shown_name(f"{timestamp(event.at)} {what}")


def _first_lines(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for line in lines[:_MOST_LINES]:
        yield "", shown_name(line)
    if more := len(lines[_MOST_LINES:]):
        yield "", f"and {more:,} more line{'s' * (more > 1)}: --json has all of them"


def _crash(crash: Mapping[str, Any]) -> str:
    at = crash.get("at")
    when = timestamp(seconds(at)) if isinstance(at, int | float) else "?"
    number = crash.get("signal")
    code = signal_name(number) if number else f"exit code {crash.get('exit')}"
    peak = f", peak {format_size(rss * 1024)}" if isinstance(rss := crash.get("rss"), int) else ""
    jobs = "alone" if crash.get("alone") else f"with {_jobs_text(crash)} in progress"
    ran = crash_of(dict(crash)).ran
    after = "" if ran is None else f" after {format_duration(ran)}"
    return f"{when} {crash.get('reason') or code}{after}{peak}, {jobs}, on {crash.get('host')}"


def _jobs_text(crash: Mapping[str, Any]) -> str:
    jobs = crash.get("jobs")
    return plural(jobs, "job") if type(jobs) is int else f"{jobs} jobs"


def _shown(name: str, value: Any) -> str:
    if name == "ran_twice":
        return ran_twice_text(value)
    if name == "progress":
        progress = Progress(**value)
        return f"{shown_name(progress_text(progress))} ({format_moment(progress.at)})"
    if name in _TIMES:
        return f"{timestamp(value)} ({format_moment(value)})"
    return shown_name(value)
