"""Where a job is: by its id, its class, its error, or text in its arguments."""

from __future__ import annotations

from typing import Final

from ... import api
from ...screens import search as screen
from ...screens.jobs import JOBS, of_entries
from ...screens.running import RUNNING, of_jobs
from ...screens.table import Table
from ..routing import page
from ..visit import View, Visit

_LONGEST: Final = 200  # characters of a search
_MOST_SEARCHED: Final = 10**15


def search(visit: Visit) -> View:
    wanted, place = visit.query("q").strip()[:_LONGEST], visit.query("in")
    values = {"wanted": wanted, "running": _running([]), "alone": place in screen.PLACES}
    found: list[screen.PlaceFound] = []
    if wanted and place in screen.PLACES:
        before = visit.number("searched", 0, _MOST_SEARCHED)
        found = [screen.search_on(visit.server, wanted, place, visit.query("after"), before)]
    elif wanted:
        found, values["running"] = (
            screen.search(visit.server, wanted),
            _running(screen.running(visit.server, wanted)),
        )
    tables = {one.place: JOBS[one.place].table("web", of_entries(one.jobs)) for one in found}
    return View("search.html", {**values, "found": found, "tables": tables})


def _running(jobs: list[api.RunningJob]) -> Table:
    return RUNNING.table("web", of_jobs(jobs))


ROUTES: Final = [page("/search", search)]
