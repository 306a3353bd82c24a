"""Whose turn it is to talk to Redis: one processor at a time fetches for all, the others wait.

To pass the turn on costs a thread switch, which is more than a tiny job takes. So a processor whose
jobs are tiny reserves the turn while it performs them, and resumes it for the next fetch. One of
those that wait watches it: if the processor does not take its next job within a millisecond, its
job was not tiny, and the watcher takes the turn over (docs/decisions/003-leader-follower.md has the
figures).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import repeat
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias, TypeVar

from ...wire.lease import UnitOfWork

# A job is tiny if it takes less than a thread switch or any I/O would: while it runs, other
# processors could not have done anything with the turn.
_TINY: Final = 50e-6
_SHARE: Final = 1 / 16  # of the last job in the mean run time
_TINY_JOBS: Final = 32  # so many in a row, and the turn is reserved
# Seconds. Python itself lets a busy thread run for 5 ms before another one gets the interpreter.
_RESERVED_FOR: Final = 1e-3

_T = TypeVar("_T")
_Place: TypeAlias = "deque[bool]"


def moves(
    source: deque[_T], target: deque[_T], pop: Callable[[deque[_T]], _T] = deque.pop
) -> Iterator[None]:
    """Each ``next()`` moves one item from ``source`` to ``target``, or raises IndexError if there
    is none. That is a single call into C, so an exception from outside strikes before or after it:
    the item is always in one of the two."""
    return map(target.append, map(pop, repeat(source)))


class Holdings:
    """What one processor holds: the unit that it took last, and perhaps the turn.

    An app can raise an exception in any thread at any bytecode (``PyThreadState_SetAsyncExc``). So
    units and turn move by ``moves``, and this object tells who holds what even after its thread has
    died. ``turn`` holds the token of the turn while the processor uses it; ``reserved`` holds it
    while the processor performs a job, since ``reserved_at``, and another one may take it over.
    """

    __slots__ = ("reserve", "reserved", "reserved_at", "resume", "take_ready", "turn", "units")

    def __init__(self) -> None:
        self.units: deque[UnitOfWork] = deque()
        self.take_ready: Iterator[None] | None = None  # set by InFlight
        self.turn: _Place = deque()
        self.reserved: _Place = deque()
        self.reserved_at = 0.0
        self.reserve = moves(self.turn, self.reserved)
        self.resume = moves(self.reserved, self.turn)


class FetchTurn:
    """One token: free, held by a processor, or reserved by one. Who holds it has the turn.
    ``run_time``: how long a job took lately, in seconds."""

    def __init__(self) -> None:
        self._free: SimpleQueue[bool] = SimpleQueue()
        self._free.put(True)
        self._first_waiting = threading.RLock()
        self._absent: Holdings | None = None  # who reserved the turn last
        self._watched = False
        self._tiny_jobs = 0
        self.run_time = 0.0

    def resume(self, holdings: Holdings) -> bool:
        """Takes back the turn that this processor reserved. False if it did not, or lost it."""
        if not holdings.reserved:
            return False
        try:
            next(holdings.resume)
        except IndexError:  # a watcher took it over just now
            return False
        return True

    def wait(self, holdings: Holdings) -> None:
        """Waits for the turn. The first that waits watches a processor that has reserved it."""
        with self._first_waiting:
            while not self._acquired(holdings, self._seconds_to_sleep()):
                if self._taken_over(holdings):
                    break
            self._watched = False

    def leave(self, holdings: Holdings, *, performs: bool) -> None:
        """A processor that has the turn goes to perform a job, or ends."""
        if performs and self._watched and self._tiny_jobs >= _TINY_JOBS:
            holdings.reserved_at = time.monotonic()
            self._absent = holdings
            next(holdings.reserve)
            # Only now look again: either we see here that no processor watches any more, or the
            # one that stopped watching sees in _seconds_to_sleep that the turn is reserved.
            if self._is_watched() or not self.resume(holdings):
                return
        self.release(holdings)

    def renew(self, holdings: Holdings, since: float) -> None:
        """A processor that has reserved the turn performs its next job ``since`` then, without a
        fetch in between: the turn stays reserved as long as it would be reserved anew."""
        if self._watched and self._tiny_jobs >= _TINY_JOBS:
            holdings.reserved_at = since  # if a watcher took the turn over just now, no harm
        else:
            self.release(holdings)

    def release(self, holdings: Holdings) -> None:
        """Frees the turn if ``holdings`` has it: its processor waits for no job, or is dead."""
        if holdings.reserved:
            self._put_back(holdings.reserved)
        if holdings.turn:
            self._put_back(holdings.turn)

    def recover(self, holdings: Holdings) -> None:
        """An exception ended a call here of this thread: frees all that the thread holds."""
        with suppress(RuntimeError):  # another thread holds it
            self._first_waiting.release()
        self.release(holdings)

    def performed(self, seconds: float) -> None:
        """A job took so long. Counted without a lock: a count that is missed does no harm. One long
        job among short ones, or a moment without a CPU, changes ``run_time`` little."""
        if seconds < _TINY:
            self._tiny_jobs += 1
        else:
            self._tiny_jobs = 0
            seconds = min(seconds, 4 * self.run_time + _TINY)
        self.run_time += (seconds - self.run_time) * _SHARE

    def idle(self) -> None:
        """There are no jobs: the watcher may sleep until it is woken."""
        self._tiny_jobs = 0

    def _acquired(self, holdings: Holdings, seconds: float | None) -> bool:
        try:
            holdings.turn.extend(map(self._free.get, (True,), (seconds,)))
        except Empty:
            return False
        return True

    def _put_back(self, token: _Place) -> None:
        with suppress(IndexError):  # a watcher took it over just now
            any(map(self._free.put, map(deque.pop, (token,))))

    def _is_watched(self) -> bool:
        return self._watched

    def _seconds_to_sleep(self) -> float | None:
        """How long the watcher may sleep before it looks again; None: until it is woken."""
        self._watched = self._tiny_jobs >= _TINY_JOBS
        absent = self._absent
        is_reserved = absent is not None and bool(absent.reserved)
        return _RESERVED_FOR if self._watched or is_reserved else None

    def _taken_over(self, holdings: Holdings) -> bool:
        """Takes the turn over from a processor that has reserved it for too long."""
        absent = self._absent
        if absent is None or time.monotonic() - absent.reserved_at <= _RESERVED_FOR:
            return False
        try:
            next(moves(absent.reserved, holdings.turn))
        except IndexError:
            return False
        self._tiny_jobs = 0
        return True
