"""Reading sets and queues page after page, while jobs come and go."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Any, Final, Protocol

from ..servers import Server
from ..store.find_job import Location
from ..store.scripts import LIST_PAGE, SET_PAGE
from ..wire.times import now
from .changes import Near, set_key
from .entry import JobEntry, entry_of, score_in
from .filters import Filter

# What one script reads at most: small enough that it delays the server's other clients by no more
# than some milliseconds.
PAGE: Final = 200
_BYTES: Final = 1 << 19
# For a queue whose jobs were selected where they were shown: how many may have been fetched since,
# how many may have come back to its head, and for how many seconds the rest is searched.
_BEFORE: Final = 1000
BEHIND: Final = 200
_SECONDS: Final = 1.0
# Behind every member of a score: JSON has no such byte.
_LAST: Final = b"\xff"


class Pages(Protocol):
    """Reads one set or queue of a server."""

    server: Server
    location: Location
    queue: str

    @property
    def depth(self) -> int:
        """How many entries Redis reads to find one of the last page."""

    def end_at_last(self) -> int:
        """Makes the entry that is the last one now the end: later ones are not read. Returns how
        many entries there are."""

    def next(self, count: int = PAGE) -> list[JobEntry]:
        """The next entries; none at the end."""

    def removed(self, members: Collection[bytes]) -> None:
        """Notes that these entries have left, of those that were read since the last call."""


class SetPages:
    """Reads a set by score and member, so it finds its place again after any change."""

    __slots__ = ("_after", "_direction", "_end", "location", "queue", "server")

    def __init__(
        self,
        server: Server,
        location: Location,
        *,
        newest_first: bool = False,
        score: float | None = None,
    ) -> None:
        """Begins with the members of ``score``; None: at its first, or newest, one."""
        self.server = server
        self.location = location
        self.queue = ""
        self._direction = "down" if newest_first else "up"
        self._after: tuple[Any, Any] = ("", "")
        self._end: tuple[float, bytes] | None = None
        if score is not None:
            self._after = (repr(score), _LAST if newest_first else b"")

    @property
    def depth(self) -> int:
        """Returns 0: Redis finds each member of a set by itself."""
        return 0

    def next(self, count: int = PAGE) -> list[JobEntry]:
        """The next entries; none at the end."""
        arguments = (self._direction, *self._after, count, _BYTES)
        key = set_key(self.server.keys, self.location)
        found = self.server.run(SET_PAGE, (key,), arguments)
        if found:
            self._after = (found[-1], found[-2])
        places = zip(map(float, found[1::2]), found[::2], strict=True)
        return [
            entry_of(self.server, raw, self.location, score=score)
            for score, raw in places
            if self._end is None or (score, raw) <= self._end
        ]

    def end_at_last(self) -> int:
        """Makes the member that is the last one now the end, by score and member, as Redis sorts
        them."""
        key = set_key(self.server.keys, self.location)
        asked = ("ZCARD", key), ("ZRANGE", key, -1, -1, "WITHSCORES")
        size, last = self.server.ask_leniently(*asked)
        self._end = next(((score, raw) for raw, score in last or ()), (-math.inf, b""))
        return size or 0

    def removed(self, members: Collection[bytes]) -> None:
        """Does nothing: a place in a set does not depend on other members."""


class SelectedPages:
    """Gives those entries of a set or a queue that were selected, and reads no others. ``depth``:
    how many entries of a queue Redis reads to find one of them."""

    __slots__ = ("_count", "_entries", "depth", "location", "queue", "server")

    def __init__(
        self,
        entries: Iterator[JobEntry],
        count: int,
        server: Server,
        location: Location,
        queue: str = "",
        depth: int = 0,
    ) -> None:
        self.server = server
        self.location = location
        self.queue = queue
        self.depth = depth
        self._count = count
        self._entries = entries

    def end_at_last(self) -> int:
        """Returns how many entries were selected: none comes later."""
        return self._count

    def next(self, count: int = PAGE) -> list[JobEntry]:
        """The next entries; none at the end."""
        return list(islice(self._entries, count))

    def removed(self, members: Collection[bytes]) -> None:
        """Does nothing: the entries are known."""


class ListPages:
    """Reads a queue from one of its ends, and follows the last entry that it has read. The list of
    the suspects comes before the queue's own; each page is of one list."""

    __slots__ = (
        *("_again", "_before", "_direction", "_last", "_left", "_line", "_number", "_read"),
        *("_window", "goes_on", "location", "queue", "server"),
    )

    def __init__(
        self, server: Server, queue: str, *, newest_first: bool = False, offset: int = 0
    ) -> None:
        self.server = server
        self.location: Location = "queued"
        self.queue = queue
        self._direction = "last" if newest_first else "next"
        # Whether each list is that of the suspects, and the number of the one that is being read.
        self._line = (False, True) if newest_first else (True, False)
        self._number = 0
        # Whether a list behind that one had entries when the last page was read.
        self.goes_on = False
        self._read = offset
        self._last = b""
        # How many entries of each list are left to read, and how many may be read again; None: any
        # number.
        self._left: list[int] | None = None
        self._again: list[int] = []
        # What was read since the reader has last said what it has removed, and the entry before it.
        self._window: list[bytes] = []
        self._before = b""

    @property
    def depth(self) -> int:
        """How many entries Redis reads to find one of the last page: all from the end of its list
        on."""
        return self._read

    @property
    def near(self) -> Near:
        """Where the entries are that were read since ``removed`` was called."""
        return Near(max(0, self._read - len(self._window)), len(self._window), self._last)

    def next(self, count: int = PAGE) -> list[JobEntry]:
        """The next entries; none at the end."""
        count = self._allowed(count)
        if not count:
            return []
        arguments = (self._direction, self._number + 1, self._read, self._last, count, _BYTES)
        reply = self.server.run(LIST_PAGE, self._lists(), arguments)
        number, before, more, *found = reply
        self.goes_on = bool(more)
        if number - 1 != self._number:
            self._begin(number - 1)
            found = found[: self._allowed(len(found))]
        alone = self._line[self._number]
        entries = [
            entry_of(self.server, e, "queued", self.queue, among_suspects=alone) for e in found
        ]
        self._bound(len(found), is_lost=before == 0)
        if not before:
            self._window, self._before = [], b""
        if self._left is not None:  # of an action
            self._window += found
        self._read = before + len(found)
        self._last = found[-1] if found else self._last
        return entries

    def end_at_last(self) -> int:
        """Makes the number of entries now the end: jobs are pushed to the left end, so later ones
        are read last."""
        found = self.server.ask_leniently(*(("LLEN", key) for key in self._lists()))
        sizes = [size or 0 for size in found]
        self._left, self._again = sizes, list(sizes)
        return sum(sizes)

    def _lists(self) -> list[str]:
        names = self.server.keys
        own, suspects = names.queue(self.queue), names.suspects(self.queue)
        return [suspects if alone else own for alone in self._line]

    def _begin(self, number: int) -> None:
        """Makes the first page of that list the next one."""
        self._number, self._read, self._last = number, 0, b""
        self._window, self._before = [], b""

    def _allowed(self, count: int) -> int:
        """How many entries may be read of the list that is next; 0 at the end of the last one."""
        if self._left is None:
            return count
        while self._left[self._number] <= 0:
            if self._number + 1 == len(self._line):
                return 0
            self._begin(self._number + 1)
        return min(count, self._left[self._number])

    def _bound(self, count: int, *, is_lost: bool) -> None:
        """Notes that ``count`` entries less are left. If the last one that was read was lost, the
        page is the first one again: what stood before that one is then read once more, but all
        entries once only, so that the reading ends where jobs are fetched faster than they are
        read."""
        if self._left is None:
            return
        again = min(self._again[self._number], self._read) if is_lost else 0
        self._again[self._number] -= again
        self._left[self._number] += again - count

    def removed(self, members: Collection[bytes]) -> None:
        """Makes the next page begin that many entries nearer to the end."""
        left = [member for member in self._window if member not in members]
        self._read -= len(self._window) - len(left)
        self._before = self._last = left[-1] if left else self._before
        self._window = []


