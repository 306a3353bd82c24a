"""Jobs that wait in a queue or a set, as tables; what programs get of one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from .. import api
from ..features.steps.parts import event_in
from ..store.find_job import Location
from ..units import plural
from ..wire.marks import KEY, needs_in
from ..wire.printable import cut, with_message
from .table import (
    BROWSER,
    COMMAND,
    EVERYWHERE,
    LIVE,
    Cell,
    Column,
    Empty,
    Front,
    Moment,
    PageLink,
    Phrase,
    Sheet,
    note,
    tag,
)
from .texts import arguments

_LONGEST: Final = 80
_NOT_TERMINAL: Final[frozenset[Front]] = COMMAND | BROWSER
_STAMPS: Final = ("at", "since", "created_at", "enqueued_at", "failed_at", "last_failed_at")
TIMES: Final = (*_STAMPS, "running_since", "expires_at")
_WHEN: Final[dict[Location, str]] = {
    "scheduled": "Due", "retrying": "Next try", "dead": "Died", "queued": "Queued",
}  # fmt: skip
_EMPTY: Final[dict[Location, Empty]] = {
    "dead": Empty(
        "No job is dead.",
        "A job that has failed too often, or is killed, is kept here until you retry or delete it.",
        "there is no dead job",
    ),
    "retrying": Empty(
        "No job waits for a retry.",
        "A job that fails stands here until its next try, with its error.",
        "there is no retrying job",
    ),
    "scheduled": Empty(
        "No job is scheduled.",
        "Jobs that are pushed for later stand here: Report.perform_in(3600, ...).",
        "there is no scheduled job",
    ),
    "queued": Empty(
        "No job waits here.",
        "Jobs of this queue stand here until a thread takes them.",
        "there is no queued job",
    ),
}


class JobLine(msgspec.Struct, frozen=True):
    """A job; ``number`` is its place in its queue, 1 for the next one."""

    entry: api.JobEntry
    number: int = 0

    @property
    def key(self) -> str:
        """The ``JobEntry.key`` of the job."""
        return self.entry.key


def of_entries(entries: Iterable[api.JobEntry], first: int | None = None) -> list[JobLine]:
    """The lines of these jobs; in a queue the first one has the number ``first``."""
    if first is None:
        return [JobLine(entry) for entry in entries]
    return [JobLine(entry, number) for number, entry in enumerate(entries, first)]


def called(entry: api.JobEntry) -> str:
    """What a job is called: its class, or why it is no job."""
    return entry.name or f"(no job: {entry.malformed})"


def page_of(line: JobLine) -> PageLink:
    """The link to a job's page. A job of a set is found by its key, another one by its id."""
    entry = line.entry
    if entry.location not in ("queued", "running"):
        return PageLink("/job", {"set": entry.location, "key": entry.key})
    if not line.number:
        return PageLink("/job", {"queue": entry.queue, "jid": entry.jid})
    place = {"key": entry.key, "at": line.number - 1}
    return PageLink("/job", {"queue": entry.queue, **place, "jid": entry.jid})


def _number(line: JobLine) -> Cell:
    return (Phrase(str(line.number)),)


def _jid(line: JobLine) -> Cell:
    return (Phrase(line.entry.jid, kind="id"),) if line.entry.jid else ()


def _job(line: JobLine) -> Cell:
    suspect = (tag("suspect", "warn"),) if line.entry.suspect else ()
    return Phrase(called(line.entry), link=page_of(line)), *suspect, *_awaited(line.entry)


def _awaited(entry: api.JobEntry) -> Cell:
    """For which signal a scheduled job waits."""
    event = event_in(needs_in(entry.job.get(KEY))) if entry.location == "scheduled" else ""
    return (note(f"waits for {event}"),) if event else ()


def _job_and_id(line: JobLine) -> Cell:
    jid = line.entry.jid
    return (*_job(line), Phrase(jid, kind="copy")) if jid else _job(line)


def _queue(line: JobLine) -> Cell:
    queue = line.entry.queue
    return (Phrase(queue, link=PageLink("/queue", {"name": queue})),) if queue else ()


def _arguments(line: JobLine) -> Cell:
    return (Phrase(arguments(line.entry.args), kind="code"),)


