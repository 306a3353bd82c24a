"""Jobs that wait in a queue: those that a person has selected, found near where they were shown."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from .. import api
from ..api import bulk
from ..api.bulk import Orders
from ..api.changes import moved
from ..api.entry import found_entry
from ..api.filters import EVERY
from ..api.pages import PAGE, ListPages
from ..api.running import in_sidekiq
from ..default_client import default
from ..store.find_job import Location
from ..store.find_job import find as find_job
from .job_acts import Chosen

_BEFORE: Final = 1000  # jobs that may have been fetched since they were shown
_BEHIND: Final = 200  # jobs that may have come back to the head of the queue
_SECONDS: Final = 1.0  # for the search in the rest


def selected(queue: str, keys: Sequence[str], at: int) -> Chosen:
    """Those of the jobs with these ``JobEntry.key`` that are still there. The last of them had
    about the number ``at``; 0 is the next one."""
    found = find(queue, keys, at)
    picked = PickedJobs(queue, found, min(at, api.Queue(queue).size) + _BEHIND)
    jids = tuple(entry.jid for entry in found)
    return Chosen("queued", EVERY, len(found), jids, queue=queue, picked=picked)


def every(queue: str) -> Chosen:
    """All jobs of the queue."""
    return Chosen("queued", EVERY, api.Queue(queue).size, (), by_filter=True, queue=queue)


def find(queue: str, keys: Sequence[str], at: int) -> list[api.JobEntry]:
    """The jobs with these keys: first those around the number ``at``, then nearer to the head."""
    wanted, found = set(keys), list[api.JobEntry]()
    at = min(at, api.Queue(queue).size)
    begin = max(0, at - _BEFORE)
    for first, last in ((begin, at + _BEHIND), (0, begin)):
        for entry in _between(queue, first, last):
            if entry.key in wanted:
                wanted.discard(entry.key)
                found.append(entry)
            if not wanted:
                return found
    return found


def find_jid(queue: str, jid: str) -> api.JobEntry | None:
    """The job of that id, if it runs or waits in the queue, or runs in a process of Sidekiq. Reads
    no other queue."""
    client = default()
    with client.connection() as connection:
        found = find_job(connection, client.keys, jid, ("running", "queued"), (queue,))
    found = found or in_sidekiq(jid)
    return None if found is None else found_entry(found)


def _between(queue: str, first: int, last: int) -> Iterator[api.JobEntry]:
    """The jobs with the numbers from ``first`` to before ``last``, as far as the time allows."""
    pages, left = ListPages(queue, offset=first), last - first
    end = time.monotonic() + _SECONDS
    while left > 0 and (page := pages.next(min(PAGE, left))):
        left -= len(page)
        yield from page
        if time.monotonic() > end:
            return


class PickedJobs:
    """Jobs of a queue that were found. An action on them reads no others."""

    def __init__(self, queue: str, entries: Sequence[api.JobEntry], depth: int) -> None:
        self._queue = queue
        self._entries = entries
        self._depth = depth

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self._entries)

    def delete_all(self, where: api.Filter, *, undo: bool) -> api.Outcome:
        """Deletes them."""
        return self._act(bulk.delete, Orders(where, undo=undo))

    def kill_all(self, where: api.Filter) -> api.Outcome:
        """Moves them to the dead set."""
        return self._act(bulk.kill, Orders(where))

    def move_all(self, queue: str, where: api.Filter) -> api.Outcome:
        """Moves them to another queue, in order."""
        return self._act(lambda entry, at: moved(entry, queue, at), Orders(where))

    def _act(self, decide: bulk.Decide, orders: Orders) -> api.Outcome:
        return bulk.act(_PickedPages(self._queue, self._entries, self._depth), decide, orders)


class _PickedPages:
    """They, as pages for an action."""

    location: Location = "queued"

    def __init__(self, queue: str, entries: Sequence[api.JobEntry], depth: int) -> None:
        self.queue = queue
        self.depth = depth
        self._left = list(entries)
        self._count = len(entries)

    def end_at_last(self) -> int:
        """There are no others."""
        return self._count

    def next(self, count: int = PAGE) -> list[api.JobEntry]:
        """The next ones."""
        page, self._left = self._left[:count], self._left[count:]
        return page

    def removed(self, members: Collection[bytes]) -> None:
        """Nothing to do: they are known."""
