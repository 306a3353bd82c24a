"""The first page: is anything wrong, and how many jobs are done and fail."""

from __future__ import annotations

from typing import Final

from ... import api
from ..routing import NavItem, page
from ..visit import View, Visit

ORDER: Final = 10
NAV: Final = NavItem("Dashboard", "/", "h")


def dashboard(visit: Visit) -> View:
    return View("dashboard.html", {"stats": api.stats()})


ROUTES: Final = [page("/", dashboard)]
