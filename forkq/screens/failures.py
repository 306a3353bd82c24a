"""What fails, and since when: failed jobs by class and error, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from .. import api
from ..store.find_job import Location
from ..units import format_count
from .job_acts import PATHS
from .table import (
    BROWSER,
    TERMINAL,
    Button,
    Cell,
    Column,
    Empty,
    Moment,
    PageLink,
    Phrase,
    Sheet,
    Trend,
    note,
)

_LONGEST: Final = 200  # letters of a name: the filter of an address holds no longer one


class FailureLine(NamedTuple):
    """A group of failed jobs; ``location`` if it is about those of one set. ``marks`` are the
    deploys of the last 24 hours: where, from 0 to 1, and what was deployed. ``is_sample``: not all
    failed jobs were looked at, so the group may have more."""

    group: api.FailureGroup
    location: Location | None = None
    marks: Sequence[tuple[float, str]] = ()
    is_sample: bool = False


def parts(group: api.FailureGroup, *, is_sample: bool) -> Iterator[FailureLine]:
    """A line for the jobs that wait for a retry, and one for the dead ones."""
    if group.retrying:
        yield FailureLine(group, "retrying", is_sample=is_sample)
    if group.dead:
        yield FailureLine(group, "dead", is_sample=is_sample)


def looked_at(found: api.FailureGroups) -> str:
    """What is said if not all failed jobs were looked at; else ""."""
    if not found.is_sample:
        return ""
    return f"Of the latest {format_count(found.seen)}; {format_count(found.total)} in all."


def _both(line: FailureLine) -> Cell:
    group = line.group
    error = Phrase(group.error or "no error", "bad", "note")
    return Phrase(group.job or "no job"), error, note(group.message)


def _hours(line: FailureLine) -> Cell:
    hourly = line.group.hourly
    told = ", ".join(map(str, hourly))
    return (Trend(hourly, f"failures of each of the last 24 hours: {told}", line.marks),)


def _moment(at: float | None) -> Cell:
    return (Moment(at),) if at else ()


def _count(line: FailureLine, location: Location) -> int:
    return line.group.dead if location == "dead" else line.group.retrying


def _counted(line: FailureLine, location: Location) -> str:
    at_least = "at least " if line.is_sample else ""
    return f"{at_least}{format_count(_count(line, location))}"


def _jobs_of(line: FailureLine, location: Location) -> Cell:
    """The cell with the number of jobs in a set; it leads there."""
    where = line.group.where
    if not _count(line, location):
        return ()
    link = PageLink(PATHS[location], {"job": where.job, "error": where.error})
    return (Phrase(_counted(line, location), link=link if _fits(where) else None),)


def _fits(where: api.Filter) -> bool:
    return len(where.job or "") <= _LONGEST and len(where.error or "") <= _LONGEST


def _part_count(line: FailureLine) -> Cell:
    return (Phrase(_counted(line, line.location or "retrying")),)


def _where(line: FailureLine) -> Cell:
    return (Phrase("dead", "bad") if line.location == "dead" else Phrase("retrying", "warn"),)


_WORDED: Final = {"retry": "Retry", "kill": "Kill", "delete": "Delete"}


def _buttons(line: FailureLine) -> tuple[Button, ...]:
    """The actions on the failed jobs of each set."""
    where = line.group.where
    if not _fits(where):
        return ()
    retrying = [("retrying", verb) for verb in ("retry", "kill") if line.group.retrying]
    dead = [("dead", verb) for verb in ("retry", "delete") if line.group.dead]
    return tuple(
        Button(
            f"{PATHS[location]}/{verb}",  # type: ignore[index]
            f"{_WORDED[verb]} {location}",
            f"{verb} jobs",
            {"scope": "all", "job": where.job, "error": where.error},
            "danger" if verb == "delete" else "",
        )
        for location, verb in (*retrying, *dead)
    )


def _key(line: FailureLine) -> str:
    return f"{line.location} {(line.group.job, line.group.error)}"


def _last(line: FailureLine) -> Cell:
    return _moment(line.group.last_seen)


_EMPTY: Final = Empty(
    "No job waits for a retry, and none is dead.",
    "Failed jobs stand here by class and error: what fails, how often, since when.",
)

GROUPS: Final[Sheet[FailureLine]] = Sheet(
    "Failures",
    (
        Column("job", "Job and error", _both, on=BROWSER),
        Column("hours", "Last 24 hours", _hours, on=BROWSER),
        Column("first", "First", lambda line: _moment(line.group.first_seen), on=BROWSER),
        Column("last", "Last", _last, on=BROWSER),
        Column("retrying", "Retrying", lambda line: _jobs_of(line, "retrying"), on=BROWSER),
        Column("dead", "Dead", lambda line: _jobs_of(line, "dead"), on=BROWSER),
    ),
    _key,
    _EMPTY,
    buttons=_buttons,
)

# With a line for each set: an action in a terminal is on a line.
PARTS: Final[Sheet[FailureLine]] = Sheet(
    "Failures",
    (
        Column("count", "Jobs", _part_count, "right", on=TERMINAL),
        Column("where", "Where", _where, on=TERMINAL),
        Column("job", "Job", lambda line: _both(line)[:1], least=12, on=TERMINAL),
        Column("hours", "24 hours", _hours, on=TERMINAL),
        Column("last", "Last", _last, "right", on=TERMINAL),
        Column("error", "Error", lambda line: _both(line)[1:2], least=12, on=TERMINAL),
    ),
    _key,
    _EMPTY,
)
