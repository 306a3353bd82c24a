"""Queues that are filled by portions: their jobs have found no thread in an async child.

Whether a job needs a thread is known only when it has come. So a queue that has sent too many such
jobs gives no more than a portion at a time: as many as have a thread, or may wait for one. Any
other job of the queue begins, and the next portion follows at once. While no thread is free, the
queue rests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Final

from ...limits.rules import Rules
from ...values import replace
from ...wire.lease import UnitOfWork

# Seconds after which such a queue is filled as any other, until it sends too many jobs again.
_LONGEST: Final = 10.0


class Portions:
    """``rules`` has those of a queue: of the configuration, and its portion where some are
    ``in_force``. ``size`` says how many jobs for threads may come. ``on_freed`` wakes who fetches.
    The fetching thread calls ``prepare`` and ``rules``; any other thread the rest."""

    def __init__(self, rules: Callable[[str], Rules]) -> None:
        self.size: Callable[[], int] = lambda: 0
        self.on_freed: Callable[[], None] = lambda: None
        self.freed = False  # since the last fetch was made
        self.in_force = False
        # Replaced only then: each fetch calls it.
        self.rules = self._configured = rules
        self._until: Mapping[str, float] = {}  # monotonic, by queue
        self._most: Mapping[str, int] = {}  # jobs in flight

    def begin(self, names: Iterable[str]) -> None:
        """Fills these queues by portions from now on."""
        self._until = {**self._until, **dict.fromkeys(names, monotonic() + _LONGEST)}
        self.in_force, self.rules = True, self._with_portion

    def free(self) -> None:
        """Notes that a thread is free."""
        self.freed = True
        self.on_freed()

    def prepare(self, in_flight: Mapping[str, int]) -> list[str]:
        """Sets the portions of the next fetch. ``in_flight``: how many jobs of each queue are.
        Returns the names of the queues whose portions may have changed."""
        now, size, names = monotonic(), self.size(), list(self._until)
        self._until = {name: until for name, until in self._until.items() if until > now}
        self._most = {name: in_flight.get(name, 0) + size for name in self._until}
        if not self._until:
            self.in_force, self.rules = False, self._configured
        return names

    def _with_portion(self, name: str) -> Rules:
        rules = self._configured(name)
        most = self._most.get(name)
        if most is None:
            return rules
        own = most if rules.process_limit is None else rules.process_limit
        return replace(rules, process_limit=min(most, own))


def count_by_queue(
    in_flight: Iterable[UnitOfWork], ended: Iterable[UnitOfWork]
) -> Mapping[str, int]:
    """How many jobs of each queue stay in flight once Redis knows the ``ended`` ones, of which some
    may still be in flight here."""
    gone = {unit.sequence for unit in ended}
    return Counter(unit.queue_name for unit in in_flight if unit.sequence not in gone)
