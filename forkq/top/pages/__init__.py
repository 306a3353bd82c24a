"""One module for each page, in the order of the web UI's questions."""

from __future__ import annotations

from typing import Final

from ..content import Page
from .dashboard import Dashboard
from .jobs import Dead, Retries, Scheduled
from .queues import Queues

PAGES: Final[tuple[type[Page], ...]] = (Dashboard, Queues, Retries, Dead, Scheduled)
TABS: Final = tuple(page for page in PAGES if page.tab)


def page_of(number: str = "", letter: str = "") -> type[Page] | None:
    """The page of that key."""
    found = (p for p in (TABS if number else PAGES) if number == p.number or letter == p.letter)
    return next(found, None)
