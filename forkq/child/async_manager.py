"""What runs the jobs of an async child: the thread that fetches, the event loop, and the threads
for ``def`` jobs. The child's main thread starts, quiets, interrupts and mends it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..wire.lease import UnitOfWork
from .async_threads import SettlingThreads
from .coroutine_jobs import CoroutineJobs
from .fetch_thread import FetchThread
from .fetch_turn import FetchParts
from .heartbeat.stats import Tally, Totals, total
from .interrupt import InterruptRegion
from .manager import Manager

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class AsyncManager:
    """Has what a Manager has. ``threads`` are the processors of ``def`` jobs, ``tally`` the counts
    of the coroutines."""

    def __init__(
        self,
        fetch: FetchParts,
        jobs: CoroutineJobs,
        threads: Manager,
        settling: SettlingThreads,
        tally: Tally,
        log: FilteringBoundLogger,
    ) -> None:
        self._fetch = fetch
        self._jobs = jobs
        self._threads = threads
        self._settling = settling
        self._tally = tally
        self._log = log
        self._fetching = FetchThread(fetch, jobs.begin_soon)
        self._is_open = self._is_quiet = False

    def start(self) -> None:
        """Starts all threads that run jobs or settle them; they get none before ``open``. Raises
        RuntimeError if the system has no thread left."""
        self._settling.start()
        self._threads.start()

    def open(self) -> None:
        """Lets the loop take jobs from now on."""
        self._threads.open()
        self._is_open = True
        self._start_fetching()

    def quiet(self) -> None:
        """Lets no further job begin."""
        self._is_quiet = True
        self._jobs.quiet()
        self._fetching.quiet()
        self._threads.quiet()

    def interrupt(self) -> int:
        """Cancels each coroutine that still runs, and raises Shutdown in the threads that run a
        job. Returns how many there are."""
        interrupted = sum(region.interrupt() for region in self._jobs.regions)
        return interrupted + self._threads.interrupt()

    def lose(self, unit: UnitOfWork) -> None:
        """Ends the coroutine of ``unit``, if it is one: another host has the job."""
        for region in self.regions:
            region.lose(unit)

    @property
    def idle(self) -> bool:
        """Whether nothing runs any more. What was interrupted still has its lease."""
        fetching = self._fetching
        gets_no_more = fetching.fetches_no_more or not fetching.alive
        # In this order, which is that of a unit's way.
        is_empty = gets_no_more and not fetching.left and self._jobs.is_empty
        return is_empty and self._threads.idle

    @property
    def busy(self) -> int:
        """How many jobs are in progress now."""
        return self._threads.busy

    @property
    def unfinished(self) -> int:
        """How many jobs are in progress, and one more while Redis has leases of jobs that are
        done."""
        return self._threads.unfinished

    @property
    def regions(self) -> list[InterruptRegion]:
        """The region of each coroutine and of each thread."""
        return [*self._jobs.regions, *self._threads.regions]

    def counts(self) -> tuple[int, int]:
        """How many jobs were processed, and how many of them failed."""
        processed, failed = self._threads.counts()
        return processed + self._tally.processed, failed + self._tally.failed

    def tally(
        self,
        ran_twice: Mapping[str, int] | None = None,
        ended: Mapping[str, int] | None = None,
    ) -> Totals:
        """The counts of all jobs, by class."""
        return total([*self._threads.tallies, self._tally], ran_twice, ended)

    def replace_the_dead(self) -> None:
        """Starts a thread in the place of each that has died of an exception of the app."""
        self._jobs.end_pauses()
        self._threads.replace_the_dead()
        self._settling.replace_the_dead()
        if self._is_open and not self._is_quiet and not self._fetching.alive:
            self._log.error("the thread that fetches has died; replaced")
            left = tuple(self._fetching.left)
            self._fetching = FetchThread(self._fetch, self._jobs.begin_soon)
            self._jobs.begin_soon(left)
            self._start_fetching()

    def _start_fetching(self) -> None:
        """Starts the thread. If the system has none left, the next turn of the main loop tries
        again."""
        try:
            self._fetching.start()
        except RuntimeError as error:
            self._log.error("the thread that fetches cannot be started", error=str(error))
