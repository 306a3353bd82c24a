"""The jobs that wait in one queue, the next one first."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from rich.text import Text

from ... import api
from ...screens.texts import arguments, name
from ...units import format_moment
from ..cells import STRONG, WARN, cell, words
from ..content import Column, Content, Look, Page, Row
from .job import Job

_MOST: Final = 100
_COLUMNS: Final = (
    Column("#", "right"), Column("JOB", least=16), Column("ID", least=10), Column("QUEUED"),
    Column("ARGUMENTS", least=10),
)  # fmt: skip


class QueueJobs(Page):
    """Opened from a queue."""

    title: ClassVar[str] = "Queues"
    number: ClassVar[str] = "2"
    path: ClassVar[str] = "/queue"
    question: ClassVar[str] = "Its jobs, the next one first"
    searches: ClassVar[bool] = False

    def __init__(self, queue: str) -> None:
        self._queue = queue

    def content(self, look: Look) -> Content:
        jobs = api.Queue(self._queue, look.server).page(0, _MOST)
        rows = [_row(number, job) for number, job in enumerate(jobs, 1)]
        head = [words((name(self._queue), STRONG))]
        return Content(head, _COLUMNS, rows, empty="No job waits here.")

    def open(self, target: Any) -> Page | None:
        return Job(jid=target.jid)


def _row(number: int, job: api.JobEntry) -> Row:
    queued = format_moment(job.enqueued_at) if job.enqueued_at else "-"
    cells = (
        cell(number), _called(job), cell(job.jid), cell(queued),
        cell(arguments(job.args)),
    )  # fmt: skip
    return Row(f"{number}", cells, job)


def _called(job: api.JobEntry) -> Text:
    called = cell(job.name or "no job")
    return words(("suspect ", WARN), called) if job.suspect else called
