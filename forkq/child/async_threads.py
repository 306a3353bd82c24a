"""The threads of an async capsule: processors run its ``def`` jobs, and settling threads do what
would block its event loop.

An app can raise an exception in any thread at any bytecode. So a unit, or a piece of work, moves
into a place of its thread in a single call into C, where it is found if the thread dies.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager
from queue import SimpleQueue
from threading import get_ident
from time import monotonic
from typing import Any, Final, TypeAlias

from ..wire.lease import UnitOfWork
from .failure.retry import AddProblem
from .fetch_turn import FetchParts, Hand

_Work: TypeAlias = "Callable[[], None]"

# For each thread, so many of its capsule's ``def`` jobs are in the child: one runs, one waits.
_FOR_A_THREAD: Final = 2


class WaitingJobs:
    """The ``def`` jobs that an event loop has got, and that processors take. At most one waits for
    each thread. ``on_room`` is called when there is room again after there was none. Thread-safe.
    """

    def __init__(self, threads: int, fetch: FetchParts, on_room: Callable[[], None]) -> None:
        self._fetcher = fetch.fetcher
        self._leases = fetch.leases
        self._ends = fetch.ends
        self._most = _FOR_A_THREAD * threads
        self._threads = threads
        self._on_room = on_room
        self._jobs: SimpleQueue[Any] = SimpleQueue()  # None: no further job comes
        self._inside: dict[int, UnitOfWork] = {}  # those that wait or run, by sequence number
        self._was_full = self._is_closed = False

    @property
    def room(self) -> int:
        """How many more may come."""
        return 0 if self._is_closed else max(0, self._most - len(self._inside))

    @contextmanager
    def closed(self) -> Iterator[None]:
        """While others go back, none may come: it would be one that is back before an older one."""
        self._is_closed = True
        try:
            yield
        finally:
            self._is_closed = False
            self._tell_of_room()

    def knows(self, unit: UnitOfWork) -> bool:
        """Whether the job waits for a thread, or runs in one."""
        return self._inside.get(unit.sequence) is unit

    def offer(self, unit: UnitOfWork) -> bool:
        """Lets the job wait for a thread. False if there is no room for it."""
        if not self.room:
            self._was_full = True
            return False
        self._inside[unit.sequence] = unit
        self._jobs.put(unit)
        return True

    def take(self, hand: Hand) -> UnitOfWork | None:
        """The next job for a processor, which waits for one; None once there will be none. The last
        job in ``hand`` is done with."""
        self.leave(hand)
        hand.units.extend(map(self._jobs.get, (True,), (None,)))
        unit: UnitOfWork | None = hand.units[0]
        if unit is None:
            hand.units.clear()
        else:
            unit.taken = monotonic()
        return unit

    def abandon(self, hand: Hand) -> None:
        """Returns the job of a dead processor to its queue."""
        self._leases.occupy(hand, on=False)
        for unit in filter(None, hand.units):
            if self._leases.units().get(unit.sequence) is unit:
                self._fetcher.done(unit, self._ends.return_to_queue(unit))
        self.leave(hand)

    def leave(self, hand: Hand) -> None:
        """Notes that the jobs in ``hand`` are done with."""
        for unit in filter(None, hand.units):
            self._inside.pop(unit.sequence, None)
        hand.units.clear()
        self._tell_of_room()

    def _tell_of_room(self) -> None:
        if self._was_full and self.room:
            self._was_full = False
            self._on_room()

    def end(self) -> list[UnitOfWork]:
        """Has each processor end after its job. Returns the jobs that still wait, the oldest
        first."""
        waiting: list[UnitOfWork] = []
        while not self._jobs.empty():
            if (unit := self._jobs.get()) is not None:
                waiting.append(unit)
                self._inside.pop(unit.sequence, None)
        for _ in range(self._threads):
            self._jobs.put(None)
        return waiting


class SettlingThreads:
    """Threads that do what an event loop must not do, since it may block: they read large payloads,
    ask Redis what features want, and call the app's handlers. ``make_cells`` makes the place in
    which a thread notes, for the master, the job for which it works."""

    def __init__(
        self, count: int, make_cells: Callable[[], MutableSequence[int]], log_problem: AddProblem
    ) -> None:
        self._work: SimpleQueue[tuple[int, _Work]] = SimpleQueue()
        self._log_problem = log_problem
        self._threads = [_SettlingThread(self._work, make_cells()) for _ in range(count)]

    def start(self) -> None:
        """Starts the threads. Raises RuntimeError if the system has none left."""
        for thread in self._threads:
            thread.start()

    def call(self, sequence: int, work: _Work) -> None:
        """Has a thread do ``work`` for the unit with that number."""
        self._work.put((sequence, work))

    def replace_the_dead(self) -> None:
        """Starts a thread in the place of each that has died; it begins with the work that the dead
        one had. If the system has no thread left, the next call tries again."""
        for number, thread in enumerate(self._threads):
            if thread.has_died:
                self._threads[number] = replacement = _SettlingThread(self._work, thread.cells)
                replacement.place = thread.place
                try:
                    replacement.start()
                except RuntimeError as error:
                    self._threads[number] = thread
                    self._log_problem(error, "a thread that settles jobs cannot be started")


class _SettlingThread:
    def __init__(self, work: SimpleQueue[tuple[int, _Work]], cells: MutableSequence[int]) -> None:
        self.cells = cells
        self.place: deque[tuple[int, _Work]] = deque()
        self._work = work
        self._thread = threading.Thread(target=self._run, name="settle", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def has_died(self) -> bool:
        """Whether it was started and runs no more."""
        return self._thread.ident is not None and not self._thread.is_alive()

    def _run(self) -> None:
        self.cells[1] = get_ident()
        while True:
            if not self.place:
                self.place.extend(map(self._work.get, (True,), (None,)))
            self.cells[0], work = self.place[0]
            work()
            self.place.clear()
            self.cells[0] = 0
