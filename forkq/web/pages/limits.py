"""The rules of queues, and how far they are used up."""

from __future__ import annotations

from typing import Final

from ...screens import queues as screen
from ..routing import NavItem, page
from ..visit import View, Visit

ORDER: Final = 80
NAV: Final = NavItem("Limits", "/limits", "l")
_MOST: Final = 200


def limits(visit: Visit) -> View:
    states = [one for one in visit.observer.facts().states if one.has_rules]
    shown, left_out = states[:_MOST], max(0, len(states) - _MOST)
    table = screen.LIMITS.table("web", screen.of_states(shown), left_out)
    return View("limits.html", {"table": table})


ROUTES: Final = [page("/limits", limits)]
