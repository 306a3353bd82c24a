"""Recycling: the master replaces children that have become too large or too old, and removes one
that is far too large. Each child's limits are a little below those of the configuration, so that
children that were forked together are not replaced together."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ..config.recycling import Recycling
from ..store.crash_record import ProcessDeath
from ..store.outage import LONGEST_BETWEEN_FORKS, Backoff
from ..units import format_size
from .child_handle import ChildHandle
from .children import Children
from .memory import measure, resident
from .removal import Removals
from .replacement import Replacement, Replacements
from .slot import Slot
from .stop import GRACE

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# A child that reaches max_memory within so many seconds will not be better the next time.
_SHORT_LIFE: Final = 60.0
_WARN_AFTER: Final = 3
# One in so many of a capsule's children is replaced at a time, and always one.
_AT_ONE_TIME: Final = 4
# Seconds between two looks at the RSS of a child with a limit, and between two measurements of the
# PSS of a child whose RSS is above its limit.
_EVERY: Final = 1.0
# Seconds between two measurements of the PSS of any other child.
_EVERY_FOR_STATUS: Final = 10.0
# At most these parts of the time are spent on the PSS of one such child. The processor's time
# counts: on a busy machine a measurement may wait for long, and a limit must still be kept.
_PART: Final = 0.05
_PART_FOR_STATUS: Final = 0.002


class Recycler:
    """Checks every child in each turn of the loop, and measures the memory of one."""

    def __init__(
        self,
        children: Children,
        replacements: Replacements,
        removals: Removals,
        log: FilteringBoundLogger,
    ) -> None:
        self._children = children
        self._replacements = replacements
        self._removals = removals
        self._log = log
        self._meter = MemoryMeter(children.by_pid)
        self._begun: list[Replacement] = []
        self._backoffs: dict[Slot, Backoff] = {}
        if any(_memory_limit(slot) for slot in children.slots) and not measure(os.getpid()):
            log.warning("limits of memory have no effect: this system tells no process's memory")

    @property
    def due(self) -> float | None:
        """When ``check`` has something to do (monotonic), if nothing happens before."""
        return self._meter.due

    def check(self, *, quiet: bool = False) -> None:
        """Measures, and begins what must be. ``quiet``: the tree is quiet, and replaces none."""
        measured = self._meter.measure_next()
        self._begun = [one for one in self._begun if one.outcome == "under way"]
        if measured is not None and _is_far_too_large(measured):
            self._remove_hog(measured)
        for child in list(self._children):
            if child.drain_by is not None and time.monotonic() > child.drain_by + GRACE:
                why = "it was replaced, and its jobs have not ended within drain_timeout"
                self._removals.begin(child, None, why)
            elif not quiet and (reason := self._reason(child)) and self._has_room(child):
                self._replace(child, reason)

    def _remove_hog(self, child: ChildHandle) -> None:
        """One of its jobs may be the reason, so they get crash records."""
        if child.memory is None:
            return
        used, limit = child.memory.used, _limits(child).hard_max_memory
        why = f"memory above hard_max_memory ({format_size(used)} of {format_size(limit)})"
        self._removals.begin(child, ProcessDeath(rss=used // 1024, reason=why), why)

    def _reason(self, child: ChildHandle) -> str:
        """Which limit the child has reached; "" if none."""
        if child.slot.child is not child or not child.was_ready:
            return ""
        limits, part = _limits(child), child.part_of_limits
        if limits.max_jobs and child.beat.processed >= limits.max_jobs * part:
            return "max_jobs"
        if limits.max_age and time.monotonic() - child.born >= limits.max_age * part:
            return "max_age"
        if limits.max_memory and child.memory and child.memory.used >= limits.max_memory * part:
            return "max_memory" if self._backoff(child).over else ""
        return ""

    def _has_room(self, child: ChildHandle) -> bool:
        """Whether fewer than the most children of its capsule are being replaced."""
        capsule = child.slot.capsule
        under_way = [one for one in self._begun if one.slot.capsule is capsule]
        return capsule is not None and len(under_way) < max(1, capsule.workers // _AT_ONE_TIME)

    def _replace(self, child: ChildHandle, reason: str) -> None:
        replacement = self._replacements.begin(child, reason)
        if replacement is None:
            return
        self._begun.append(replacement)
        age = time.monotonic() - child.born
        self._log.info(
            "recycling a child",
            child=child.name,
            pid=child.pid,
            why=reason,
            limit=_limits(child).shown(reason),
            memory=format_size(child.memory.used) if child.memory else None,
            jobs=child.beat.processed,
            age=round(age),
        )
        if reason == "max_memory":
            self._slow_down(child, age)

    def _slow_down(self, child: ChildHandle, age: float) -> None:
        """If a new child reaches the limit soon, its replacement will as well: without a pause the
        master would fork one after the other."""
        if age >= _SHORT_LIFE:
            self._backoffs.pop(child.slot, None)
            return
        backoff = self._backoff(child)
        backoff.pause()
        if backoff.failures == _WARN_AFTER:
            self._log.warning(
                "new children reach max_memory at once; they are recycled less often",
                child=child.name,
                hint="raise max_memory, or let the jobs use less",
            )

    def _backoff(self, child: ChildHandle) -> Backoff:
        return self._backoffs.setdefault(child.slot, Backoff(longest=LONGEST_BETWEEN_FORKS))


def _limits(child: ChildHandle) -> Recycling:
    """Those of its capsule; the clock has none."""
    return child.slot.capsule.recycling if child.slot.capsule else _NO_LIMITS


def _is_far_too_large(child: ChildHandle) -> bool:
    limit = _limits(child).hard_max_memory
    return bool(limit and child.memory and child.memory.used > limit)


class MemoryMeter:
    """Looks at the memory of one child at most in each turn of the master's loop.

    For the PSS the kernel walks through all pages of the process: 20 ms for 300 MB, 110 ms for 1.5
    GB on a busy machine, in which the master does nothing else. RSS costs next to nothing, and PSS
    is never more. So the master asks for the PSS of a child whose RSS is above its limit, and
    otherwise seldom, for ``forkq status`` alone."""

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
        child.memory_due = began + (_EVERY if _memory_limit(child.slot) else _EVERY_FOR_STATUS)
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


def _memory_limit(slot: Slot) -> int:
    """The lower one of the limits of memory of the children of ``slot``; 0 if they have none."""
    if slot.capsule is None:
        return 0
    limits = slot.capsule.recycling
    return limits.max_memory or limits.hard_max_memory


def _pause(child: ChildHandle) -> float:
    """Seconds between two measurements of the PSS of this child."""
    limit = _memory_limit(child.slot) * child.part_of_limits
    if limit and resident(child.pid) >= limit:
        return max(_EVERY, child.measuring_took / _PART)
    return max(_EVERY_FOR_STATUS, child.measuring_took / _PART_FOR_STATUS)


_NO_LIMITS: Final = Recycling()
