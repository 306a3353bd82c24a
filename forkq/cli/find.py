"""``forkq running``, ``stuck`` and ``find``: where jobs are; ``retry``, ``cancel``, ``undo``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from .. import api
from ..api import JobEntry, WorkSet
from ..api.features.locks import UniqueLock, lock_with_newest
from ..api.features.results import job_result
from ..api.find import Cancellation, entry_is_being_cancelled
from ..api.life import crash_of
from ..api.masks import published_names
from ..errors import ForkqError, MalformedPayload, ServerUnavailable, nearest
from ..screens.features.job_facts import IN_LINES, facts_of, feature_lines
from ..screens.features.locks import lock_text, without_locks
from ..screens.features.results import result_object, result_text
from ..screens.jobs import TIMES, as_object
from ..screens.processes import held_up
from ..screens.running import RUNNING, of_jobs, progress_text
from ..screens.texts import timestamp
from ..servers import Server, Servers, first_found
from ..units import format_duration, format_moment, format_size, plural
from ..wire.lease import Progress
from ..wire.marks import KEY
from ..wire.printable import cut, printable, shown_name, signal_name
from ..wire.times import seconds
from .bulk import ActionProgress
from .options import Number, configuration, connected, duration, finds_redis, json_option, searched
from .output import as_json, echo, facts, print_values

_LONGEST: Final = 300
# How many lines of a backtrace or a stack, which begin with where it happened.
_MOST_LINES: Final = 12
_PART_OF_JID: Final = re.compile(r"[0-9a-f]{6,23}")


@click.command()
@click.option("--longer-than", callback=duration, metavar="T", help="Only those: 90s, 5m, 1h, 2d.")
@json_option
@finds_redis
def running(longer_than: float | None, wants_json: bool, **flags: Any) -> int:
    """List the jobs that run now, the longest first, with their progress.

    `< 8 s`: no heartbeat has told of the job yet. It runs for a shorter time than that.
    """
    server = connected(configuration(**flags))
    bound = "" if longer_than is None else f" for more than {format_duration(longer_than)}"
    lines = of_jobs(api.running(longer_than, server))
    print_values(RUNNING, lines, wants_json=wants_json, if_empty=f"{RUNNING.empty.brief}{bound}")
    if not wants_json and (sentences := held_up(server)):
        echo("\n".join(sentences))
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
    none = f"no job has been silent for more than {silence}"
    print_values(RUNNING, of_jobs(jobs), wants_json=wants_json, if_empty=none)
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

    def look(server: Server) -> UniqueLock | JobEntry | None:
        return lock_with_newest(server, jid) or api.entry(jid, server)

    place = first_found(where, look)
    if isinstance(place, UniqueLock):
        _print_newest(jid, place, wants_json=wants_json)
        return 0
    if isinstance(place, JobEntry):
        print_job(place, wants_json=wants_json, with_args=False)
        return 0
    again, ended = ran_twice(jid, where), api.cancelled_at(jid, where)
    result = job_result(jid, where)
    if wants_json:
        cancelled = {} if ended is None else {"cancelled_at": ended}
        known = {} if result is None else {"result": result_object(result)}
        click.echo(as_json({"jid": jid, "location": None, **again, **cancelled, **known}))
        return 1
    reason = why_nowhere(jid) if ended is None else f"it was cancelled, at {timestamp(ended)}"
    if ended is None and result is not None and result.outcome:
        reason = f"it is {result_text(result)}"
    echo(f"{shown_name(jid)} is nowhere: {reason}")
    for found in again.values():
        echo(f"it ran on two hosts: {ran_twice_text(found)}")
    return 1


def _print_newest(jid: str, lock: UniqueLock, *, wants_json: bool) -> None:
    """Prints where a job is that waits in a lock, without an entry."""
    if wants_json:
        known = {"job": lock.job, "location": "lock", "lock": lock.digest, "behind": lock.jid}
        click.echo(as_json({"jid": jid, **known}))
        return
    behind = f"behind {shown_name(lock.jid)}: it runs in the place of that job, or after it"
    echo(f"{shown_name(jid)} waits {behind}")


@click.command()
@click.argument("jids", nargs=-1, required=True, metavar="JID...")
@click.option("--fresh", is_flag=True, help="Forget its failures: it has all retries again.")
@finds_redis
def retry(jids: tuple[str, ...], fresh: bool, **flags: Any) -> int:
    """Run jobs now that are dead, wait for a retry, or are scheduled. Exit code 1 if one is none of
    these."""
    where = searched(configuration(**flags))
    return max([_retried(where, jid, fresh=fresh) for jid in jids])


def _retried(where: Server | Servers, jid: str, *, fresh: bool) -> int:
    entry, what = api.entry(jid, where), shown_name(jid)
    if entry is None:
        return _not_retried(f"{what} is nowhere: {why_nowhere(jid)}")
    if entry.location == "running":
        return _not_retried(f"{what} runs now, in {shown_name(entry.owner)}")
    if entry.location == "queued":
        return _not_retried(f"{what} waits in the queue {shown_name(entry.queue)} already")
    return _retry(entry, what, fresh=fresh)


def _retry(entry: JobEntry, what: str, *, fresh: bool) -> int:
    try:
        if not entry.retry(fresh=fresh):
            return _not_retried(f"{what} has just left: look again with `forkq find {what}`")
    except MalformedPayload as error:
        return _not_retried(f"{what} cannot run: {shown_name(error)}")
    echo(f"{what} ({shown_name(entry.name)}) was {entry.location}, is in {shown_name(entry.queue)}")
    lock = api.lock_of(entry)
    if lock is not None and lock.jid not in ("", entry.jid):
        echo(f"it runs without its lock: {lock_text(facts_of(entry)['lock'], entry.jid)}")
    return 0


def _not_retried(reason: str) -> int:
    echo(reason, err=True)
    return 1


@click.command()
@click.argument("jids", nargs=-1, metavar="[JID]...")
@click.option("--class", "name", metavar="NAME", help="All jobs of a class that were made before.")
@click.option("--batch", "bid", metavar="BATCH", help="All members of a batch.")
@click.option(
    "--wait",
    type=Number(min=0),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for what becomes of the job.",
)
@click.option("--force", is_flag=True, help="Kill its child if a running job does not end.")
@click.option(
    "--grace",
    type=Number(min=0),
    metavar="SECONDS",
    help="How long a running job has to end, with --force [10].",
)
@json_option
@finds_redis
def cancel(
    jids: tuple[str, ...],
    name: str | None,
    bid: str | None,
    wait: float,
    wants_json: bool,
    force: bool,
    grace: float | None,
    **flags: Any,
) -> int:  # fmt: skip
    """Cancel jobs, wherever they wait or run. Exit code 1 if one is nowhere, or if no leader has
    looked for it within the time.

    One that runs gets the exception forkq.Cancelled. To choose those that wait by a filter, use
    `forkq jobs cancel`, `forkq retries cancel` and `forkq scheduled cancel`.
    """
    _check_what(jids, name, bid, force=force, grace=grace)
    where = searched(configuration(**flags))
    if bid is not None:
        api.Batch(bid, where).cancel()
        text = f"all members of {shown_name(bid)} are being cancelled"
        echo(as_json({"batch": bid, "outcome": "pending"}) if wants_json else text)
        return 0
    if name is not None:
        _cancel_class(name, where, force=force, grace=grace)
        text = f"all jobs of {shown_name(name)} that were made before now are being cancelled"
        echo(as_json({"class": name, "outcome": "pending"}) if wants_json else text)
        return 0
    found = api.cancel_jobs(jids, wait=wait, force=force, grace=grace, where=where)
    for jid, outcome in found.items():
        text = f"{shown_name(jid)} {_cancellation_text(jid, outcome)}"
        echo(as_json({"jid": jid, "outcome": outcome}) if wants_json else text)
    return 0 if set(found.values()) <= {"removed", "asked"} else 1


def _check_what(
    jids: Sequence[str], name: str | None, bid: str | None, *, force: bool, grace: float | None
) -> None:
    """Raises UsageError unless one kind of jobs is named."""
    if sum((bool(jids), name is not None, bid is not None)) > 1:
        raise click.UsageError(
            "pass jids, --class NAME or --batch BATCH, not two of them: a class, and a batch, is "
            "cancelled whole"
        )
    if not jids and name is None and bid is None:
        raise click.UsageError("pass the jids of jobs, --class NAME, or --batch BATCH")
    if bid is not None and force:
        raise click.UsageError("--force is for jobs and classes: a batch has no such mark")
    if grace is not None and not force:
        raise click.UsageError("--grace means nothing without --force, which kills the child")


def _cancel_class(name: str, where: Server | Servers, *, force: bool, grace: float | None) -> None:
    """Cancels a class. Refuses a pattern, which names none."""
    if set("*?") & set(name):
        raise click.UsageError(
            f"{shown_name(name)} is a pattern, and a class is cancelled by its whole name; "
            "`forkq jobs cancel`, `retries cancel` and `scheduled cancel` take patterns"
        )
    if near := _meant(name, where):
        echo(f"no child has a job of that name: is {shown_name(near)} meant?", err=True)
    api.cancel_class(name, force=force, grace=grace, where=where)


def _meant(name: str, where: Server | Servers) -> str | None:
    """The job that may be meant by a name that no child has; None if one has it, or if none is
    near."""
    known: set[str] = set()
    for server in where if isinstance(where, Servers) else [where]:
        known.update(published_names(server))
    if name in known:
        return None
    ends = sorted(each for each in known if each.endswith(f".{name}"))
    return ends[0] if ends else nearest(name, known)


def _cancellation_text(jid: str, found: Cancellation) -> str:
    """What has become of a cancelled job, in words."""
    if found == "removed":
        return "has ended as cancelled"
    if found == "asked":
        return "runs still: it ends at its next line, or await; --force ends its child, too"
    if found == "pending":
        return "is cancelled, but no leader has looked for it yet: does a tree run?"
    return f"neither waits nor runs: {why_nowhere(jid)}, or it is dead"


@click.command()
@click.argument("tokens", nargs=-1, required=True, metavar="TOKEN...")
@finds_redis
def undo(tokens: tuple[str, ...], **flags: Any) -> int:
    """Put deleted jobs back, within ten minutes. A deletion has printed the token."""
    where = searched(configuration(**flags))
    return max([_undone(where, token) for token in tokens])


def _undone(where: Server | Servers, token: str) -> int:
    try:
        with ActionProgress("putting back") as progress:
            outcome = api.undo(token, progress=progress, where=where)
    except ServerUnavailable:
        raise
    except ForkqError as error:
        echo(f"forkq: {error}", err=True)
        return 1
    lacking = without_locks(outcome.unlocked)
    echo(f"{plural(outcome.done, 'job')} put back{lacking and '; '}{lacking}")
    return 0


def print_job(entry: JobEntry, *, wants_json: bool, with_args: bool) -> None:
    """All that is known of one job. Its arguments are masked where they are secret."""
    known = {
        **as_object(entry),
        **_crashes(entry.job.get(KEY)),
        **_run_of(entry),
        **ran_twice(entry.jid, entry.server),
        **facts_of(entry),
        **({"cancelling": True} if entry_is_being_cancelled(entry) else {}),
    }
    args = {"args": entry.args} if with_args else {}
    if wants_json:
        click.echo(as_json({**known, **args, "backtrace": entry.backtrace}))
    else:
        echo(facts(_rows(entry, known, with_args=with_args)))


def ran_twice(jid: str, where: Server | Servers) -> dict[str, Any]:
    """Which process has also run the job to its end, and when it knew; empty if none has."""
    found = api.ran_twice(jid, where)
    return {} if found is None else {"ran_twice": asdict(found)}


def ran_twice_text(found: Mapping[str, Any]) -> str:
    """Where else a job ran, in words, such as "also in web1:4711:3f6c, which was cut off from
    Redis: it noticed at ..."."""
    return (
        f"also in {shown_name(found['identity'])}, which was cut off from Redis: it noticed at "
        f"{timestamp(found['at'])}"
    )


