"""Measures the memory of the master's children, one after the other.

For the PSS the kernel walks through all pages of the process: 20 ms for 300 MB, 110 ms for 1.5 GB
on a busy machine, in which the master does nothing else. RSS costs next to nothing, and PSS is
never more. So the master asks for the PSS of a child whose RSS is above its limit, and otherwise
seldom, for ``forkq status`` alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from .child_handle import ChildHandle
from .memory import measure, resident
from .slot import Slot

# Seconds between two looks at the RSS of a child with a limit, and between two measurements of the
# PSS of a child whose RSS is above its limit.
_EVERY: Final = 1.0
# Seconds between two measurements of the PSS of any other child.
_EVERY_FOR_STATUS: Final = 10.0
# At most these parts of the time are spent on the PSS of one such child. The processor's time
# counts: on a busy machine a measurement may wait for long, and a limit must still be kept.
_PART: Final = 0.05
_PART_FOR_STATUS: Final = 0.002


class MemoryMeter:
    """Looks at one child at most in each turn of the master's loop."""

    def __init__(self, by_pid: Mapping[int, ChildHandle]) -> None:
        self._by_pid = by_pid

    @property
    def due(self) -> float | None:
        """When the next look is due (monotonic)."""
        return min((child.memory_due for child in self._measurable()), default=None)

    def measure_next(self) -> ChildHandle | None:
        """Looks at the child that is due first, if its time has come. Returns it if its memory was
        measured."""
        child = min(self._measurable(), key=lambda child: child.memory_due, default=None)
        began = time.monotonic()
        if child is None or child.memory_due > began:
            return None
        child.memory_due = began + (_EVERY if memory_limit(child.slot) else _EVERY_FOR_STATUS)
        if began < child.measured_at + _pause(child):
            return None
        spent = time.thread_time()
        child.memory = measure(child.pid)
        child.measuring_took = time.thread_time() - spent
        child.measured_at = time.monotonic()
        return child

    def _measurable(self) -> list[ChildHandle]:
        children = self._by_pid.values()
        return [child for child in children if child.was_ready and not child.frozen]


def memory_limit(slot: Slot) -> int:
    """The lower one of the limits of memory of the children of ``slot``; 0 if they have none."""
    if slot.capsule is None:
        return 0
    limits = slot.capsule.recycling
    return limits.max_memory or limits.hard_max_memory


def _pause(child: ChildHandle) -> float:
    """Seconds between two measurements of the PSS of this child."""
    limit = memory_limit(child.slot) * child.part_of_limits
    if limit and resident(child.pid) >= limit:
        return max(_EVERY, child.measuring_took / _PART)
    return max(_EVERY_FOR_STATUS, child.measuring_took / _PART_FOR_STATUS)
