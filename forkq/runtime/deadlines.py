"""When the jobs of one child must have ended: memory that the child shares with its master.

The child writes at the beginning and at the end of each job with a hard time limit. That costs no
system call, and the master can read it while a job holds the interpreter's lock.
"""

from __future__ import annotations

import mmap
from collections import deque
from typing import Final, NamedTuple

_WORD: Final = 8  # bytes
# A place that a dead processor has left is not used again.
_SPARE: Final = 16


class Overdue(NamedTuple):
    """A job that runs beyond its ``deadline`` (monotonic). ``sequence``: of its lease. ``told``:
    the child has logged its stack."""

    sequence: int
    deadline: float
    told: bool


class DeadlineTable:
    """One for a child, made by the master before the fork. A place has a deadline (0: it is free),
    the sequence number of a lease, and whether the child has logged the stack."""

    def __init__(self, processors: int) -> None:
        places = processors + _SPARE
        self._memory = mmap.mmap(-1, 3 * places * _WORD)
        whole = memoryview(self._memory)
        self._deadlines = whole[: places * _WORD].cast("d")
        self._sequences = whole[places * _WORD : 2 * places * _WORD].cast("Q")
        self._told = whole[2 * places * _WORD :].cast("Q")
        self._free = deque(range(places))

    # Called by the child

    def note(self, deadline: float, sequence: int) -> int:
        """A job begins. Returns its place, -1 if there is none left."""
        try:
            place = self._free.popleft()
        except IndexError:
            return -1
        self._sequences[place] = sequence
        self._told[place] = 0
        self._deadlines[place] = deadline  # last: from now on the master reads the place
        return place

    def tell(self, place: int) -> None:
        """The stack of the job is logged."""
        if place >= 0:
            self._told[place] = 1

    def clear(self, place: int) -> None:
        """The job has ended."""
        if place >= 0:
            self._deadlines[place] = 0.0
            self._free.append(place)

    # Called by the master

    @property
    def next(self) -> float | None:
        """The earliest deadline."""
        return min((deadline for deadline in self._deadlines if deadline), default=None)

    def overdue(self, now: float) -> list[Overdue]:
        """The jobs that run beyond their deadlines."""
        return [
            Overdue(self._sequences[place], deadline, bool(self._told[place]))
            for place, deadline in enumerate(self._deadlines)
            if 0.0 < deadline <= now
        ]