def why_nowhere(jid: str) -> str:
    """Why there may be no job ``jid``. At a terminal, log lines have its first digits only."""
    if _PART_OF_JID.fullmatch(jid):
        options = "`--match` of `forkq jobs`, `retries`, `dead` and `scheduled`"
        return f"a jid has 24 digits, this is a part of one; {options} finds a job by it"
    return "it has ended, was replaced or deleted, or was never pushed"


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
    """The fields of a crash record that forkq writes; other programs may have written more."""
    known = ("at", "signal", "exit", "rss", "jobs", "host", "reason", "uptime", "stack", "alone")
    return {
        key: crash[key]
        for key in (*known, "ran", "step")
        if isinstance(crash.get(key), str | int | float)
    }


def _run_of(entry: JobEntry) -> dict[str, Any]:
    """When a running job began, and its progress, as of the last heartbeat of its process."""
    job = WorkSet(entry.server).find(entry.jid) if entry.location == "running" else None
    if job is None or not job.thread:
        return {}  # it does not run, or no heartbeat has told since when
    since = {"running_since": job.started_at}
    if job.progress is None:
        return since
    return {**since, "progress": {**asdict(job.progress), "seconds_left": job.seconds_left}}


def _rows(entry: JobEntry, known: dict[str, Any], *, with_args: bool) -> Iterator[tuple[str, str]]:
    """The names and values of what is known of a job. Each crash has a row, and so has each of the
    first lines of its stack."""
    for name, value in known.items():
        if name not in (*IN_LINES, "error_message", "key", "tags", "crashes"):
            yield name, _value_text(name, value)
    yield from feature_lines(known, entry.jid)
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
        yield "", f"and {plural(more, 'more line')}: --json has all of them"


