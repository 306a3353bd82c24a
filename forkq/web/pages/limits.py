"""The rules of queues, and how far they are used up."""

from __future__ import annotations

from typing import Final

from ... import api
from ..routing import NavItem, page
from ..visit import View, Visit

ORDER: Final = 80
NAV: Final = NavItem("Limits", "/limits", "l")
_MOST: Final = 200


def limits(visit: Visit) -> View:
    return View(
        "limits.html",
        {"states": [one for one in api.queues(server=visit.server) if _ruled(one)][:_MOST]},
    )


def _ruled(one: api.QueueState) -> bool:
    rules = (one.limit, one.process_limit, one.rate)
    return one.paused or bool(one.blocking) or any(rule is not None for rule in rules)


ROUTES: Final = [page("/limits", limits)]
