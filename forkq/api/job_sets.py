"""The sets of jobs that do not wait in a queue: scheduled, retrying and dead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import ForkqError
from ..store.dead_set import Bounds, noted_bounds
from ..store.find_job import Location
from ..store.find_job import find as find_job
from .bulk import Decide, OnProgress, Orders, Outcome, act, delete, kill
from .changes import checked_queue, enqueued, moved, retried, set_key
from .entry import JobEntry, entry_of, found_entry
from .filters import EVERY, Filter
from .groups import FailureGroups, grouped
from .pages import SelectedPages, SetPages, scan, selected
from .query import ask, ask_at_once, ask_leniently, keys, session


class JobSet:
    """A sorted set of jobs; use ``ScheduledSet``, ``RetrySet`` or ``DeadSet``.

    Iterating reads page after page, so a set of any size takes little memory, and jobs may come and
    go meanwhile: each job that is there all the time comes once. A payload that is no job is an
    entry, too (``JobEntry.malformed``).

    The actions on many jobs work in batches. Each batch is one short atomic script, so the server
    serves others in between. ``progress`` is called after each batch with the Outcome so far.
    ``dry_run`` only counts. ``most`` bounds how many are acted on. They end: they act on all jobs
    that were there at the beginning, and leave out those that come later behind the last of them,
    and those that they have sent to a queue and that have failed again. Raises ServerUnavailable;
    what earlier batches did stays, and its ``outcome`` tells it.
    """

    location: Location

    __slots__ = ()

    @property
    def size(self) -> int:
        """How many jobs it has."""
        [count] = ask_leniently(("ZCARD", self._key))
        return count or 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[JobEntry]:
        return self.scan()

    def scan(self, where: Filter = EVERY, *, newest_first: bool = False) -> Iterator[JobEntry]:
        """The jobs that ``where`` names, by score: the first due, or the first dead, comes first.
        Reads more only when they are asked for."""
        if where.keys is not None:
            return (e for e in selected(self.location, where.keys) if where.matches(e))
        return scan(SetPages(self.location, newest_first=newest_first), where)

    def page(
        self, offset: int = 0, count: int = 25, *, newest_first: bool = False
    ) -> list[JobEntry]:
        """``count`` jobs from the one with the number ``offset`` on. Any page costs the same."""
        order = ("REV",) if newest_first else ()
        last = offset + count - 1
        [found] = ask_leniently(("ZRANGE", self._key, offset, last, *order, "WITHSCORES"))
        return [entry_of(raw, self.location, score=score) for raw, score in found or ()]

    def find(self, jid: str) -> JobEntry | None:
        """The job with that id. A large set is searched in short steps."""
        here = session()
        with here.connection() as connection:
            found = find_job(connection, here.keys, jid, (self.location,), ())
        return None if found is None else found_entry(found)

    def get(self, key: str) -> JobEntry | None:
        """The member that had this ``JobEntry.key``; None if it has left, or was changed."""
        return next(selected(self.location, (key,)), None)

    def count(self, where: Filter = EVERY) -> int:
        """How many jobs ``where`` names. With a filter, this reads the whole set."""
        return self.size if where == EVERY else sum(1 for _ in self.scan(where))

    def groups(self, where: Filter = EVERY, *, most: int = 100_000) -> FailureGroups:
        """Its jobs grouped by class and error, the largest group first; of a larger set only
        ``most`` jobs, those with the highest scores: the latest deaths."""
        return grouped((self.location,), where, most)

    def retry_all(
        self,
        where: Filter = EVERY,
        *,
        fresh: bool = False,
        dry_run: bool = False,
        most: int | None = None,
        progress: OnProgress | None = None,
    ) -> Outcome:
        """Sends them to their queues now, as ``JobEntry.retry`` does; the oldest first."""
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
        """Sends them to their queues now, as ``JobEntry.add_to_queue`` does."""
        orders = Orders(where, dry_run, most, progress)
        return self._act(lambda e, at: enqueued(e.checked_job(), at), orders)

    def kill_all(
        self,
        where: Filter = EVERY,
        *,
        dry_run: bool = False,
        most: int | None = None,
        progress: OnProgress | None = None,
    ) -> Outcome:
        """Moves them to the dead set, as ``JobEntry.kill`` does. Raises ForkqError for the dead set
        itself."""
        if self.location == "dead":
            raise ForkqError("the jobs of the dead set are dead: use delete_all")
        return self._act(kill, Orders(where, dry_run, most, progress))

    def move_all(
        self,
        queue: str,
        where: Filter = EVERY,
        *,
        dry_run: bool = False,
        most: int | None = None,
        progress: OnProgress | None = None,
    ) -> Outcome:
        """Sends them to another queue, as ``JobEntry.move`` does."""
        name = checked_queue(queue)
        orders = Orders(where, dry_run, most, progress, not_in=name)
        return self._act(lambda e, at: moved(e, name, at), orders)

    def delete_all(
        self,
        where: Filter = EVERY,
        *,
        undo: bool = False,
        dry_run: bool = False,
        most: int | None = None,
        progress: OnProgress | None = None,
    ) -> Outcome:
        """Deletes them. With ``undo``, Redis keeps them for ten minutes, in which ``undo`` with the
        token ``Outcome.undo`` puts them back."""
        return self._act(delete, Orders(where, dry_run, most, progress, undo))

    def clear(self) -> int:
        """Deletes all at once, and frees their memory in the background. Returns how many there
        were. This cannot be undone; ``delete_all(undo=True)`` can."""
        ask(("ZCARD", self._key))  # raises WrongType: another program's value is not deleted
        [count, _] = ask_at_once(("ZCARD", self._key), ("UNLINK", self._key))
        return int(count)

    @property
    def _key(self) -> str:
        return set_key(self.location)

    def _act(self, decide: Decide, orders: Orders) -> Outcome:
        chosen = orders.where.keys
        if chosen is None:
            return act(SetPages(self.location), decide, orders)
        return act(SelectedPages(self.location, chosen), decide, orders)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class ScheduledSet(JobSet):
    """Jobs that were pushed for a later time, the first due first."""

    location: Location = "scheduled"

    __slots__ = ()


class RetrySet(JobSet):
    """Failed jobs that wait for their next try, the first due first."""

    location: Location = "retrying"

    __slots__ = ()


class DeadSet(JobSet):
    """Jobs that forkq or Sidekiq gave up on, the oldest death first.

    A process that buries a job trims the set to ``bounds``: the oldest deaths go for good. What a
    person does trims nothing.
    """

    location: Location = "dead"

    __slots__ = ()

    @property
    def bounds(self) -> Bounds | None:
        """How many jobs it keeps (``size``), and for how many ``days``: ``dead_max`` and
        ``dead_days`` of the trees that run, or that ran last; of several trees the smallest. None
        if no tree has noted them."""
        [notes] = ask_leniently(("ZRANGE", keys().dead_bounds, 0, -1, "WITHSCORES"))
        return noted_bounds(notes or ())


def job_set(location: Any) -> JobSet:
    """The set of that location: "scheduled", "retrying" or "dead". Raises ForkqError."""
    kinds: dict[str, type[JobSet]] = {
        kind.location: kind for kind in (ScheduledSet, RetrySet, DeadSet)
    }
    if location not in kinds:
        raise ForkqError(f"there is no set {location!r}: choose one of {', '.join(kinds)}")
    return kinds[location]()
