"""Is anything wrong, and how many jobs are done and fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

from rich.text import Text

from ... import api
from ...screens import queues as screen
from ...screens.facts import Facts
from ...units import format_count, format_moment
from ..cells import BAD, GOOD, QUIET, STRONG, WARN, cell, spark, words
from ..content import Content, Look, Page, grid
from .queue_jobs import QueueJobsPage

_MINUTES: Final = 60
_DEPLOYS: Final = 3


class DashboardPage(Page):
    """The first page: the figures, the last hour, and the queues with jobs that wait."""

    title: ClassVar[str] = "Dashboard"
    number: ClassVar[str] = "1"
    tab: ClassVar[bool] = True
    letter: ClassVar[str] = "h"
    path: ClassVar[str] = "/"
    question: ClassVar[str] = "Is anything wrong?"

    def content(self, look: Look) -> Content:
        facts = look.observer.facts()
        head = [*_figures(facts), words(""), *_hour(facts, look.width), words("")]
        chosen = screen.WAITING.chosen(screen.waiting(facts), look.wanted)
        table = screen.WAITING.table("top", chosen)
        return Content(head, *grid(table, look), empty=table.empty.says)

    def open(self, target: Any) -> Page | None:
        return QueueJobsPage(target.name)


def _figures(facts: Facts) -> tuple[Text, Text]:
    """The lines with values over their words, each as wide as the widest of them."""
    stats, (processed, failed) = facts.stats, facts.slow.minute
    shown = (
        (format_count(processed), "jobs a minute", ""),
        (format_count(failed), "failed", BAD if failed else ""),
        (format_count(stats.busy), f"of {facts.threads} busy", ""),
        (format_count(stats.enqueued), "queued", ""),
        (format_count(stats.scheduled), "scheduled", ""),
        (format_count(stats.retry), "to retry", WARN if stats.retry else ""),
        (format_count(stats.dead), "dead", BAD if stats.dead else ""),
    )
    values, names = words(), words()
    for value, name, style in shown:
        width = max(len(value), len(name)) + 2
        values.append(value.ljust(width), f"{STRONG} {style}".strip())
        names.append(name.ljust(width), QUIET)
    return values, names


def _hour(facts: Facts, width: int) -> Iterator[Text]:
    """The lines of the last hour: a bar for each minute, with the deploys below."""
    report = facts.slow.hour
    points = report.total.points[-min(_MINUTES, width - 28) :]
    most = max((point.processed for point in points), default=0)
    done = spark([point.processed for point in points], len(points))
    failed = spark([point.failed for point in points], len(points))
    yield words(("done    ", QUIET), (done, GOOD), (f" {format_count(most)} a minute", QUIET))
    if any(point.failed for point in points):
        lost = max(point.failed for point in points)
        yield words(("failed  ", QUIET), (failed, BAD), (f" {format_count(lost)} a minute", QUIET))
    if report.deploys:
        yield words(("deploys ", QUIET), _marks(report.deploys, points))
        latest = report.deploys[::-1][:_DEPLOYS]
        yield words(*_named(latest))


def _marks(deploys: Sequence[api.Deploy], points: Sequence[api.Point]) -> str:
    marked = {int(deploy.at // 60) for deploy in deploys}
    return "".join("▲" if int(point.at // 60) in marked else " " for point in points)


def _named(deploys: Sequence[api.Deploy]) -> Iterator[Text]:
    for number, one in enumerate(deploys):
        start = "        " if number == 0 else ", "
        yield words((start, QUIET), cell(one.label), (f" {format_moment(one.at)}", QUIET))
