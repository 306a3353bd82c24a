"""One module for each page, in the order of the web UI's questions."""

from __future__ import annotations

from typing import Final

from ..content import Page
from .busy import Busy
from .dashboard import Dashboard
from .failures import Failures
from .jobs import Dead, Retries, Scheduled
from .metrics import Metrics
from .periodic import Periodic
from .queues import Queues

PAGES: Final[tuple[type[Page], ...]] = (
    Dashboard, Queues, Busy, Failures, Retries, Scheduled, Dead, Metrics, Periodic
)  # fmt: skip
TABS: Final = tuple(page for page in PAGES if page.tab)


def page_of(number: str = "", letter: str = "") -> type[Page] | None:
    """The page of that key."""
    found = (p for p in (TABS if number else PAGES) if number == p.number or letter == p.letter)
    return next(found, None)