def _when(line: JobLine) -> Cell:
    """The cell with the time of a job, and how many of its retries are used up, if it waits for
    one."""
    entry = line.entry
    moment = entry.at if entry.at is not None else entry.since
    known = Phrase("?", "quiet") if moment is None else Moment(moment)
    most = "" if entry.retries is None else f" of {entry.retries}"
    if entry.location != "retrying" or entry.retry_count is None:
        return (known,)
    return known, note(f"retry {attempts(entry)}{most}")


def attempts(entry: api.JobEntry) -> int:
    """How many times the job has failed, in words."""
    return 0 if entry.retry_count is None else entry.retry_count + 1


def _failed(line: JobLine) -> Cell:
    count = attempts(line.entry)
    return (Phrase(f"{count}x"),) if count else ()


def _error_line(line: JobLine) -> Cell:
    """The job's error on one line, and whether it runs alone."""
    entry = line.entry
    alone = "suspect" if entry.suspect else ""
    message = " ".join(entry.error_message.split())
    error = with_message(entry.error_class, message)
    said = "; ".join(filter(None, (alone, cut(error, _LONGEST) if entry.error_class else "")))
    return (Phrase(said),) if said else ()


def _error(line: JobLine) -> Cell:
    entry = line.entry
    crashes = len(entry.crashes)
    died = (tag(plural(crashes, "crash", "crashes"), "bad"),) if crashes else ()
    if not entry.error_class:
        return died
    return Phrase(entry.error_class, "bad"), note(entry.error_message), *died


def as_object(entry: api.JobEntry) -> dict[str, Any]:
    """A job as programs get it: without its arguments, which may be secrets."""
    known = {
        "shard": entry.server.name,
        "jid": entry.jid,
        "job": entry.name,
        "location": entry.location,
        "queue": entry.queue,
        "owner": entry.owner,
        **{name: getattr(entry, name) for name in _STAMPS},
        "at": entry.score or None,
        "attempts": attempts(entry),
        "retry_count": entry.retry_count,
        "error_class": entry.error_class,
        "error_message": entry.error_message,
        "tags": list(entry.tags),
        "malformed": entry.malformed,
        "runs_alone": entry.suspect or None,
        "key": entry.key,
    }
    return {name: value for name, value in known.items() if value not in (None, "")}


def _sheet(location: Location) -> Sheet[JobLine]:
    """The sheet for the jobs of one place. On a narrow screen it has no arguments where errors
    matter more."""
    fails = location in ("retrying", "dead")
    queue: frozenset[Front] = _NOT_TERMINAL if fails else EVERYWHERE
    errors: tuple[Column[JobLine], ...] = (
        Column("failed", "Failed", _failed, on=COMMAND),
        Column("note", "Error", _error_line, on=COMMAND),
        Column("error", "Error", _error, least=20, on=LIVE),
    )
    return Sheet(
        "Jobs",
        (
            Column("jid", "Id", _jid, whole=True, on=COMMAND, brief="JID"),
            Column("job", "Job", _job_and_id, least=12),
            Column("queue", "Queue", _queue, least=8, on=queue),
            Column("arguments", "Arguments", _arguments, least=16, on=BROWSER if fails else LIVE),
            Column("when", _WHEN[location], _when),
            *(errors if fails else errors[:2]),
        ),
        lambda line: line.key,
        _EMPTY[location],
        facts=lambda line: as_object(line.entry),
        label=lambda line: f"{line.entry.name or 'no job'} {line.entry.jid}",
        heading="job",
    )


JOBS: Final[dict[Location, Sheet[JobLine]]] = {location: _sheet(location) for location in _WHEN}

# Those of one queue, the next one first. Two of them may be the same.
IN_QUEUE: Final[Sheet[JobLine]] = Sheet(
    "Jobs",
    (
        Column("number", "#", _number, "right", on=LIVE),
        Column("job", "Job", _job, least=16, on=LIVE),
        Column("jid", "Id", _jid, least=10, on=LIVE),
        Column("arguments", "Arguments", _arguments, least=10, on=LIVE),
        Column("when", "Queued", _when, on=LIVE),
    ),
    lambda line: f"{line.number}",
    _EMPTY["queued"],
    label=JOBS["queued"].label,
    heading="job",
)
