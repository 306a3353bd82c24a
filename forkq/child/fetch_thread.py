"""A thread drives the fetcher for a consumer without processors, such as an event loop."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from ..wire.lease import UnitOfWork
from .failure.ends import Ending
from .fetch_turn import FetchParts


class FetchThread:
    """The consumer runs as many units at once as its leases have capacity. ``begin`` gets them, a
    batch at a time, in this thread: it must not block. Each unit comes back by ``done``.

    The thread ends once it is told to be quiet, the consumer has ended all units, and Redis knows
    it; or of an exception, also one of ``begin``. Then ``give_back`` of the fetcher returns what is
    left. ``left`` has the batch that ``begin`` gets, until it has returned. ``fetches_no_more``: no
    further unit comes.
    """

    def __init__(self, fetch: FetchParts, begin: Callable[[Sequence[UnitOfWork]], None]) -> None:
        self._fetcher = fetch.fetcher
        self._leases = fetch.leases
        self._begin = begin
        self.left: deque[UnitOfWork] = deque()
        self.fetches_no_more = False
        self._news = threading.Event()  # once quiet: a unit has ended
        self._thread = threading.Thread(target=self._run, name="fetch", daemon=True)

    def start(self) -> None:
        """Starts the thread. Raises RuntimeError if the system has no thread left."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def done(self, unit: UnitOfWork, ending: Ending | None = None) -> float:
        """Notes that ``unit`` has ended, and another one may begin. Never blocks; any thread may
        call. What becomes of ``ending`` is told in the thread of this object. Returns the seconds
        since the unit was taken."""
        seconds = self._fetcher.done(unit, ending)
        self._news.set()
        return seconds

    def quiet(self) -> None:
        """Lets nothing more begin, but what is leased already."""
        self._fetcher.quiet()
        self._news.set()

    def join(self, timeout: float | None = None) -> bool:
        """Waits for the end of the thread. Returns whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._drive()
        except BaseException:  # the consumer's, or one that the app has raised in this thread
            self._fetcher.drop_locks()
            raise

    def _drive(self) -> None:
        take = self._leases.taker(self.left)
        while True:
            if self._fetcher.next(self.left, take) is not None:
                with suppress(IndexError):  # there are no more
                    deque(take, maxlen=0)  # the rest, in one call into C
            if self.left:
                self._begin(tuple(self.left))
                self.left.clear()
            elif not self._fetcher.step():
                self.fetches_no_more = True
                if self._leases.count().running == 0:
                    return
                self._news.wait()
                self._news.clear()
