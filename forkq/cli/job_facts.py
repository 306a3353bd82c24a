"""A job as the commands show it: a row of a table, an object for programs, all that is known."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import click

from ..api import JobEntry
from ..wire.printable import cut, printable, shown_name
from .output import as_json, as_json_line, echo, echo_table, facts, relative_time, timestamp

# How many jobs a table has, unless --limit says another number.
_ROWS: Final = 50
_LONGEST: Final = 300
_TIMES: Final = ("at", "since", "created_at", "enqueued_at", "failed_at", "last_failed_at")
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


def print_job(entry: JobEntry, *, wants_json: bool) -> None:
    """All that is known of one job. Its arguments are masked where they are secret."""
    if wants_json:
        more = {"args": entry.args, "backtrace": entry.backtrace}
        click.echo(as_json({**as_object(entry), **more}))
        return
    echo(facts(_facts(entry)))


def as_object(entry: JobEntry) -> dict[str, Any]:
    """For programs. Without its arguments, which may be secrets."""
    known = {
        "jid": entry.jid,
        "job": entry.name,
        "location": entry.location,
        "queue": entry.queue,
        **{name: getattr(entry, name) for name in _TIMES},
        "attempts": _attempts(entry),
        "error_class": entry.error_class,
        "error_message": entry.error_message,
        "tags": list(entry.tags),
        "malformed": entry.malformed,
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
    when = "?" if moment is None else relative_time(moment)
    failed = f"{_attempts(entry)}x" if _attempts(entry) else "-"
    name = entry.name or f"(no job: {entry.malformed})"
    return entry.jid or "-", name, entry.queue or "-", when, failed, _error(entry)


def _attempts(entry: JobEntry) -> int:
    """How many times it has failed."""
    return 0 if entry.retry_count is None else entry.retry_count + 1


def _error(entry: JobEntry) -> str:
    if not entry.error_class:
        return "-"
    message = " ".join(entry.error_message.split())
    return cut(f"{entry.error_class}: {message}" if message else entry.error_class, 80)


def _facts(entry: JobEntry) -> Iterator[tuple[str, str]]:
    for name, value in as_object(entry).items():
        if name not in ("error_message", "key", "tags"):
            yield name, _shown(name, value)
    if entry.error_message:
        yield "error_message", printable(cut(entry.error_message, _LONGEST))
    for line in entry.backtrace:
        yield "", shown_name(line)
    yield "args", printable(cut(json.dumps(entry.args, ensure_ascii=False), _LONGEST))
    yield from _life(entry)


def _life(entry: JobEntry) -> Iterator[tuple[str, str]]:
    for crash in entry.crashes:
        yield "crash", shown_name(f"{crash.why}{f', on {crash.host}' if crash.host else ''}")
    for event in entry.events:
        what = f"{event.what} {event.detail}".strip()
        yield "event", shown_name(f"{timestamp(event.at)} {what}")


def _shown(name: str, value: Any) -> str:
    if name in _TIMES:
        return f"{timestamp(value)} ({relative_time(value)})"
    return shown_name(value)
