"""What a queue and the sets of jobs have in common: reading their jobs, and acting on many."""

from __future__ import annotations

from collections.abc import Iterator

from ..cancelling import too_many
from ..errors import ForkqError
from ..features.cancel.parts import MOST
from ..servers import Server, first_found
from ..store.find_job import Location
from .bulk import Decide, OnProgress, Orders, Outcome, act, delete, kill, read_jobs
from .changes import checked_queue, moved
from .door import OnServer
from .entry import JobEntry
from .filters import EVERY, Filter
from .find import cancel_entries, find_among
from .pages import Pages


class JobHolder(OnServer):
    """A queue, or a set of jobs: use ``Queue``, ``ScheduledSet``, ``RetrySet`` or ``DeadSet``.

    Iterating reads page after page, so any number of jobs takes little memory, and jobs may come
    and go meanwhile: each job that is there all the time comes once. A payload that is no job is an
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
        raise NotImplementedError

    def __iter__(self) -> Iterator[JobEntry]:
        return self.scan()

    def scan(self, where: Filter = EVERY, *, newest_first: bool = False) -> Iterator[JobEntry]:
        """The jobs that ``where`` names."""
        raise NotImplementedError

    def find(self, jid: str) -> JobEntry | None:
        """The job with that id. Very many jobs are searched in short steps."""
        places = (self.location,)
        return first_found(
            self._servers, lambda server: find_among(server, jid, places, self._queues)
        )

    def delete_all(
        self,
        where: Filter = EVERY,
        *,
        undo: bool = False,
        dry_run: bool = False,
        most: int | None = None,
        progress: OnProgress | None = None,
    ) -> Outcome:
        """Deletes the jobs that ``where`` names. With ``undo``, Redis keeps them for ten minutes,
        in which ``undo`` with the token ``Outcome.undo`` restores them."""
        return self._act(delete, Orders(where, dry_run, most, progress, undo))

    def kill_all(
        self,
        where: Filter = EVERY,
        *,
        dry_run: bool = False,
        most: int | None = None,
        progress: OnProgress | None = None,
    ) -> Outcome:
        """Moves the jobs that ``where`` names to the dead set, as ``JobEntry.kill`` does. Raises
        ForkqError for the dead set itself."""
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
        """Sends the jobs that ``where`` names to another queue, as ``JobEntry.move`` does; jobs of
        a queue keep their order."""
        name = checked_queue(queue)
        if name in self._queues:
            return Outcome()
        orders = Orders(where, dry_run, most, progress, not_in=name)
        return self._act(lambda e, at: moved(e, name, at), orders)

    def cancel_all(
        self,
        where: Filter = EVERY,
        *,
        dry_run: bool = False,
        most: int | None = None,
        progress: OnProgress | None = None,
    ) -> Outcome:
        """Cancels the jobs that ``where`` names, as ``forkq.cancel`` does: the leader removes them
        within seconds, wherever they are by then. This cannot be undone. Raises ForkqError, and
        cancels none, if too many jobs would be waiting for their cancellation; and for the dead
        set."""
        if self.location == "dead":
            raise ForkqError("the jobs of the dead set have ended: use delete_all")
        orders = Orders(where, dry_run, most, progress)
        outcome, found = read_jobs(self.scan(where), orders, self.size, MOST)
        if len(found) > MOST:
            raise too_many()
        cancel_entries(found)
        return outcome

    @property
    def _servers(self) -> tuple[Server, ...]:
        """The servers that are read: several of a queue that is spread."""
        return (self.server,)

    @property
    def _queues(self) -> tuple[str, ...]:
        """The names of the queues that are read."""
        return ()

    def _pages(self, where: Filter) -> Pages:
        """Reads what an action on the jobs that ``where`` names must see."""
        raise NotImplementedError

    def _act(self, decide: Decide, orders: Orders) -> Outcome:
        return act(self._pages(orders.where), decide, orders)
