"""All queues: how long they are, how far behind, and what holds them."""

from __future__ import annotations

from typing import Final

from ...screens import queues as screen
from ..paging import paging
from ..routing import NavItem, page
from ..visit import View, Visit

ORDER: Final = 20
NAV: Final = NavItem("Queues", "/queues", "q")


def queues(visit: Visit) -> View:
    visit.problems()  # looks at the other shards, too, which may have parts of a queue
    lines = screen.observed(visit.observer.facts(), visit.observer)
    chosen = screen.QUEUES.chosen(lines, visit.query("match"))
    shown = paging(visit, len(chosen))
    table = screen.QUEUES.table("web", chosen[shown.start : shown.stop])
    return View("queues.html", {"table": table, "paging": shown})


ROUTES: Final = [page("/queues", queues)]
