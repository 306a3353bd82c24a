"""When the jobs of one child must have ended: memory that the child shares with its master.

The child writes at the beginning and at the end of each job with a hard time limit. That costs no
system call, and the master can read it while a job holds the interpreter's lock.
"""

from __future__ import annotations

import mmap
from collections import deque
from typing import Final, NamedTuple

_WORD: Final = 8  # bytes
# How much of the innermost calls of an overdue job the record of its failure has.
_LONGEST_TEXT: Final = 512
# A place that a dead processor has left is not used again.
_SPARE: Final = 16


class Overdue(NamedTuple):
    """A job that runs beyond its ``deadline`` (monotonic). ``sequence``: of its lease. ``told``:
    the child has logged its stack; ``calls``: the innermost calls of that."""

    sequence: int
    deadline: float
    told: bool
    calls: str = ""


class DeadlineTable:
    """One for a child, made by the master before the fork. A place has a deadline (0: it is free),
    the sequence number of a lease, whether the child has logged the stack, and its end as text."""

    def __init__(self, processors: int) -> None:
        places = processors + _SPARE
        words = places * _WORD
        whole = memoryview(mmap.mmap(-1, 3 * words + places * _LONGEST_TEXT))
        self._deadlines = whole[:words].cast("d")
        self._sequences = whole[words : 2 * words].cast("Q")
        self._told = whole[2 * words : 3 * words].cast("Q")
        self._texts = whole[3 * words :]
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

    def tell(self, place: int, calls: str) -> None:
        """The stack of the job is logged."""
        if place >= 0:
            text = calls.encode("utf-8", "replace")[:_LONGEST_TEXT].ljust(_LONGEST_TEXT, b"\0")
            self._texts[place * _LONGEST_TEXT : (place + 1) * _LONGEST_TEXT] = text
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
            Overdue(self._sequences[place], deadline, *self._read(place))
            for place, deadline in enumerate(self._deadlines)
            if 0.0 < deadline <= now
        ]

    def _read(self, place: int) -> tuple[bool, str]:
        if not self._told[place]:
            return False, ""
        text = bytes(self._texts[place * _LONGEST_TEXT : (place + 1) * _LONGEST_TEXT])
        return True, text.rstrip(b"\0").decode("utf-8", "ignore")
