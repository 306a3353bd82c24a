"""The locks of unique jobs: which job has each, since when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from ...api import Server, unique_locks
from ...screens.features.locks import LOCKS, MOST_KEYS_OF_PAGE, PATH, free, of_locks
from ...screens.plans import Plan
from ..content import Act, Content, Look, Page, Selection, cut, grid
from .job import JobPage

_MOST: Final = 200


class LocksPage(Page):
    """The page of the locks, the oldest first."""

    title: ClassVar[str] = "Queues"
    number: ClassVar[str] = "2"
    letter: ClassVar[str] = "u"
    path: ClassVar[str] = PATH
    question: ClassVar[str] = "Which job keeps others out?"
    hint: ClassVar[str] = "locks of unique jobs"
    many: ClassVar[bool] = True

    def content(self, look: Look) -> Content:
        locks = unique_locks(server=look.server, most_keys=MOST_KEYS_OF_PAGE)
        found = LOCKS.chosen(of_locks(locks), look.wanted)
        table = LOCKS.table("top", found[:_MOST], max(0, len(found) - _MOST))
        empty = " ".join(table.empty[:2])
        return Content(cut(table), *grid(table, look), empty=empty)

    def acts(self) -> Mapping[str, Act]:
        return {"free": _free}

    def open(self, target: Any) -> Page | None:
        return JobPage(jid=target.lock.jid)


def _free(server: Server, chosen: Selection) -> Plan:
    if chosen.everything:
        found = LOCKS.chosen(of_locks(unique_locks(server=server)), chosen.wanted)
        return free(server, [line.key for line in found])
    return free(server, [line.key for line in chosen.targets])
