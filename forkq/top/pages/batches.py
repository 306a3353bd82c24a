"""The batches: how far each has come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Final

from ... import api
from ...api import Server
from ...errors import ForkqError
from ...screens.features.batches import BATCHES, PATH, cancel, retry
from ...screens.plans import Plan
from ..content import Act, Content, Look, Page, Selection, cut, grid

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
        return {"cancel": _with(cancel), "retry": _with(retry)}


def _with(act: Callable[[Server, str], Plan]) -> Act:
    """An action on the batch under the cursor."""

    def plan(server: Server, chosen: Selection) -> Plan:
        if len(chosen.targets) != 1:
            raise ForkqError("Choose one batch.")
        return act(server, chosen.targets[0].bid)

    return plan
