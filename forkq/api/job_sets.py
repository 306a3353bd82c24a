"""The sets of jobs that do not wait in a queue: scheduled, retrying and dead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..store.find_job import Location
from .entry import JobEntry
from .filters import EVERY, Filter
from .groups import FailureGroups
from .outcome import OnProgress, Outcome
from .query import ask, keys


class JobSet:
    """A sorted set of jobs; use ``ScheduledSet``, ``RetrySet`` or ``DeadSet``.

    Iterating reads page after page, so a set of any size takes little memory, and jobs may come and
    go meanwhile: each job that is there all the time comes once. A payload that is no job is an
    entry, too (``JobEntry.malformed``).

    The actions on many jobs work in batches. Each batch is one short atomic script, so the server
    serves others in between. ``progress`` is called after each batch with the Outcome so far.
    ``dry_run`` only counts. ``most`` bounds how many are acted on. Raises ServerUnavailable; what
    earlier batches did stays.
    """

    location: Location

    __slots__ = ()

    @property
    def size(self) -> int:
        """How many jobs it has."""
        [count] = ask(("ZCARD", self._key))
        return int(count)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[JobEntry]:
        return self.scan()

    def scan(self, where: Filter = EVERY, *, newest_first: bool = False) -> Iterator[JobEntry]:
        """The jobs that ``where`` names, by score: the first due, or the first dead, comes first.
        Reads more only when they are asked for."""
        raise NotImplementedError

    def page(
        self, offset: int = 0, count: int = 25, *, newest_first: bool = False
    ) -> list[JobEntry]:
        """``count`` jobs from the one with the number ``offset`` on. Any page costs the same."""
        raise NotImplementedError

    def find(self, jid: str) -> JobEntry | None:
        """The job with that id. A large set is searched in short steps."""
        raise NotImplementedError

    def get(self, key: str) -> JobEntry | None:
        """The member that had this ``JobEntry.key``; None if it has left, or was changed."""
        raise NotImplementedError

    def count(self, where: Filter = EVERY) -> int:
        """How many jobs ``where`` names. With a filter, this reads the whole set."""
        raise NotImplementedError

    def groups(self, where: Filter = EVERY, *, most: int = 100_000) -> FailureGroups:
        """Its jobs grouped by class and error, the largest group first; of a larger set only the
        newest ``most`` jobs."""
        raise NotImplementedError

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
        raise NotImplementedError

    def add_all_to_queue(
        self,
        where: Filter = EVERY,
        *,
        dry_run: bool = False,
        most: int | None = None,
        progress: OnProgress | None = None,
    ) -> Outcome:
        """Sends them to their queues now, as ``JobEntry.add_to_queue`` does."""
        raise NotImplementedError

    def kill_all(
        self,
        where: Filter = EVERY,
        *,
        dry_run: bool = False,
        most: int | None = None,
        progress: OnProgress | None = None,
    ) -> Outcome:
        """Moves them to the dead set, which keeps its bounds: the oldest dead jobs may be dropped
        for them. Raises ForkqError for the dead set itself."""
        raise NotImplementedError

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
        raise NotImplementedError

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
        raise NotImplementedError

    def clear(self) -> int:
        """Deletes all at once, and frees their memory in the background. Returns how many there
        were. This cannot be undone; ``delete_all(undo=True)`` can."""
        raise NotImplementedError

    @property
    def _key(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class ScheduledSet(JobSet):
    """Jobs that were pushed for a later time, the first due first."""

    location: Location = "scheduled"

    __slots__ = ()

    @property
    def _key(self) -> str:
        return keys().schedule


class RetrySet(JobSet):
    """Failed jobs that wait for their next try, the first due first."""

    location: Location = "retrying"

    __slots__ = ()

    @property
    def _key(self) -> str:
        return keys().retry


class DeadSet(JobSet):
    """Jobs that forkq or Sidekiq gave up on, the oldest death first."""

    location: Location = "dead"

    __slots__ = ()

    @property
    def _key(self) -> str:
        return keys().dead


def job_set(location: Any) -> JobSet:
    """The set of that location: "scheduled", "retrying" or "dead". Raises ForkqError."""
    raise NotImplementedError
