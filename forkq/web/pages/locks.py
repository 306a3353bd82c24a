"""The locks of unique jobs: which job has each, and freeing one by hand."""

from __future__ import annotations

from typing import Final

from ...api import unique_locks
from ...screens.features import locks
from ...screens.features.locks import ACTION, LOCKS, MOST_KEYS_OF_PAGE, PATH, of_locks
from ...screens.plans import Plan
from ..routing import NavItem, action, page
from ..visit import View, Visit

ORDER: Final = 75
NAV: Final = NavItem("Locks", PATH, "u")
_MOST: Final = 100  # rows of a page


def held(visit: Visit) -> View:
    wanted = visit.query("q")
    found = unique_locks(server=visit.server, most_keys=MOST_KEYS_OF_PAGE)
    lines = LOCKS.chosen(of_locks(found), wanted)
    left_out = max(0, len(lines) - _MOST)
    values = {"table": LOCKS.table("web", lines[:_MOST], left_out), "wanted": wanted}
    return View("locks.html", values)


def free(visit: Visit) -> Plan:
    form = visit.form
    return locks.free(visit.server, [form.get("digest")], form.get("jid"))


ROUTES: Final = [page(PATH, held), action(f"{PATH}/free", ACTION, free)]
