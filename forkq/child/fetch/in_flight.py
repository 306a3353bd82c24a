"""What a child has in hand: what is ready to be performed, in flight, and done.

A unit is in flight from its fetch until it is settled; before a processor takes it, it is ready
too; once done, it waits until a fetch has taken the news along. It is parked if it failed and Redis
refuses what was decided. Any thread may call; no lock is needed, since each step is a single one
that Python does not interrupt.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Final

from ...wire.lease import UnitOfWork
from .fetch_turn import Hand, moves

_MOST_PARKED: Final = 1000


class InFlight:
    """The fetcher's. No unit is ever in none of them before the server knows what became of it."""

    def __init__(self) -> None:
        self.ready: deque[UnitOfWork] = deque()
        self.in_flight: dict[int, UnitOfWork] = {}
        self.done: deque[UnitOfWork] = deque()
        self.parked: set[int] = set()

    def add(self, units: Iterable[UnitOfWork]) -> None:
        """These were fetched."""
        for unit in units:
            self.in_flight[unit.sequence] = unit
            self.ready.append(unit)

    def next(self, hand: Hand) -> UnitOfWork | None:
        """One that is ready, moved into the hand of the processor that asks; None if there is none.
        An exception from outside leaves it in one of the two (``moves``)."""
        if not self.ready:
            return None
        take = hand.take_ready or self._bind(hand)
        try:
            next(take)
        except IndexError:  # another processor took it just now
            return None
        return hand.units[-1]

    def _bind(self, hand: Hand) -> Iterator[None]:
        hand.take_ready = moves(self.ready, hand.units, deque.popleft)
        return hand.take_ready

    def park(self, unit: UnitOfWork) -> None:
        """It has failed, and Redis does not take what was decided: in flight, without a
        processor."""
        self.parked.add(unit.sequence)

    def finish(self, unit: UnitOfWork) -> None:
        """It is done: news for the next fetch."""
        self.done.append(unit)  # first: a unit must never be in neither book
        self.in_flight.pop(unit.sequence, None)

    def forget(self, unit: UnitOfWork) -> None:
        """It is not ours any more. It may be out of the book: abandoned meanwhile."""
        # First: no more may be fetched than there are processors.
        self.parked.discard(unit.sequence)
        self.in_flight.pop(unit.sequence, None)

    def news(self) -> list[UnitOfWork]:
        """What is done, taken one by one: others add to it meanwhile."""
        return [self.done.popleft() for _ in range(len(self.done))]

    def working(self) -> int:
        """How many units have a processor, or are ready for one. Parked ones count only beyond a
        number that fits into memory: then nothing more is fetched until they are settled."""
        return len(self.in_flight) - min(len(self.parked), _MOST_PARKED)

    def units(self) -> list[UnitOfWork]:
        """All that are in flight."""
        return list(self.in_flight.values())

    def known(self) -> tuple[int, ...]:
        """The numbers of all that the server may hold leases of."""
        flying = tuple(self.in_flight)  # before what is done: a unit goes from there to here
        return (*flying, *(unit.sequence for unit in list(self.done)))

    def held(self, news: Iterable[UnitOfWork]) -> Counter[str]:
        """How many jobs of each queue stay in flight once the ``news`` are told, some of which may
        not be out of that book yet."""
        done = {unit.sequence for unit in news}
        return Counter(unit.queue_name for unit in self.units() if unit.sequence not in done)

    def clear(self) -> None:
        """All has been given back."""
        self.in_flight.clear()
        self.ready.clear()
        self.parked.clear()
