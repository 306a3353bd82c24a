"""A long list in pages."""

from __future__ import annotations

from typing import Final

import msgspec

from .visit import Visit

PER_PAGE: Final = 50
_MOST_PAGES: Final = 1_000_000


class Paging(msgspec.Struct, frozen=True):
    """Page ``number`` (from 0) of a list of ``total`` items; None: how many is not known, and
    ``has_after`` says whether there are more."""

    number: int
    total: int | None
    per_page: int = PER_PAGE
    has_after: bool = False

    @property
    def start(self) -> int:
        """The index of the first item of the page."""
        return self.number * self.per_page

    @property
    def stop(self) -> int:
        """The index after that of the last item of the page."""
        end = self.start + self.per_page
        return end if self.total is None else min(end, self.total)

    @property
    def first(self) -> int:
        return self.start + 1

    @property
    def last(self) -> int:
        return self.stop

    @property
    def before(self) -> int | None:
        return self.number - 1 if self.number > 0 else None

    @property
    def after(self) -> int | None:
        more = self.has_after if self.total is None else self.stop < self.total
        return self.number + 1 if more else None

    @property
    def has_more_than_one(self) -> bool:
        return self.before is not None or self.after is not None


def paging(visit: Visit, total: int | None, per_page: int = PER_PAGE) -> Paging:
    """The page of the list that ?page= asks for; the last page if there are fewer."""
    most = _MOST_PAGES if total is None else max(0, (total - 1) // per_page)
    return Paging(visit.number("page", 0, most), total, per_page)
