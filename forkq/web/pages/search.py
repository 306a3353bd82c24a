"""Where a job is: by its id, its class, its error, or text in its arguments."""

from __future__ import annotations

from typing import Final

from ...screens import search as screen
from ..routing import page
from ..visit import View, Visit

_LONGEST: Final = 200  # characters of a search
_MOST_SEARCHED: Final = 10**15


def search(visit: Visit) -> View:
    wanted, place = visit.query("q").strip()[:_LONGEST], visit.query("in")
    values = {"wanted": wanted, "running": [], "found": [], "alone": place in screen.PLACES}
    if not wanted:
        return View("search.html", values)
    if place in screen.PLACES:
        before = visit.number("searched", 0, _MOST_SEARCHED)
        values["found"] = [
            screen.search_on(visit.server, wanted, place, visit.query("after"), before)
        ]
    else:
        values |= {
            "found": screen.search(visit.server, wanted),
            "running": screen.running(visit.server, wanted),
        }
    return View("search.html", values)


ROUTES: Final = [page("/search", search)]
