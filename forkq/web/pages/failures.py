"""What fails, and since when: failed jobs by class and error."""

from __future__ import annotations

from typing import Final

from ... import api
from ..routing import NavItem, page
from ..visit import View, Visit

ORDER: Final = 35
NAV: Final = NavItem("Failures", "/failures", "f")
_MOST_READ: Final = 2000  # jobs of each set, the latest: a page reads no more
_MOST: Final = 100


def failures(visit: Visit) -> View:
    found = api.failures(most=_MOST_READ)
    return View("failures.html", {"found": found, "groups": found.groups[:_MOST]})


ROUTES: Final = [page("/failures", failures)]
