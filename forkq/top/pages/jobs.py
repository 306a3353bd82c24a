"""The jobs of a set, a page of them at a time: retries, scheduled, dead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rich.text import Text

from ... import api
from ...screens import job_acts, job_lists
from ...screens.jobs import JOBS, JobLine, of_entries
from ...screens.texts import arguments, name
from ...store.find_job import Location
from ...units import format_count
from ..cells import QUIET, STRONG, cell, words
from ..content import Act, Content, Look, Page, Selection, grid
from .job import JobPage, still_there


class JobsPage(Page):
    """The page of one of the three sets."""

    location: ClassVar[Location]
    many: ClassVar[bool] = True
    where: api.Filter = api.Filter()

    def content(self, look: Look) -> Content:
        found = job_lists.read(look.server, self.location, self._where(look.wanted), look.place)
        table = JOBS[self.location].table("top", of_entries(found.jobs))
        return Content(
            [self._counted(len(table.rows), look)], *grid(table, look), foot=_foot(look),
            empty=" ".join(table.empty[:2]), after=found.after,
        )  # fmt: skip

    def acts(self) -> Mapping[str, Act]:
        found: dict[str, Act] = {
            "retry": lambda server, chosen: job_acts.retry(self._chosen(server, chosen)),
            "delete": lambda server, chosen: job_acts.delete(self._chosen(server, chosen)),
            "kill": lambda server, chosen: job_acts.kill(self._chosen(server, chosen)),
            "cancel": lambda server, chosen: job_acts.cancel(self._chosen(server, chosen)),
        }
        if self.location == "dead":  # a dead job is not killed again, nor cancelled
            del found["kill"], found["cancel"]
        return found

    def open(self, target: Any) -> Page | None:
        return JobPage(self.location, target.key)

    def _where(self, wanted: str) -> api.Filter:
        job, error = self.where.job, self.where.error
        return api.Filter(job=job, error=error, match=wanted or None)

    def _chosen(self, server: api.Server, chosen: Selection) -> job_acts.ChosenJobs:
        if chosen.everything:
            return job_acts.filtered(server, self.location, self._where(chosen.wanted))
        return still_there(
            job_acts.selected(server, self.location, [job.key for job in chosen.targets])
        )

    def _counted(self, shown: int, look: Look) -> Text:
        total = format_count(api.job_set(self.location, look.server).size)
        parts = [(f"{shown} of {total} in {job_acts.WORDS[self.location]}", STRONG)]
        group = " ".join(word[1:] for word in (self.where.job, self.where.error) if word)
        asked = ", ".join(filter(None, (name(group), name(look.wanted))))
        return words(*parts, f": {asked}" if asked else "")


class RetriesPage(JobsPage):
    """The page of failed jobs that wait for their next try."""

    title: ClassVar[str] = "Failures"
    number: ClassVar[str] = "4"
    letter: ClassVar[str] = "r"
    path: ClassVar[str] = "/retries"
    question: ClassVar[str] = "What fails, and when is it tried again?"
    hint: ClassVar[str] = "g f failures  g d dead"
    location: ClassVar[Location] = "retrying"

    def __init__(self, where: api.Filter | None = None) -> None:
        self.where = where or api.Filter()


class DeadPage(RetriesPage):
    """The page of jobs that were given up, the latest first."""

    letter: ClassVar[str] = "d"
    path: ClassVar[str] = "/dead"
    question: ClassVar[str] = "What was given up, and why?"
    hint: ClassVar[str] = "g f failures  g r retries"
    location: ClassVar[Location] = "dead"


class ScheduledPage(JobsPage):
    """The page of jobs that were pushed for later."""

    title: ClassVar[str] = "Next"
    number: ClassVar[str] = "6"
    letter: ClassVar[str] = "s"
    path: ClassVar[str] = "/scheduled"
    question: ClassVar[str] = "What will happen next?"
    hint: ClassVar[str] = "scheduled jobs  g p periodic jobs"
    location: ClassVar[Location] = "scheduled"


def _foot(look: Look) -> list[Text]:
    """The lines with more of the job under the cursor."""
    line = look.cursor.target if look.cursor else None
    if not isinstance(line, JobLine):
        return []
    job = line.entry
    lines = [words((name(job.jid), STRONG), (f"  queue {name(job.queue)}", QUIET))]
    return [*lines, words(("args ", QUIET), cell(arguments(job.args)))]
