"""What fails, and since when: failed jobs by class, error and place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from rich.text import Text

from ... import api
from ...errors import ForkqError
from ...screens import job_acts
from ...screens.failures import PARTS, FailureLine, looked_at, parts
from ...screens.plans import Plan
from ...screens.texts import name
from ...units import format_moment
from ..cells import BAD, QUIET, STRONG, cell, words
from ..content import Act, Content, Look, Page, Selection, cut, grid
from .jobs import DeadPage, RetriesPage

_MOST_READ: Final = 2000  # jobs of each set, the latest: a page reads no more
_MOST: Final = 100


class FailuresPage(Page):
    """The page of failed jobs by class, error and place: the largest group first."""

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
        sample = found.is_sample
        lines = [line for group in groups for line in parts(group, is_sample=sample)]
        table = PARTS.table("top", lines[:_MOST], max(0, len(lines) - _MOST))
        head = [words((looked_at(found), QUIET))] if sample else []
        head += cut(table)
        return Content(head, *grid(table, look), foot=_foot(look), empty=table.empty.says)

    def acts(self) -> Mapping[str, Act]:
        return {
            "retry": lambda server, chosen: job_acts.retry(_chosen(server, chosen)),
            "delete": lambda server, chosen: job_acts.delete(_chosen(server, chosen)),
            "kill": _kill,
            "cancel": _cancel,
        }

    def open(self, target: FailureLine) -> Page | None:
        return (DeadPage if target.location == "dead" else RetriesPage)(target.group.where)


def _chosen(server: api.Server, chosen: Selection) -> job_acts.ChosenJobs:
    [part] = chosen.targets
    return job_acts.filtered(server, part.location, part.group.where)


def _kill(server: api.Server, chosen: Selection) -> Plan:
    return job_acts.kill(_chosen(server, chosen))


def _cancel(server: api.Server, chosen: Selection) -> Plan:
    [part] = chosen.targets
    if part.location == "dead":
        raise ForkqError("Dead jobs have ended: delete them, or retry them.")
    return job_acts.cancel(_chosen(server, chosen))


def _foot(look: Look) -> list[Text]:
    """The lines about the group under the cursor: when it began, and what the latest error says."""
    part = look.cursor.target if look.cursor else None
    if not isinstance(part, FailureLine):
        return []
    group = part.group
    first = format_moment(group.first_seen) if group.first_seen else "unknown"
    says = words((name(group.job or "no job"), STRONG), (f"  first {first}", QUIET))
    return [says, words((name(group.error or "no error"), BAD), " ", cell(group.message))]
