"""The units of one child: ready to be performed, in flight, and done.

A unit is in flight from its fetch until it is settled. Before a processor takes it, it is ready
too; ``taken`` is the time of its fetch then. Once done, it waits for the fetch that acknowledges
it. It is parked if Redis refuses what was decided of it. Any thread may call. No lock is needed:
each step is a single one that Python does not interrupt.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from math import inf
from typing import Final

from ...wire.lease import UnitOfWork
from .fetch_turn import Holdings, moves

_MOST_PARKED: Final = 1000


class InFlight:
    """The fetcher's. A unit stays in flight or done until Redis has its outcome."""

    def __init__(self) -> None:
        self.ready: deque[UnitOfWork] = deque()
        self.by_sequence: dict[int, UnitOfWork] = {}
        self.done: deque[UnitOfWork] = deque()
        self.parked: set[int] = set()
        self._added = 0
        self._surplus: deque[UnitOfWork] = deque()

    @property
    def started(self) -> int:
        """How many units processors have taken so far."""
        return self._added - len(self.ready) - len(self._surplus)

    def began(self) -> Iterator[float]:
        """When the jobs in progress began (monotonic): those that are ready come last."""
        units = list(self.by_sequence.values())
        in_progress = units[: len(units) - len(self.ready)]
        return (unit.taken for unit in in_progress)

    def add(self, units: Collection[UnitOfWork]) -> None:
        """A fetch brought these."""
        self._added += len(units)
        for unit in units:
            self.by_sequence[unit.sequence] = unit
            self.ready.append(unit)

    def next(self, holdings: Holdings) -> UnitOfWork | None:
        """A ready unit, moved into the holdings of the processor that asks; None if there is none.
        An exception from outside leaves it in one of the two (``moves``)."""
        if not self.ready:
            return None
        take = holdings.take_ready or self._bind(holdings)
        try:
            next(take)
        except IndexError:  # another processor took it just now
            return None
        return holdings.units[-1]

    def park(self, unit: UnitOfWork) -> None:
        """It failed, and Redis refuses what was decided: it keeps its lease, not its processor."""
        self.parked.add(unit.sequence)

    def finish(self, unit: UnitOfWork) -> None:
        """It is done: the next fetch acknowledges it."""
        self.done.append(unit)  # first: it must never be in neither
        self.by_sequence.pop(unit.sequence, None)

    def forget(self, unit: UnitOfWork) -> None:
        """This child holds its lease no more. If its processor died, it is forgotten already."""
        # In this order: no more may be fetched than there are processors.
        self.parked.discard(unit.sequence)
        self.by_sequence.pop(unit.sequence, None)

    def take_done(self) -> list[UnitOfWork]:
        """What is done, taken one by one: other threads add to it meanwhile."""
        return [self.done.popleft() for _ in range(len(self.done))]

    def is_time_to_send(self, low: int, enough_done: int, processors: int) -> bool:
        """Whether the next fetch is due: something is done, at most ``low`` units are ready, and
        ``enough_done`` is done or no processor is free to have the turn."""
        if not self.done or len(self.ready) > low:
            return False
        return len(self.done) >= enough_done or self.are_all_busy(processors)

    def are_all_busy(self, processors: int) -> bool:
        """Whether each of that many processors performs a unit."""
        waiting = len(self.ready) + len(self.parked)
        return len(self.by_sequence) - waiting >= processors

    def oldest(self) -> float:
        """When the oldest ready unit was asked for (monotonic)."""
        try:
            return self.ready[0].taken
        except IndexError:
            return inf

    def oldest_lease(self) -> float:
        """When the lease of the oldest ready unit was asked for (times.steady)."""
        try:
            return self.ready[0].asked
        except IndexError:
            return inf

    def take_surplus(self, processors: int) -> list[UnitOfWork]:
        """The ready units that no processor is free for, youngest first. They are in flight no
        more. ``surplus_returned`` follows; after an exception, ``known`` leaves them out."""
        move = moves(self.ready, self._surplus)
        with suppress(IndexError):  # processors take from the other end
            while self.occupying() > processors:
                next(move)
                self.by_sequence.pop(self._surplus[-1].sequence, None)
        return list(self._surplus)

    def drop(self, unit: UnitOfWork) -> bool:
        """Removes ``unit`` if it is ready: whether it was."""
        try:
            self.ready.remove(unit)
        except ValueError:
            return False
        self.by_sequence.pop(unit.sequence, None)
        self._added -= 1
        return True

    def surplus_returned(self) -> None:
        """Their jobs are in their queues again."""
        self._added -= len(self._surplus)
        self._surplus.clear()

    def occupying(self) -> int:
        """How many units have a processor, are ready for one, or are parked beyond the number that
        fits into memory: while the last are too many, nothing more is fetched."""
        return len(self.by_sequence) - min(len(self.parked), _MOST_PARKED)

    def parked_too_many(self) -> int:
        """How many units are parked beyond the number that fits into memory; below 0: none."""
        return len(self.parked) - _MOST_PARKED

    def is_parked_all(self) -> bool:
        """Whether nothing is in flight but what is parked."""
        return len(self.by_sequence) == len(self.parked)

    def units(self) -> list[UnitOfWork]:
        """All that are in flight."""
        return list(self.by_sequence.values())

    def known(self) -> tuple[int, ...]:
        """The sequence numbers of all whose lease may stand in Redis."""
        for unit in self._surplus:
            self.by_sequence.pop(unit.sequence, None)
        # In this order: a unit goes from in flight to done. Each copy is one step, even without
        # the GIL; list(deque) and tuple(dict) are loops there, and fail when another thread adds.
        in_flight, done = list(self.by_sequence), self.done.copy()
        return (*in_flight, *(unit.sequence for unit in done))

    def count_by_queue(self, done: Iterable[UnitOfWork]) -> Counter[str]:
        """How many jobs of each queue stay in flight once the ``done`` are acknowledged, of which
        some may still be in flight here."""
        gone = {unit.sequence for unit in done}
        return Counter(unit.queue_name for unit in self.units() if unit.sequence not in gone)

    def clear(self) -> None:
        """All leases have been given back."""
        self.by_sequence.clear()
        self.ready.clear()
        self._surplus.clear()
        self.parked.clear()

    def _bind(self, holdings: Holdings) -> Iterator[None]:
        holdings.take_ready = moves(self.ready, holdings.units, deque.popleft)
        return holdings.take_ready
