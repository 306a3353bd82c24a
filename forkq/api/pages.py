"""Reading sets and queues page after page, while jobs come and go."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Any, Final, Protocol

from ..default_client import default
from ..store.find_job import Location
from ..store.scripts import LIST_PAGE, SET_PAGE
from ..wire.times import now
from .changes import set_key
from .entry import JobEntry, entry_of, score_in
from .filters import Filter
from .query import keys
from .shards import on_shard_of

# What one script reads at most: small enough that it delays the server's other clients by no more
# than some milliseconds.
PAGE: Final = 200
_BYTES: Final = 1 << 19
# Behind every member of a score: JSON has no such byte.
_LAST: Final = b"\xff"


class Pages(Protocol):
    """Reads one set or queue."""

    location: Location
    queue: str

    @property
    def depth(self) -> int:
        """How many entries Redis reads to find one of the last page."""

    def next(self, count: int = PAGE) -> list[JobEntry]:
        """The next entries; none at the end."""

    def removed(self, members: Collection[bytes]) -> None:
        """The reader has removed these entries of the last page."""


class SetPages:
    """Reads a set by score and member, so it finds its place again after any change."""

    __slots__ = ("_after", "_direction", "location", "queue")

    def __init__(
        self, location: Location, *, newest_first: bool = False, score: float | None = None
    ) -> None:
        """Begins with the members of ``score``; None: at its first, or newest, one."""
        self.location = location
        self.queue = ""
        self._direction = "down" if newest_first else "up"
        self._after: tuple[Any, Any] = ("", "")
        if score is not None:
            self._after = (repr(score), _LAST if newest_first else b"")

    @property
    def depth(self) -> int:
        """A set finds each member by itself."""
        return 0

    def next(self, count: int = PAGE) -> list[JobEntry]:
        """The next entries; none at the end."""
        arguments = (self._direction, *self._after, count, _BYTES)
        with default().connection() as connection:
            found = connection.script(SET_PAGE, (set_key(self.location),), arguments)
        if found:
            self._after = (found[-1], found[-2])
        pairs = zip(found[::2], found[1::2], strict=True)
        return [entry_of(raw, self.location, score=float(score)) for raw, score in pairs]

    def removed(self, members: Collection[bytes]) -> None:
        """Nothing to do: a place in a set does not depend on other members."""


class SelectedPages:
    """Reads those members of a set that have one of these ``JobEntry.key``."""

    __slots__ = ("_entries", "location", "queue")

    def __init__(self, location: Location, keys: Iterable[str]) -> None:
        self.location = location
        self.queue = ""
        self._entries = selected(location, keys)

    @property
    def depth(self) -> int:
        """As in ``SetPages``."""
        return 0

    def next(self, count: int = PAGE) -> list[JobEntry]:
        """The next entries; none at the end."""
        return list(islice(self._entries, count))

    def removed(self, members: Collection[bytes]) -> None:
        """Nothing to do, as in ``SetPages``."""


class ListPages:
    """Reads a queue from one of its ends, and follows the last entry that it has read."""

    __slots__ = ("_before", "_direction", "_last", "_page", "_read", "location", "queue")

    def __init__(self, queue: str, *, newest_first: bool = False, offset: int = 0) -> None:
        self.location: Location = "queued"
        self.queue = queue
        self._direction = "last" if newest_first else "next"
        self._read = offset
        self._last = b""
        # The last page, and what stood in its place before it was read.
        self._page: list[bytes] = []
        self._before: tuple[int, bytes] = (offset, b"")

    @property
    def depth(self) -> int:
        """All from the end on."""
        return self._read

    def next(self, count: int = PAGE) -> list[JobEntry]:
        """The next entries; none at the end."""
        arguments = (self._direction, self._read, self._last, count, _BYTES)
        with on_shard_of(self.queue), default().connection() as connection:
            before, *found = connection.script(LIST_PAGE, (keys().queue(self.queue),), arguments)
            entries = [entry_of(raw, "queued", self.queue) for raw in found]
        self._before, self._page = (before, self._last), found
        self._read = before + len(found)
        self._last = found[-1] if found else self._last
        return entries

    def removed(self, members: Collection[bytes]) -> None:
        """The next page begins so many entries nearer to the end."""
        self._page = [member for member in self._page if member not in members]
        before, last = self._before
        self._read = before + len(self._page)
        self._last = self._page[-1] if self._page else last


def scan(pages: Pages, where: Filter) -> Iterator[JobEntry]:
    """The entries that ``where`` names, read as they are asked for."""
    while page := pages.next():
        moment = now()
        yield from (entry for entry in page if where.matches(entry, moment))


def selected(location: Location, keys: Iterable[str]) -> Iterator[JobEntry]:
    """Those members of a set that have one of these ``JobEntry.key``."""
    wanted: dict[float, set[str]] = {}
    for key in keys:
        score = score_in(key)
        if score is not None:
            wanted.setdefault(score, set()).add(key)
    for score, chosen in wanted.items():
        yield from _of_score(location, score, chosen)


def _of_score(location: Location, score: float, chosen: set[str]) -> Iterator[JobEntry]:
    """Those of the members with this score that are chosen; mostly there is only one."""
    pages, count = SetPages(location, score=score), 4
    while chosen and (page := pages.next(count)):
        for entry in page:
            if entry.key in chosen:
                chosen.discard(entry.key)
                yield entry
        if page[-1].score != score:
            return
        count = min(PAGE, count * 2)
