"""Queues that are offered as one, those of a pattern or of a long list: which may have something to
take, and whose turn it is."""

from __future__ import annotations

import heapq
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Any


class QueueGroup:
    """A name is awake until ``rest`` puts it to sleep, and again when it is woken or its time has
    come (monotonic seconds). ``listed``: all names, in their order; else ``meet`` tells them, and
    the order is alphabetical."""

    def __init__(self, listed: Sequence[str] = ()) -> None:
        self._places = {name: place for place, name in enumerate(listed)}
        self._known: set[str] = set(listed)
        self._awake: list[str] = list(listed)  # sorted
        self._alarms: list[tuple[float, str]] = []  # a heap
        self._after = ""

    @property
    def due(self) -> float:
        """When the next name wakes by itself; infinity if none does."""
        return self._alarms[0][0] if self._alarms else float("inf")

    def meet(self, names: Iterable[str]) -> None:
        """These are all there are. New ones are awake."""
        names = set(names)
        self._awake = self._sorted({*self._awake, *(names - self._known)} & names)
        self._known = names

    def wake(self, name: str | None) -> None:
        """Wakes one of them, or all."""
        if name is None:
            self._awake = self._sorted(self._known)
            self._alarms.clear()
        elif name in self._known and not self._is_awake(name):
            insort(self._awake, name, key=self._order)

    def rest(self, name: str, until: float | None) -> None:
        """Puts one to sleep; None leaves it awake."""
        if until is None or not self._is_awake(name):
            return
        del self._awake[self._place(name)]
        if until != float("inf"):
            heapq.heappush(self._alarms, (until, name))

    def count(self) -> int:
        """How many are awake."""
        self._ring()
        return len(self._awake)

    def awake(self, most: int | None = None, *, turning: bool = False) -> list[str]:
        """Those that are awake, at most so many: in order, or ``turning``: beginning after the one
        where it went on."""
        self._ring()
        at = self._place(self._after, bisect_right) if turning and self._after else 0
        if at == 0:
            return self._awake[:most]
        found = self._awake[at:] if most is None else self._awake[at : at + most]
        return found + self._awake[: at if most is None else min(at, most - len(found))]

    def go_on_after(self, name: str) -> None:
        """The next turn begins after this one."""
        self._after = name

    def _ring(self) -> None:
        now = time.monotonic()
        while self._alarms and self._alarms[0][0] <= now:
            self.wake(heapq.heappop(self._alarms)[1])

    def _is_awake(self, name: str) -> bool:
        at = self._place(name)
        return at < len(self._awake) and self._awake[at] == name

    def _place(self, name: str, bisect: Callable[..., int] = bisect_left) -> int:
        return bisect(self._awake, self._order(name), key=self._order)

    def _sorted(self, names: Iterable[str]) -> list[str]:
        return sorted(names, key=self._order)

    def _order(self, name: str) -> Any:
        return self._places.get(name, name)
