"""Measures the memory of the master's children, one after the other."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from .child_handle import ChildHandle, Slot
from .memory import measure

# Seconds between two measurements of a child that has a limit, and of any other one.
_EVERY_LIMITED: Final = 1.0
_EVERY: Final = 10.0
# The kernel walks through all pages of the process. The master spends at most this part of its time
# on one child.
_SHARE_OF_TIME: Final = 0.02


class MemoryMeter:
    """Measures one child at most in each turn of the master's loop."""

    def __init__(self, by_pid: Mapping[int, ChildHandle]) -> None:
        self._by_pid = by_pid

    @property
    def due(self) -> float | None:
        """When the next measurement is due (monotonic)."""
        return min((child.memory_due for child in self._measurable()), default=None)

    def measure_next(self) -> ChildHandle | None:
        """Measures the child that is due first, if its time has come, and returns it."""
        began = time.monotonic()
        child = min(self._measurable(), key=lambda child: child.memory_due, default=None)
        if child is None or child.memory_due > began:
            return None
        child.memory = measure(child.pid)
        now = time.monotonic()
        every = _EVERY_LIMITED if has_memory_limit(child.slot) else _EVERY
        child.memory_due = now + max(every, (now - began) / _SHARE_OF_TIME)
        return child

    def _measurable(self) -> list[ChildHandle]:
        children = self._by_pid.values()
        return [child for child in children if child.was_ready and not child.frozen]


def has_memory_limit(slot: Slot) -> bool:
    """Whether the children of ``slot`` have a limit of their memory."""
    if slot.capsule is None:
        return False
    return bool(slot.capsule.recycling.max_memory or slot.capsule.recycling.hard_max_memory)
