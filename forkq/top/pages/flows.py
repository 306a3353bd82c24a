"""The flows: how far each has come; and the steps of one, with why each waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from ... import api
from ...screens.features.flows import (
    FLOW_STEPS,
    FLOWS,
    PATH,
    PATH_OF_ONE,
    StepLine,
    cancel,
    of_steps,
    retry,
    told,
)
from ..cells import prose
from ..content import Act, Content, Look, Page, cut, grid
from .batches import on_one, overview
from .job import JobPage

_MOST: Final = 200


class FlowsPage(Page):
    """The page of the flows, the one that changed last first."""

    title: ClassVar[str] = "Queues"
    number: ClassVar[str] = "2"
    letter: ClassVar[str] = "w"
    path: ClassVar[str] = PATH
    question: ClassVar[str] = "Which steps follow each other, and how far are they?"
    hint: ClassVar[str] = "flows"

    def content(self, look: Look) -> Content:
        found = FLOWS.chosen(api.flows(look.server), look.wanted)
        table = FLOWS.table("top", found[:_MOST], max(0, len(found) - _MOST))
        return Content(cut(table), *grid(table, look), empty=" ".join(table.empty[:2]))

    def acts(self) -> Mapping[str, Act]:
        return {"cancel": on_one("flow", cancel), "retry": on_one("flow", retry)}

    def open(self, target: Any) -> Page | None:
        return FlowPage(target.bid)


class FlowPage(Page):
    """The page of one flow: its steps, those first of which a person should hear."""

    title: ClassVar[str] = "Flow"
    number: ClassVar[str] = "2"
    path: ClassVar[str] = PATH_OF_ONE
    question: ClassVar[str] = "Where is each step, and why does it wait?"
    acts_on_whole: ClassVar[bool] = True

    def __init__(self, bid: str) -> None:
        self._bid = bid

    def content(self, look: Look) -> Content:
        flow = api.Flow(self._bid, look.server)
        report, steps = flow.report(), flow.steps()
        found = FLOW_STEPS.chosen(of_steps(self._bid, steps), look.wanted)
        table = FLOW_STEPS.table("top", found[:_MOST], max(0, len(found) - _MOST))
        head = [overview(report, "step"), *map(prose, told(report, steps)), *cut(table)]
        return Content(head, *grid(table, look), empty=table.empty.says)

    def acts(self) -> Mapping[str, Act]:
        return {
            "cancel": lambda server, _: cancel(server, self._bid),
            "retry": lambda server, _: retry(server, self._bid),
        }

    def open(self, target: StepLine) -> Page | None:
        return JobPage(jid=target.step.jid) if target.step.jid else None
