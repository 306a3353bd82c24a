"""The sets of jobs that do not wait in a queue: scheduled, retrying and dead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ..errors import ForkqError
from ..servers import Server
from ..store.dead_set import Bounds, noted_bounds
from ..store.scripts import MARKED_IN_SET
from .bulk import OnProgress, Orders, Outcome
from .changes import DELETED, DONE, apply, enqueued, retried, set_key
from .entry import JobEntry, entry_of
from .filters import EVERY, Filter, check_filter
from .groups import FailureGroups, grouped
from .job_holder import JobHolder
from .pages import Pages, SelectedPages, SetPages, scan, selected

# How many members one script looks at for features, and about how many bytes.
_PAGE: Final = 1000
_BYTES: Final = 1 << 20


class JobSet(JobHolder):
    """A sorted set of jobs; use ``ScheduledSet``, ``RetrySet`` or ``DeadSet``. Without a server it
    is the set of the default server."""

    __slots__ = ()

    @property
    def size(self) -> int:
        """How many jobs it has."""
        [count] = self.server.ask_leniently(("ZCARD", self._key))
        return count or 0

    def __len__(self) -> int:
        return self.size

    def scan(self, where: Filter = EVERY, *, newest_first: bool = False) -> Iterator[JobEntry]:
        """The jobs that ``where`` names, by score: the first due, or the first dead, comes first.
        Reads more only when they are asked for."""
        check_filter(where)
        if where.keys is not None:
            return (e for e in selected(self.server, self.location, where.keys) if where.matches(e))
        return scan(SetPages(self.server, self.location, newest_first=newest_first), where)

    def page(
        self, offset: int = 0, count: int = 25, *, newest_first: bool = False
    ) -> list[JobEntry]:
        """A page of ``count`` jobs, from the job with the number ``offset`` on. Any page costs the
        same."""
        order = ("REV",) if newest_first else ()
        last = offset + count - 1
        command = ("ZRANGE", self._key, offset, last, *order, "WITHSCORES")
        [found] = self.server.ask_leniently(command)
        return [
            entry_of(self.server, raw, self.location, score=score) for raw, score in found or ()
        ]

    def get(self, key: str) -> JobEntry | None:
        """The member that had this ``JobEntry.key``; None if it has left, or was changed."""
        return next(selected(self.server, self.location, (key,)), None)

    def count(self, where: Filter = EVERY) -> int:
        """How many jobs ``where`` names. With a filter, this reads the whole set."""
        return self.size if where == EVERY else sum(1 for _ in self.scan(where))

    def groups(self, where: Filter = EVERY, *, most: int = 100_000) -> FailureGroups:
        """The jobs of the set grouped by class and error, the largest group first; of a larger set
        only ``most`` jobs, those with the highest scores: the latest deaths."""
        return grouped(self.server, (self.location,), where, most)

    def retry_all(
        self,
        where: Filter = EVERY,
        *,
        fresh: bool = False,
        dry_run: bool = False,
        most: int | None = None,
        progress: OnProgress | None = None,
    ) -> Outcome:
        """Sends the jobs that ``where`` names to their queues now, as ``JobEntry.retry`` does; the
        oldest first."""
        orders = Orders(where, dry_run, most, progress)
        return self._act(lambda e, at: retried(e.checked_job(), at, fresh=fresh), orders)

    def add_all_to_queue(
        self,
        where: Filter = EVERY,
        *,
        dry_run: bool = False,
        most: int | None = None,
        progress: OnProgress | None = None,
    ) -> Outcome:
        """Sends the jobs that ``where`` names to their queues now, as ``JobEntry.add_to_queue``
        does."""
        orders = Orders(where, dry_run, most, progress)
        return self._act(lambda e, at: enqueued(e.checked_job(), at), orders)

    def clear(self) -> int:
        """Deletes all jobs of the set at once, those with features first, and frees their memory in
        the background. Returns how many there were. This cannot be undone;
        ``delete_all(undo=True)`` can."""
        # Raises WrongType: another program's value is not deleted.
        self.server.ask(("ZCARD", self._key))
        ended = self._end_marked() if self.location != "dead" else 0  # their burial has told all
        [count, _] = self.server.ask_at_once(("ZCARD", self._key), ("UNLINK", self._key))
        return int(count) + ended

    def _end_marked(self) -> int:
        """Deletes the jobs that may have features, in pages. Returns how many."""
        looked = ended = 0
        while True:
            page = (looked, _PAGE, _BYTES)
            count, *found = self.server.run(MARKED_IN_SET, [self._key], page)
            results = apply(self.server, self.location, "", [(raw, DELETED) for raw in found])
            looked, ended = looked + count - len(found), ended + results.count(DONE)
            if not count:
                return ended

    @property
    def _key(self) -> str:
        return set_key(self.server.keys, self.location)

    def _pages(self, where: Filter) -> Pages:
        check_filter(where)
        if where.keys is None:
            return SetPages(self.server, self.location)
        found = selected(self.server, self.location, where.keys)
        return SelectedPages(found, len(where.keys), self.server, self.location)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class ScheduledSet(JobSet):
    """Jobs that were pushed for a later time, the first due first."""

    location = "scheduled"

    __slots__ = ()


class RetrySet(JobSet):
    """Failed jobs that wait for their next try, the first due first."""

    location = "retrying"

    __slots__ = ()


class DeadSet(JobSet):
    """Jobs that forkq or Sidekiq gave up on, the oldest death first.

    A process that buries a job trims the set to ``bounds``: the oldest deaths go for good. What a
    person does trims nothing.
    """

    location = "dead"

    __slots__ = ()

    @property
    def bounds(self) -> Bounds | None:
        """How many jobs it keeps (``size``), and for how many ``days``: ``dead_max`` and
        ``dead_days`` of the trees that run, or that ran last; of several trees the smallest. None
        if no tree has noted them."""
        bounds = self.server.keys.dead_bounds
        [notes] = self.server.ask_leniently(("ZRANGE", bounds, 0, -1, "WITHSCORES"))
        return noted_bounds(notes or ())


def job_set(location: Any, server: Server | None = None) -> JobSet:
    """The set of that location: "scheduled", "retrying" or "dead". Raises ForkqError."""
    kinds: dict[str, type[JobSet]] = {
        kind.location: kind for kind in (ScheduledSet, RetrySet, DeadSet)
    }
    if location not in kinds:
        raise ForkqError(f"there is no set {location!r}: choose one of {', '.join(kinds)}")
    return kinds[location](server)
