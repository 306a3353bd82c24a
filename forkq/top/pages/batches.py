"""The batches: how far each has come; and one of them, what keeps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from rich.text import Text

from ... import api
from ...api import BatchReport, Server
from ...errors import ForkqError
from ...screens.features.batches import (
    BATCH_PARTS,
    BATCHES,
    PATH,
    PATH_OF_ONE,
    BatchPart,
    cancel,
    parts_of,
    pause_or_resume,
    retry,
    told,
)
from ...screens.plans import Plan
from ...screens.texts import name
from ...units import format_count, plural
from ..cells import QUIET, STRONG, prose, words
from ..content import Act, Content, Look, Page, Selection, cut, grid
from .job import JobPage

_MOST: Final = 200


class BatchesPage(Page):
    """The page of the batches, the one that changed last first."""

    title: ClassVar[str] = "Queues"
    number: ClassVar[str] = "2"
    letter: ClassVar[str] = "t"
    path: ClassVar[str] = PATH
    question: ClassVar[str] = "What belongs together, and how far is it?"
    hint: ClassVar[str] = "batches"

    def content(self, look: Look) -> Content:
        found = BATCHES.chosen(api.batches(look.server), look.wanted)
        table = BATCHES.table("top", found[:_MOST], max(0, len(found) - _MOST))
        return Content(cut(table), *grid(table, look), empty=" ".join(table.empty[:2]))

    def acts(self) -> Mapping[str, Act]:
        acts = {"cancel": cancel, "retry": retry, "pause": pause_or_resume}
        return {key: on_one("batch", act) for key, act in acts.items()}

    def open(self, target: Any) -> Page | None:
        return BatchPage(target.bid)


class BatchPage(Page):
    """The page of one batch: what keeps it, its dead and failing members, the batches within it."""

    title: ClassVar[str] = "Batch"
    number: ClassVar[str] = "2"
    path: ClassVar[str] = PATH_OF_ONE
    question: ClassVar[str] = "What keeps this batch?"
    acts_on_whole: ClassVar[bool] = True

    def __init__(self, bid: str) -> None:
        self._bid = bid

    def content(self, look: Look) -> Content:
        report = api.Batch(self._bid, look.server).report()
        found = BATCH_PARTS.chosen(parts_of(report), look.wanted)
        table = BATCH_PARTS.table("top", found[:_MOST], max(0, len(found) - _MOST))
        head = [overview(report, "member"), *map(prose, told(report)), *cut(table)]
        return Content(head, *grid(table, look), empty=table.empty.says)

    def acts(self) -> Mapping[str, Act]:
        return {
            "cancel": lambda server, _: cancel(server, self._bid),
            "retry": lambda server, _: retry(server, self._bid),
            "pause": lambda server, _: pause_or_resume(server, self._bid),
        }

    def open(self, target: BatchPart) -> Page | None:
        return BatchPage(target.id) if target.what == "within it" else JobPage(jid=target.id)


def overview(report: BatchReport, noun: str) -> Text:
    """The line about a batch, or a flow, as a whole."""
    numbers = f"{plural(report.total, noun)}, {format_count(report.waiting)} not ended, "
    ended = f"{format_count(report.done)} done, {format_count(report.dead)} dead"
    title = name(report.name or report.bid)
    return words((title, STRONG), f"  {report.state}  ", (numbers + ended, QUIET))


def on_one(noun: str, act: Callable[[Server, str], Plan]) -> Act:
    """An action on the batch, or the flow, under the cursor. ``noun``: which of both it is."""

    def plan(server: Server, chosen: Selection) -> Plan:
        if len(chosen.targets) != 1:
            raise ForkqError(f"Choose one {noun}.")
        return act(server, chosen.targets[0].bid)

    return plan
