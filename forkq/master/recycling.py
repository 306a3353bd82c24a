"""The rules of health about children that work: the master replaces those that have become too
large or too old or have run many jobs, and removes one that is far too large, or that was replaced
and does not end. Each child's limits are a little below those of the configuration, so that
children that were forked together are not replaced together."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

from ..config.recycling import Recycling
from ..runtime.memory import Memory, measure, resident
from ..store.crash_record import ProcessDeath
from ..store.outage import LONGEST_BETWEEN_FORKS, Backoff
from ..units import format_size
from .child_handle import ChildHandle
from .health import ChildVerdict, Line, Rule, line
from .replacement import Replacements
from .slot import Slot
from .stop import GRACE

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# A child that reaches max_memory within so many seconds will not be better the next time.
_SHORT_LIFE: Final = 60.0
_WARN_AFTER: Final = 3
# One in so many of a capsule's children is replaced at a time, and always one.
_AT_ONE_TIME: Final = 4
# A child's limits of jobs, age and memory are at least this part of those of the configuration.
_LEAST_PART: Final = 0.9
# Seconds between two looks at the RSS of a child with a limit, and between two measurements of the
# PSS of a child whose RSS is above its limit.
_EVERY: Final = 1.0
# Seconds between two measurements of the PSS of any other child.
_EVERY_FOR_STATUS: Final = 10.0
# At most these parts of the time are spent on the PSS of one such child. The processor's time
# counts: on a busy machine a measurement may wait for long, and a limit must still be kept.
_PART: Final = 0.05
_PART_FOR_STATUS: Final = 0.002


class _Look(msgspec.Struct):
    """What the meter knows of one child: ``memory`` at ``measured_at``, which ``took`` so many
    processor seconds; ``due``: when it looks next (monotonic)."""

    memory: Memory | None = None
    due: float = 0.0
    measured_at: float = float("-inf")
    took: float = 0.0


class MemoryMeter:
    """Looks at the memory of one child at most in each turn of the master's loop.

    For the PSS the kernel walks through all pages of the process: 20 ms for 300 MB, 110 ms for 1.5
    GB on a busy machine, in which the master does nothing else. RSS costs next to nothing, and PSS
    is never more. So the master asks for the PSS of a child whose RSS is above its limit, and
    otherwise seldom, for ``forkq status`` alone."""

    def __init__(self) -> None:
        self._looks: dict[ChildHandle, _Look] = {}

    def memory(self, child: ChildHandle) -> Memory | None:
        """How much memory the child had when it was last measured; None before that."""
        look = self._looks.get(child)
        return None if look is None else look.memory

    def due(self, child: ChildHandle) -> float | None:
        """When the next look at this child is due (monotonic)."""
        if not child.was_ready or child.frozen:
            return None
        look = self._looks.get(child)
        return 0.0 if look is None else look.due

    def measure_next(self, children: Collection[ChildHandle]) -> None:
        """Looks at the child that is due first, if its time has come."""
        dues = [(due, child) for child in children if (due := self.due(child)) is not None]
        due, child = min(dues, key=lambda each: each[0], default=(0.0, None))
        began = time.monotonic()
        if child is None or due > began:
            return
        look = self._looks.setdefault(child, _Look())
        look.due = began + (_EVERY if _memory_limit(child.slot) else _EVERY_FOR_STATUS)
        if began < look.measured_at + _pause(child, look.took):
            return
        spent = time.thread_time()
        look.memory = measure(child.pid)
        look.took = time.thread_time() - spent
        look.measured_at = time.monotonic()

    def forget(self, child: ChildHandle) -> None:
        """Forgets a child that has been reaped."""
        self._looks.pop(child, None)


def _memory_limit(slot: Slot) -> int:
    """The lower one of the limits of memory of the children of ``slot``; 0 if they have none."""
    if slot.capsule is None:
        return 0
    limits = slot.capsule.recycling
    return limits.max_memory or limits.hard_max_memory


def _pause(child: ChildHandle, took: float) -> float:
    """Seconds between two measurements of the PSS of this child."""
    limit = _memory_limit(child.slot) * part_of_limits(child)
    if limit and resident(child.pid) >= limit:
        return max(_EVERY, took / _PART)
    return max(_EVERY_FOR_STATUS, took / _PART_FOR_STATUS)


class FarTooLarge(Rule):
    """A child above ``hard_max_memory``. One of its jobs may be the reason, so they get crash
    records."""

    def __init__(self, meter: MemoryMeter) -> None:
        self._meter = meter

    def look(self, children: Sequence[ChildHandle], now: float) -> None:
        self._meter.measure_next(children)

    def due(self, child: ChildHandle) -> float | None:
        return self._meter.due(child)

    def verdict(self, child: ChildHandle, now: float) -> ChildVerdict | None:
        limit, memory = _limits(child).hard_max_memory, self._meter.memory(child)
        if not limit or memory is None or memory.used <= limit:
            return None
        used = memory.used
        why = f"memory above hard_max_memory ({format_size(used)} of {format_size(limit)})"
        return ChildVerdict("remove", why=why, crash=ProcessDeath(rss=used // 1024, reason=why))

    def forget(self, child: ChildHandle) -> None:
        self._meter.forget(child)


class Undrained(Rule):
    """A child that was replaced, and whose jobs have not ended within ``drain_timeout``."""

    def verdict(self, child: ChildHandle, now: float) -> ChildVerdict | None:
        if child.ordered.drain_by is None or now <= child.ordered.drain_by + GRACE:
            return None
        why = "it was replaced, and its jobs have not ended within drain_timeout"
        return ChildVerdict("remove", why=why)


class RecyclingRule(Rule):
    """A limit of ``config.recycling``, by its key. A child that has reached it is replaced if fewer
    than the most children of its capsule are replaced just then."""

    key: ClassVar[str]

    def __init__(self, meter: MemoryMeter, replacements: Replacements) -> None:
        self._meter = meter
        self._replacements = replacements

    def has_reached(self, child: ChildHandle, limit: float, now: float) -> bool:
        """Whether the child has reached this limit."""
        raise NotImplementedError

    def verdict(self, child: ChildHandle, now: float) -> ChildVerdict | None:
        limit = getattr(_limits(child), self.key) * part_of_limits(child)
        if not limit or not child.was_ready or not self.has_reached(child, limit, now):
            return None
        if not self._has_room(child) or not self._replacements.may_begin(child):
            return None
        return ChildVerdict("replace", self._lines(child, now), self.key)

    def _has_room(self, child: ChildHandle) -> bool:
        capsule = child.slot.capsule
        under_way = [
            one for one in self._replacements if one.why in _KEYS and one.slot.capsule is capsule
        ]
        return capsule is not None and len(under_way) < max(1, capsule.workers // _AT_ONE_TIME)

    def _lines(self, child: ChildHandle, now: float) -> tuple[Line, ...]:
        memory = self._meter.memory(child)
        said = line("info", "recycling a child", child)
        said.values.update(
            why=self.key,
            limit=_limits(child).shown(self.key),
            memory=format_size(memory.used) if memory else None,
            jobs=child.beat.processed,
            age=round(now - child.born),
        )
        return (said,)


class TooManyJobs(RecyclingRule):
    """``max_jobs``."""

    key = "max_jobs"

    def has_reached(self, child: ChildHandle, limit: float, now: float) -> bool:
        return child.beat.processed >= limit


class TooOld(RecyclingRule):
    """``max_age``."""

    key = "max_age"

    def has_reached(self, child: ChildHandle, limit: float, now: float) -> bool:
        return now - child.born >= limit


class TooLarge(RecyclingRule):
    """``max_memory``. If a new child reaches the limit soon, its replacement will as well: without
    a pause the master would fork one after the other."""

    key = "max_memory"

    def __init__(self, meter: MemoryMeter, replacements: Replacements) -> None:
        super().__init__(meter, replacements)
        self._backoffs: dict[Slot, Backoff] = {}

    def has_reached(self, child: ChildHandle, limit: float, now: float) -> bool:
        memory, backoff = self._meter.memory(child), self._backoffs.get(child.slot)
        rests = backoff is not None and not backoff.over
        return memory is not None and memory.used >= limit and not rests

    def _lines(self, child: ChildHandle, now: float) -> tuple[Line, ...]:
        lines = super()._lines(child, now)
        if now - child.born >= _SHORT_LIFE:
            self._backoffs.pop(child.slot, None)
            return lines
        backoff = self._backoffs.setdefault(child.slot, Backoff(longest=LONGEST_BETWEEN_FORKS))
        backoff.pause()
        if backoff.failures != _WARN_AFTER:
            return lines
        event = "new children reach max_memory at once; they are recycled less often"
        hint = "raise max_memory, or let the jobs use less"
        return (*lines, Line("warning", event, {"child": child.name, "hint": hint}))


def warn_without_memory(slots: Iterable[Slot], log: FilteringBoundLogger) -> None:
    """Where the system hides the memory of processes, a limit of memory has no effect."""
    if any(_memory_limit(slot) for slot in slots) and not measure(os.getpid()):
        log.warning("limits of memory have no effect: this system tells no process's memory")


def part_of_limits(child: ChildHandle) -> float:
    """The part of the configured limits at which the child is replaced. Each child has another
    part, by its identity, so that it is the same in the master's next program."""
    return _LEAST_PART + (1.0 - _LEAST_PART) * zlib.crc32(child.identity.encode()) / 2**32


def _limits(child: ChildHandle) -> Recycling:
    """The limits of the child's capsule; the clock has none."""
    return child.slot.capsule.recycling if child.slot.capsule else _NO_LIMITS


_NO_LIMITS: Final = Recycling()
_KEYS: Final = (TooManyJobs.key, TooOld.key, TooLarge.key)
