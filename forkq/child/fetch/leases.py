"""What one child has leased: ready to be performed, running, ended and not yet told, or parked.

A unit is in flight from its fetch until it has ended. Before a processor takes it, it is ready too;
``taken`` is the time of its fetch then. Once ended, it waits for the exchange that tells Redis so.
One that moves elsewhere stays in flight until Redis has replied, and needs no processor meanwhile.
It is parked if Redis refuses what was decided of it. Any thread may call. No lock is needed: each
step is a single one that Python does not interrupt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import repeat
from math import inf
from typing import NamedTuple, TypeVar

from ...wire.lease import UnitOfWork
from ..failure.ends import Ending, OpenEndings, Outcome

_T = TypeVar("_T")


def moves(
    source: deque[_T], target: deque[_T], pop: Callable[[deque[_T]], _T] = deque.pop
) -> Iterator[None]:
    """An iterator of which each ``next()`` moves one item from ``source`` to ``target``, or raises
    IndexError if there is none. That is a single call into C, so an exception from outside strikes
    before or after it: the item is always in one of the two."""
    return map(target.append, map(pop, repeat(source)))


class Leased(NamedTuple):
    """How many units a child has at one moment: ``ready``, ``running`` (each has a processor),
    ``ended`` and not yet told, and ``parked``, of which ``due`` are told again now; and how many
    have ``started`` so far. The oldest ready one was asked for at ``oldest`` (monotonic),
    ``oldest_lease`` (times.steady). ``capacity``: how many may run at once. ``occupying``: how many
    have a processor, are ready for one, or move elsewhere beyond the number that fits into memory:
    while the last are too many, nothing more is fetched. ``free``: how many more can begin."""

    ready: int
    running: int
    ended: int
    parked: int
    due: int
    started: int
    oldest: float
    oldest_lease: float
    capacity: int
    occupying: int
    free: int

    @property
    def has_surplus(self) -> bool:
        """Whether some are ready that no processor is free for."""
        return self.occupying > self.capacity

    @property
    def all_busy(self) -> bool:
        """Whether each processor performs a unit."""
        return self.running >= self.capacity


class Leases:
    """The units of one child: each stays here until Redis knows its end. ``capacity``: how many
    units may run at once, which may change. ``endings``: those of the units that move elsewhere.
    ``must_compare``: this child and Redis may disagree about its leases; they were compared
    ``compared_at`` (times.steady). ``on_lost`` gets a unit that has ended, and that turns out to
    have been given to another host. ``wake`` wakes a
    driver that waits, when a unit has ended."""

    def __init__(self, capacity: int, endings: OpenEndings) -> None:
        self.endings = endings
        self.must_compare = True
        self.compared_at = 0.0
        self.on_lost: Callable[[UnitOfWork], None] = lambda unit: None
        self.wake: Callable[[], None] = lambda: None
        self.capacity = capacity
        self._ready: deque[UnitOfWork] = deque()
        self._in_flight: dict[int, UnitOfWork] = {}
        self._ended: deque[UnitOfWork] = deque()
        self._occupied: set[object] = set()  # consumers that are
        self._surplus: deque[UnitOfWork] = deque()
        self._added = 0

    # Snapshots

    def count(self) -> Leased:
        """How many there are now."""
        try:
            first = self._ready[0]
            oldest, oldest_lease = first.taken, first.asked
        except IndexError:
            oldest = oldest_lease = inf
        endings = self.endings
        ready, parked = len(self._ready), len(endings.parked)
        ended = len(self._ended) + len(endings.queued)
        due = parked if parked and endings.is_due else 0
        in_flight = len(self._in_flight)  # first: else a unit that leaves both counts as none
        moving = len(endings.moving)
        running = in_flight - ready - moving + len(self._occupied)
        started = self._added - ready - len(self._surplus)
        capacity, occupying = self.capacity, ready + running
        if moving > endings.most:
            occupying += moving - endings.most
        free = capacity - occupying if occupying < capacity else 0
        return Leased(
            *(ready, running, ended, parked, due, started),
            *(oldest, oldest_lease, capacity, occupying, free),
        )

    def is_low(self, low: int) -> bool:
        """Whether at most ``low`` units are ready, and some end is to be told."""
        return len(self._ready) <= low and bool(self._ended or self.endings.queued)

    def units(self) -> dict[int, UnitOfWork]:
        """All that are in flight, by sequence number. Those that are ready come last."""
        return self._in_flight.copy()

    def sequences(self) -> tuple[int, ...]:
        """The sequence numbers of all whose lease may stand in Redis."""
        # In this order: a unit goes from in flight to ended. Each copy is one step, even without
        # the GIL; list(deque) and tuple(dict) are loops there, and fail when another thread adds.
        in_flight, ended = list(self._in_flight), self._ended.copy()
        surplus = {unit.sequence for unit in self._surplus}
        kept = [number for number in in_flight if number not in surplus]
        return (*kept, *(unit.sequence for unit in ended))

    # The way of a unit

    def add(self, units: Collection[UnitOfWork]) -> bool:
        """Adds the units that a fetch has brought. Returns whether none was ready before."""
        was_empty = not self._ready
        self._added += len(units)
        for unit in units:
            self._in_flight[unit.sequence] = unit
            self._ready.append(unit)
        return was_empty

    def taker(self, place: deque[UnitOfWork]) -> Iterator[None]:
        """An iterator of which each ``next()`` moves the oldest ready unit to ``place``: see
        ``moves``."""
        return moves(self._ready, place, deque.popleft)

    def end(self, unit: UnitOfWork, ending: Ending | None = None) -> None:
        """Notes that a unit has ended: another one may begin, and the next exchange tells Redis. To
        tell it again does no harm. ``ending``: it moves elsewhere, and stays in flight until Redis
        has replied; a second one changes nothing. Without, its lease is dropped."""
        if ending is not None:
            unit.thread = 0  # none runs it
            self.endings.add(ending)
            return
        self._ended.append(unit)  # first: it must never be in neither
        self._in_flight.pop(unit.sequence, None)

    def occupy(self, consumer: object, *, on: bool) -> None:
        """Notes that a processor goes on after the end of its unit, so no other unit begins there;
        or that it is free again."""
        (self._occupied.add if on else self._occupied.discard)(consumer)

    def drop(self, unit: UnitOfWork) -> bool:
        """Forgets ``unit``, whose lease is lost, if it has not begun here: no processor gets it.
        Returns whether it had not begun."""
        try:
            self._ready.remove(unit)
        except ValueError:
            return False
        self._in_flight.pop(unit.sequence, None)
        self._added -= 1
        return True

    # What the exchange does

    def take_ended(self) -> tuple[list[UnitOfWork], list[Ending]]:
        """Takes the ended units of which Redis is told now, one by one: other threads add to them
        meanwhile. Of many, the rest follow in the next exchange."""
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        return ended, self.endings.take() if self.endings.moving else []

    def settle(self, endings: Sequence[Ending]) -> None:
        """Notes Redis's replies to these endings. An ending that it refuses is parked: the unit
        keeps its lease."""
        outcomes = [(ending, self._settle(ending)) for ending in endings]
        confirmed = {ending.kind for ending, outcome in outcomes if outcome != "refused"}
        self.endings.answered(confirmed, self.capacity)
        for ending, outcome in outcomes:
            ending.tell(outcome)

    def take_surplus(self) -> list[UnitOfWork]:
        """Takes the ready units that no processor is free for, youngest first. They are in flight
        no more. ``returned`` follows; after an exception, ``sequences`` leaves them out."""
        move = moves(self._ready, self._surplus)
        with suppress(IndexError):  # processors take from the other end
            while self.count().has_surplus:
                next(move)
                self._in_flight.pop(self._surplus[-1].sequence, None)
        return list(self._surplus)

    def returned(self, *, all_of_them: bool = False) -> None:
        """Notes that the jobs of the surplus, or of all units, are in their queues again."""
        for unit in self._surplus:
            self._in_flight.pop(unit.sequence, None)
        self._added -= len(self._surplus)
        self._surplus.clear()
        if all_of_them:
            self._in_flight.clear()
            self._ready.clear()
            self.endings.clear()

    def _settle(self, ending: Ending) -> Outcome:
        unit, outcome = ending.unit, ending.judge()
        if unit.sequence not in self._in_flight:
            self.endings.close(ending)
            return "moved"  # by an earlier ending: an exception ended the wait for its outcome
        if outcome == "refused":
            self.endings.park(ending)
            return outcome
        # In this order: no more may be fetched than there are processors.
        self.endings.close(ending)
        self._in_flight.pop(unit.sequence, None)
        if outcome == "gone":
            unit.lost = True
            self.on_lost(unit)
        return outcome


def end_again(leases: Leases, units: Sequence[UnitOfWork], endings: Sequence[Ending]) -> None:
    """Puts endings back of which Redis may not have been told."""
    for unit in units:
        leases.end(unit)
    for ending in endings:
        leases.end(ending.unit, ending)
