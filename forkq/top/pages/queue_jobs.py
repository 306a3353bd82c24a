"""The jobs that wait in one queue, the next one first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from ... import api
from ...screens import job_acts
from ...screens.jobs import IN_QUEUE, of_entries
from ...screens.plans import Plan
from ...screens.texts import name
from ..cells import STRONG, words
from ..content import Act, Content, Look, Page, Selection, grid
from .job import JobPage

_MOST: Final = 100


class QueueJobsPage(Page):
    """The page of the jobs of one queue, opened from that queue."""

    title: ClassVar[str] = "Queues"
    number: ClassVar[str] = "2"
    path: ClassVar[str] = "/queue"
    question: ClassVar[str] = "Its jobs, the next one first"
    searches: ClassVar[bool] = False

    def __init__(self, queue: str) -> None:
        self._queue = queue

    def content(self, look: Look) -> Content:
        jobs = api.Queue(self._queue, look.server).page(0, _MOST)
        table = IN_QUEUE.table("top", of_entries(jobs, 1))
        head = [words((name(self._queue), STRONG))]
        return Content(head, *grid(table, look), empty=table.empty.says)

    def acts(self) -> Mapping[str, Act]:
        return {"cancel": _cancel}

    def open(self, target: Any) -> Page | None:
        return JobPage(jid=target.entry.jid)


def _cancel(_: api.Server, chosen: Selection) -> Plan:
    [line] = chosen.targets
    return job_acts.cancel(job_acts.one(line.entry))