def scan(pages: Pages, where: Filter) -> Iterator[JobEntry]:
    """The entries that ``where`` names, read as they are asked for."""
    while page := pages.next():
        moment = now()
        yield from (entry for entry in page if where.matches(entry, moment))


def selected(server: Server, location: Location, keys: Iterable[str]) -> Iterator[JobEntry]:
    """Reads the members of a set that have one of these ``JobEntry.key``."""
    wanted: dict[float, set[str]] = {}
    for key in keys:
        score = score_in(key)
        if score is not None:
            wanted.setdefault(score, set()).add(key)
    for score, chosen in wanted.items():
        yield from _of_score(server, location, score, chosen)


def _of_score(
    server: Server, location: Location, score: float, chosen: set[str]
) -> Iterator[JobEntry]:
    """The chosen ones among the members with this score; mostly there is only one."""
    pages, count = SetPages(server, location, score=score), 4
    while chosen and (page := pages.next(count)):
        for entry in page:
            if entry.key in chosen:
                chosen.discard(entry.key)
                yield entry
        if page[-1].score != score:
            return
        count = min(PAGE, count * 2)


def selected_in_queue(
    server: Server, queue: str, keys: Iterable[str], near: int
) -> Iterator[JobEntry]:
    """Reads the jobs of a queue that have one of these ``JobEntry.key``: first those around the
    number ``near``, then nearer to the head, as far as the time allows."""
    wanted = set(keys)
    begin = max(0, near - _BEFORE)
    for first, last in ((begin, near + BEHIND), (0, begin)):
        for entry in _between(server, queue, first, last) if wanted else ():
            if entry.key in wanted:
                wanted.discard(entry.key)
                yield entry
            if not wanted:
                break


def _between(server: Server, queue: str, first: int, last: int) -> Iterator[JobEntry]:
    """The jobs with the numbers from ``first`` to before ``last``, as far as the time allows."""
    pages, left = ListPages(server, queue, offset=first), last - first
    end = time.monotonic() + _SECONDS
    while left > 0 and (page := pages.next(min(PAGE, left))):
        left -= len(page)
        yield from page
        if time.monotonic() > end:
            return
