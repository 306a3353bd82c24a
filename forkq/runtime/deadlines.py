"""When the jobs of one child must have ended, and which have begun: a file without a name, shared
with its master.

The child maps it, and writes at the beginning of each job, and at the end of each one with a hard
time limit. That costs no system call, and the master can read it while a job holds the
interpreter's lock. The master reads by the descriptor alone, which its next program inherits.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Iterator, MutableSequence
from itertools import islice, repeat
from typing import Final, NamedTuple, TypeAlias, cast

_WORD: Final = 8  # bytes
# How much of the innermost calls of an overdue job the record of its failure has.
_LONGEST_TEXT: Final = 512
_PLACE: Final = 3 * _WORD + _LONGEST_TEXT  # bytes
# A place that a dead processor has left is not used again. One is for the event loop, one for the
# suspects that the child runs where no solo child can boot: of each third of the places the last
# one, or the last two.
_SPARE: Final = 18
# What the child notes of an overdue job once it has logged the stack: it hangs; its step blocks the
# event loop; or the step of this other job does. Added to it: its deadline is that of its cancel.
_HANGS: Final = 1
_BLOCKS: Final = 2
_KEEPS_OTHER: Final = 3
_CANCELLED: Final = 4
# In the last place, as long as each processor has places in which it notes its begins; else 0. The
# second one, if an event loop notes the units that it runs, too.
_NOTES_BEGINS: Final = 1
_NOTES_UNITS: Final = 2


# Where a processor notes its begins: the sequence of the lease and its thread's number; and when it
# has begun (monotonic).
StartCells: TypeAlias = tuple[MutableSequence[int], MutableSequence[float]]


# Where an event loop notes the sequence of the lease whose step it does now (0: none), and when the
# last step has begun (monotonic, in nanoseconds).
StepCells: TypeAlias = MutableSequence[int]


class Overdue(NamedTuple):
    """A job that runs beyond its ``deadline`` (monotonic). ``sequence``: of its lease. ``told``:
    the child has logged its stack; ``calls``: the innermost calls of that. ``suspect``: an ordinary
    child runs it alone, so its lease is one of a solo child. ``blocks``: it blocks the event loop.
    ``keeps_other``: so that another job cannot end, whose deadline this is. ``cancelled``: the
    deadline is that of its cancel, not its ``hard_timeout``."""

    sequence: int
    deadline: float
    told: bool
    calls: str = ""
    suspect: bool = False
    blocks: bool = False
    keeps_other: bool = False
    cancelled: bool = False


class _Begun(NamedTuple):
    """What a processor has begun last: the ``sequence`` of the lease (0: none yet), when
    (monotonic), and in which thread."""

    sequence: int
    thread: int
    at: float


class DeadlineTable:
    """The child's side of the shared file. The child gives the empty ``file`` of the master its
    size: only a child with new code knows its number of ``processors``. None instead: the table of
    the suspects that the child runs, one at a time, in the same file. A place has a deadline (0: it
    is free), the sequence number of a lease, whether the child has logged the stack, and its end as
    text.

    The last two thirds of the places never have a deadline: each processor has two of them, and
    notes there which lease it has begun last, its thread, and when. The first two are those of the
    child's event loop: ``step_cells``, with the thread of the loop in the place of a time. Their
    texts have the durable steps that jobs do now: the sequence of the lease, and the name.
    """

    def __init__(self, file: int, processors: int | None) -> None:
        if processors is not None:
            os.ftruncate(file, 3 * (processors + _SPARE) * _PLACE)
        places = _places(file)
        third, words = places // 3, places * _WORD
        whole = memoryview(mmap.mmap(file, places * _PLACE))
        self._deadlines = whole[:words].cast("d")
        self._sequences = whole[words : 2 * words].cast("Q")
        self._told = whole[2 * words : 3 * words].cast("Q")
        self._times = whole[2 * words : 3 * words].cast("d")
        self._texts = whole[3 * words :]
        self._free = deque(range(third - 1))
        self._steps = deque(range(third, places - 1))
        self.step_cells: StepCells = cast("StepCells", self._sequences[third : third + 2])
        self._loop_thread = self._times[third : third + 1]
        self._begun = slice(third + 2, places - 2, 2)
        self._unused: Iterator[int] = iter(range(third + 2, places - 2, 2))
        if processors is None:
            self._free, self._steps = deque([third - 1]), deque([places - 1])
            self._begun = slice(places - 2, places, 2)
            self._unused = repeat(places - 2)
        self._told[-1] = _NOTES_BEGINS

    def start_cells(self) -> StartCells:
        """The places in which a processor notes its begins. If there is no place left, the master
        takes each lease for one that has begun."""
        place = next(self._unused, None)
        if place is None:
            self._told[-1] = 0
            return [0, 0], [0.0]
        lease = cast("MutableSequence[int]", self._sequences[place : place + 2])
        return lease, cast("MutableSequence[float]", self._times[place : place + 1])

    def note_loop(self, thread: int) -> None:
        """Notes in which thread the event loop runs."""
        self._loop_thread[0] = float(thread)

    def unit_cells(self, count: int) -> UnitCells:
        """The places in which an event loop notes the units that it runs, ``count`` at once."""
        self._told[-1] = _NOTES_UNITS
        sequences = cast("MutableSequence[int]", self._sequences)
        times = cast("MutableSequence[float]", self._times)
        return UnitCells(sequences, times, deque(islice(self._unused, count)))

    def last_begun(self) -> int:
        """The highest sequence number of a lease whose job has begun; 0 if none has."""
        return max(self._sequences[self._begun])

    def add(self, deadline: float, sequence: int) -> int:
        """Notes that a job with a deadline begins. Returns its place, -1 if there is none left."""
        try:
            place = self._free.popleft()
        except IndexError:
            return -1
        self._sequences[place] = sequence
        self._told[place] = 0
        self._deadlines[place] = deadline  # last: from now on the master reads the place
        return place

    def tell(
        self,
        place: int,
        calls: str,
        *,
        blocks: bool = False,
        blocker: int = 0,
        cancelled: bool = False,
    ) -> None:
        """Notes that the stack of the job is logged. ``blocks``: its step blocks the event loop.
        ``blocker``: the sequence of another job whose step does, and which the master is to end in
        the place of this one. ``cancelled``: it goes on beyond its cancel."""
        if place >= 0:
            if blocker:
                self._sequences[place] = blocker
            text = calls.encode("utf-8", "replace")[:_LONGEST_TEXT].ljust(_LONGEST_TEXT, b"\0")
            self._texts[place * _LONGEST_TEXT : (place + 1) * _LONGEST_TEXT] = text
            kind = _KEEPS_OTHER if blocker else _BLOCKS if blocks else _HANGS
            self._told[place] = kind + _CANCELLED * cancelled

    def clear(self, place: int) -> None:
        """Frees the place of a job that has ended."""
        if place >= 0:
            self._deadlines[place] = 0.0
            self._free.append(place)

    def note_step(self, sequence: int, name: str) -> int:
        """Notes that the job of a lease has begun a durable step. Returns its place, -1 if there is
        none left."""
        try:
            place = self._steps.popleft()
        except IndexError:
            return -1
        text = f"{sequence} {name}".encode("utf-8", "replace")[:_LONGEST_TEXT]
        start = place * _LONGEST_TEXT
        self._texts[start + 1 : start + _LONGEST_TEXT] = text[1:].ljust(_LONGEST_TEXT - 1, b"\0")
        self._texts[start] = text[0]  # last: from now on the master reads it
        return place

    def clear_step(self, place: int) -> None:
        """Frees the place of a step that is remembered, or has failed."""
        if place >= 0:
            self._texts[place * _LONGEST_TEXT] = 0
            self._steps.append(place)


class UnitCells:
    """Where an event loop notes which units it runs, and since when, in the ``free`` places of two
    columns."""

    def __init__(
        self, sequences: MutableSequence[int], times: MutableSequence[float], free: deque[int]
    ) -> None:
        self._sequences = sequences
        self._times = times
        self._free = free

    @classmethod
    def unread(cls, count: int) -> UnitCells:
        """Places that no master reads."""
        return cls([0] * count, [0.0] * count, deque(range(count)))

    def note(self, sequence: int, at: float) -> int:
        """Notes that a unit has begun ``at`` (monotonic). Returns its place, -1 if there is
        none."""
        try:
            place = self._free.popleft()
        except IndexError:
            return -1
        self._times[place] = at
        self._sequences[place] = sequence
        return place

    def clear(self, place: int) -> None:
        """Frees the place of a unit that is settled."""
        if place >= 0:
            self._sequences[place] = 0
            self._free.append(place)


# The master's side


def next_deadline(file: int) -> float | None:
    """The earliest deadline among the running jobs."""
    return min((deadline for deadline in _deadlines(file) if deadline), default=None)


def overdue(file: int, now: float) -> list[Overdue]:
    """The jobs that run beyond their deadlines. A job that looks overdue is read twice: the first
    time the child may have been writing."""
    found = {place: at for place, at in enumerate(_deadlines(file)) if 0.0 < at <= now}
    if not found:
        return []
    again = _deadlines(file)
    return [_overdue(file, place, at) for place, at in found.items() if again[place] == at]


def last_begun(file: int) -> int | None:
    """The highest sequence number of a lease whose job the child has begun: it begins them in the
    order of these numbers. None if the child does not tell. Suspects that it runs alone are left
    out."""
    return max((each.sequence for each in _started_in(file)[1:-1]), default=None)


def begun_in(file: int, thread: int) -> int | None:
    """The sequence number of the lease whose job was begun last in that thread, or whose step an
    event loop did there; None if no job ran there."""
    loop, *others = _started_in(file)[:-1] or (_Begun(0, 0, 0.0),)
    if loop.at == float(thread):
        return loop.sequence or None
    return next((each.sequence for each in others if each.thread == thread), None)


def units_in_progress(file: int) -> frozenset[int] | None:
    """The sequence numbers of all leases whose jobs are in progress in a child whose event loop
    takes units; None in another child."""
    if not _notes_units(file):
        return None
    return frozenset(each.sequence for each in _started_in(file)[1:-1]) - {0}


def units_at_work(file: int) -> frozenset[int]:
    """The sequence numbers of the leases for which a thread of such a child does something at this
    moment: the one whose step the event loop does, and those of its other threads."""
    loop, *others = _started_in(file)[:-1]
    return frozenset({loop.sequence, *(each.sequence for each in others if each.thread)}) - {0}


def run_times(file: int, now: float, *, suspects: bool) -> dict[int, float]:
    """For how many seconds the job of each lease had run that a processor has begun last, by
    sequence number. With ``suspects``, of the suspect that an ordinary child runs alone."""
    started = _started_in(file)
    found = started[-1:] if suspects else started[1:-1]
    return {each.sequence: max(0.0, now - each.at) for each in found if each.sequence}


def steps_in(file: int, *, suspects: bool) -> dict[int, str]:
    """The durable step that the job of each lease does, by sequence number; of several one. With
    ``suspects``, that of the suspect that an ordinary child runs alone."""
    places, found = _places(file), dict[int, str]()
    first, last = (places - 1, places) if suspects else (places // 3, places - 1)
    start = 3 * places * _WORD + first * _LONGEST_TEXT
    data = os.pread(file, max(0, last - first) * _LONGEST_TEXT, start) if places else b""
    for at, byte in enumerate(data[::_LONGEST_TEXT]):
        if byte:
            text = data[at * _LONGEST_TEXT : (at + 1) * _LONGEST_TEXT].rstrip(b"\0")
            number, _, name = text.partition(b" ")
            found[int(number)] = name.decode("utf-8", "replace")
    return found


def _started_in(file: int) -> list[_Begun]:
    """What each processor has noted of the lease that it began last, the processor for suspects at
    the end; empty if the child does not tell."""
    places = _places(file)
    if not places or not _word(file, (3 * places - 1) * _WORD):
        return []
    third = places // 3
    size = 2 * third * _WORD
    numbers = memoryview(os.pread(file, size, (places + third) * _WORD)).cast("Q")
    times = memoryview(os.pread(file, size, (2 * places + third) * _WORD)).cast("d")
    return [_Begun(*each) for each in zip(numbers[::2], numbers[1::2], times[::2], strict=True)]


def _notes_units(file: int) -> bool:
    places = _places(file)
    return bool(places) and _word(file, (3 * places - 1) * _WORD) == _NOTES_UNITS


def _deadlines(file: int) -> memoryview[float]:
    return memoryview(os.pread(file, _places(file) * _WORD, 0)).cast("d")


def _places(file: int) -> int:
    return os.fstat(file).st_size // _PLACE


def _overdue(file: int, place: int, deadline: float) -> Overdue:
    places = _places(file)
    words, suspect = places * _WORD, place == places // 3 - 1
    sequence, told = (_word(file, part * words + place * _WORD) for part in (1, 2))
    if not told:
        return Overdue(sequence, deadline, told=False, suspect=suspect)
    text = os.pread(file, _LONGEST_TEXT, 3 * words + place * _LONGEST_TEXT)
    calls = text.rstrip(b"\0").decode("utf-8", "ignore")
    cancelled, kind = divmod(told, _CANCELLED)
    blocks = kind in (_BLOCKS, _KEEPS_OTHER)
    how = (blocks, kind == _KEEPS_OTHER, bool(cancelled))
    return Overdue(sequence, deadline, True, calls, suspect, *how)


def _word(file: int, at: int) -> int:
    return int(memoryview(os.pread(file, _WORD, at)).cast("Q")[0])
