"""One module for each page, in the order of the web UI's questions."""

from __future__ import annotations

from typing import Final

from ..content import Page
from .batches import BatchesPage
from .busy import BusyPage
from .dashboard import DashboardPage
from .failures import FailuresPage
from .flows import FlowsPage
from .jobs import DeadPage, RetriesPage, ScheduledPage
from .locks import LocksPage
from .metrics import MetricsPage
from .periodic import PeriodicPage
from .queues import QueuesPage

PAGES: Final[tuple[type[Page], ...]] = (
    DashboardPage, QueuesPage, BusyPage, FailuresPage, RetriesPage, ScheduledPage, DeadPage,
    MetricsPage, PeriodicPage, LocksPage, BatchesPage, FlowsPage,
)  # fmt: skip
TABS: Final = tuple(page for page in PAGES if page.tab)


def page_of(number: str = "", letter: str = "") -> type[Page] | None:
    """The page of that key."""
    found = (p for p in (TABS if number else PAGES) if number == p.number or letter == p.letter)
    return next(found, None)
