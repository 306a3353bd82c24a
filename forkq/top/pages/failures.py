"""What fails, and since when: failed jobs by class, error and place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

from rich.text import Text

from ... import api
from ...screens import job_acts
from ...screens.plans import Plan
from ...screens.texts import name
from ...store.find_job import Location
from ...units import format_count, format_moment
from ..cells import BAD, QUIET, STRONG, WARN, cell, spark, words
from ..content import Act, Column, Content, Look, Page, Row, Selection
from .jobs import Dead, Retries

_MOST_READ: Final = 2000  # jobs of each set, the latest: a page reads no more
_MOST: Final = 100
_COLUMNS: Final = (
    Column("JOBS", "right"), Column("WHERE"), Column("JOB", least=12), Column("24 HOURS"),
    Column("LAST", "right"), Column("ERROR", least=12),
)  # fmt: skip


class Part(NamedTuple):
    """The jobs of a group in one set."""

    group: api.FailureGroup
    location: Location


class Failures(Page):
    """The largest group first."""

    title: ClassVar[str] = "Failures"
    number: ClassVar[str] = "4"
    tab: ClassVar[bool] = True
    letter: ClassVar[str] = "f"
    path: ClassVar[str] = "/failures"
    question: ClassVar[str] = "What fails, and since when?"
    hint: ClassVar[str] = "g r retries  g d dead"

    def content(self, look: Look) -> Content:
        found = api.failures(most=_MOST_READ, server=look.server)
        groups = [one for one in found.groups if look.wants(one.job, one.error, one.message)]
        rows = [_row(part, look.is_wide) for group in groups[:_MOST] for part in _parts(group)]
        seen = f"Of the latest {format_count(found.seen)}; {format_count(found.total)} in all."
        head = [words((seen, QUIET))] if found.seen < found.total else ()
        empty = "No job waits for a retry, and none is dead."
        return Content(head, _COLUMNS, rows, foot=_foot(look), empty=empty)

    def acts(self) -> Mapping[str, Act]:
        return {
            "retry": lambda server, chosen: job_acts.retry(_chosen(server, chosen)),
            "delete": lambda server, chosen: job_acts.delete(_chosen(server, chosen)),
            "kill": _kill,
        }

    def open(self, target: Part) -> Page | None:
        return (Dead if target.location == "dead" else Retries)(target.group.where)


def _chosen(server: api.Server, chosen: Selection) -> job_acts.Chosen:
    [part] = chosen.targets
    return job_acts.filtered(server, part.location, part.group.where)


def _kill(server: api.Server, chosen: Selection) -> Plan:
    return job_acts.kill(_chosen(server, chosen))


def _parts(group: api.FailureGroup) -> Iterator[Part]:
    if group.retrying:
        yield Part(group, "retrying")
    if group.dead:
        yield Part(group, "dead")


def _row(part: Part, is_wide: bool) -> Row:
    group, dead = part.group, part.location == "dead"
    last = format_moment(group.last_seen) if group.last_seen else "-"
    cells = (
        cell(format_count(group.dead if dead else group.retrying)),
        words(("dead", BAD) if dead else ("retrying", WARN)), cell(group.job or "no job"),
        words((_spark(group.hourly, is_wide), "cyan")), cell(last),
        cell(group.error or "no error", BAD),
    )  # fmt: skip
    return Row(f"{part.location} {(group.job, group.error)}", cells, part)


def _spark(hourly: Sequence[int], is_wide: bool) -> str:
    """Of hours, or of two hours each."""
    shown = hourly if is_wide else [sum(hourly[at : at + 2]) for at in range(0, len(hourly), 2)]
    return spark(shown, len(shown))


def _foot(look: Look) -> list[Text]:
    """When it began, and what the latest one says."""
    part = look.cursor.target if look.cursor else None
    if not isinstance(part, Part):
        return []
    group = part.group
    first = format_moment(group.first_seen) if group.first_seen else "unknown"
    says = words((name(group.job or "no job"), STRONG), (f"  first {first}", QUIET))
    return [says, words((name(group.error or "no error"), BAD), " ", cell(group.message))]