def _crash(crash: Mapping[str, Any]) -> str:
    at = crash.get("at")
    when = timestamp(seconds(at)) if isinstance(at, int | float) else "?"
    number = crash.get("signal")
    code = signal_name(number) if number else f"exit code {crash.get('exit')}"
    peak = f", peak {format_size(rss * 1024)}" if isinstance(rss := crash.get("rss"), int) else ""
    jobs = "alone" if crash.get("alone") else f"with {_jobs_text(crash)} in progress"
    ran, step = crash_of(dict(crash)).ran, crash_of(dict(crash)).step
    after = "" if ran is None else f" after {format_duration(ran)}"
    after += f' in the step "{step}"' if step else ""
    return f"{when} {crash.get('reason') or code}{after}{peak}, {jobs}, on {crash.get('host')}"


def _jobs_text(crash: Mapping[str, Any]) -> str:
    jobs = crash.get("jobs")
    return plural(jobs, "job") if type(jobs) is int else f"{jobs} jobs"


def _value_text(name: str, value: Any) -> str:
    if name == "ran_twice":
        return ran_twice_text(value)
    if name == "progress":
        return _progress(**value)
    if name in TIMES:
        return f"{timestamp(value)} ({format_moment(value)})"
    return shown_name(value)


def _progress(seconds_left: float | None, **reported: Any) -> str:
    progress = Progress(**reported)
    return f"{shown_name(progress_text(progress, seconds_left))} ({format_moment(progress.at)})"
