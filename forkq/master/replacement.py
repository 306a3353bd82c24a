"""How a child leaves before it has died: replaced, or removed by force.

To replace it, the master forks a new child for its slot. When the new one is ready it takes the
slot, and the old one fetches no more and ends when its last job has. To remove it, the master
freezes it, returns its jobs to their queues, and kills it. Frozen first, none of its jobs can
finish after it went back, or run in two places.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from ..runtime.pipe import Stop
from ..store.crash_record import ProcessDeath
from ..store.outage import LONGEST_BETWEEN_FORKS, Backoff
from .child_handle import ChildHandle
from .children import Children
from .rescue import Rescue
from .slot import Slot

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Seconds in which a frozen child comes to a halt. One that has not is stuck in the kernel, and runs
# nothing.
_HALT_LIMIT: Final = 0.25
_HALT_CHECK: Final = 0.01
# Seconds after which a frozen child is killed, however few jobs Redis has taken back. The rescue
# goes on then.
_KILL_AFTER: Final = 1.0

Outcome: TypeAlias = Literal["under way", "done", "called off"]


class Replacement(msgspec.Struct, eq=False):
    """One new child for ``slot``. ``new`` is None until it is forked. ``reason``: why it was called
    off."""

    slot: Slot
    old: ChildHandle
    why: str
    new: ChildHandle | None = None
    outcome: Outcome = "under way"
    reason: str = ""

    @property
    def counted_as(self) -> str:
        """The field of the totals in Redis (``Slot.ended``)."""
        return f"restart|{self.why.replace(' ', '_')}"


class Replacements:
    """The replacements that are under way: of any number of slots, one for each slot at most.

    ``paused``: none begins now, since the master waits for those under way before it executes its
    next program. A tree that replaces its children all the time would never come to that."""

    def __init__(
        self,
        children: Children,
        is_silent: Callable[[ChildHandle], bool],
        log: FilteringBoundLogger,
    ) -> None:
        self._children = children
        self._is_silent = is_silent
        self._log = log
        self.paused = False
        self._under_way: dict[Slot, Replacement] = {}
        self._backoffs: dict[Slot, Backoff] = {}

    def __iter__(self) -> Iterator[Replacement]:
        return iter(self._under_way.values())

    def __contains__(self, slot: Slot) -> bool:
        return slot in self._under_way

    def of(self, child: ChildHandle) -> Replacement | None:
        """The one of this child; None if there is none."""
        found = self._under_way.get(child.slot)
        return found if found is not None and found.old is child else None

    def may_begin(self, child: ChildHandle) -> bool:
        """Whether ``child`` can be replaced now. Not if it is in no slot any more, if its slot has
        a replacement under way, or if the slot's last one was called off a short time ago."""
        slot = child.slot
        is_free = slot not in self._under_way and not self._waits(slot)
        return not self.paused and is_free and self._children.slots.has(child)

    def begin(self, child: ChildHandle, why: str) -> Replacement | None:
        """Starts the replacement of ``child``, if it may begin; ``advance`` forks the new one."""
        if not self.may_begin(child):
            return None
        replacement = self._under_way[child.slot] = Replacement(child.slot, child, why)
        return replacement

    def retire(self, child: ChildHandle) -> None:
        """Another child has its slot: it ends when its jobs have, or at ``drain_timeout``. For a
        silent one ``kill_silent_after`` is the only limit."""
        capsule = None if self._is_silent(child) else child.slot.capsule
        limit = capsule.recycling.drain_timeout if capsule else 0
        child.send(Stop(time.monotonic() + limit if limit else None))

    def end_pauses(self) -> None:
        """There may be new code that boots: every slot may have a replacement at once."""
        self._backoffs.clear()

    def advance(self, *, quiet: bool = False) -> None:
        """Takes the next step of each. Called before the empty slots are filled, so that a slot
        whose old child died gets the new one. ``quiet``: new children fetch nothing."""
        for replacement in list(self):
            self._advance(replacement, quiet)

    def _waits(self, slot: Slot) -> bool:
        backoff = self._backoffs.get(slot)
        return backoff is not None and not backoff.over

    def _advance(self, replacement: Replacement, quiet: bool) -> None:
        slot, new = replacement.slot, replacement.new
        if new is None:
            self._fork(replacement, quiet)
        elif new not in self._children:
            self._call_off(replacement, new.told.reason or f"it died with {new.how}")
        else:
            if self._children.slots.child(slot) is None:  # the old one died: no third one is forked
                self._children.slots.put(new)
            if new.was_ready:
                self._hand_over(replacement, new)

    def _fork(self, replacement: Replacement, quiet: bool) -> None:
        slot = replacement.slot
        if self._children.slots.child(slot) is None:  # the old one died: it gets a new one anyway
            self._end(replacement, "done")
            return
        slot.ended[replacement.counted_as] += 1
        try:
            replacement.new = self._children.fork(slot, quiet=quiet)
        except OSError as error:
            self._call_off(replacement, f"it cannot be forked: {error}")

    def _hand_over(self, replacement: Replacement, new: ChildHandle) -> None:
        """The new child is ready: it takes the slot, and the old one retires."""
        old, slots = replacement.old, self._children.slots
        if slots.has(old):
            slots.put(new)
            self.retire(old)
        elif not slots.has(new):
            new.send(Stop(None))  # the old one died meanwhile, and its slot was filled
        self._backoffs.pop(replacement.slot, None)
        self._end(replacement, "done")

    def _call_off(self, replacement: Replacement, reason: str) -> None:
        """The slot keeps its old child. Of a row of failures only the first is logged."""
        replacement.reason = reason
        replacement.slot.ended -= Counter({replacement.counted_as: 1})  # never below zero
        self._end(replacement, "called off")
        new = Backoff(longest=LONGEST_BETWEEN_FORKS)
        backoff = self._backoffs.setdefault(replacement.slot, new)
        if not backoff.failures:
            self._log.error(
                "replacement called off: the new child died; the old one goes on",
                child=replacement.slot.name,
                why=replacement.why,
                reason=reason,
            )
        backoff.pause()

    def _end(self, replacement: Replacement, outcome: Outcome) -> None:
        replacement.outcome = outcome
        del self._under_way[replacement.slot]


class _Removal(msgspec.Struct, eq=False):
    """A frozen child; ``halt_by`` and ``kill_by`` are monotonic. Its jobs get ``crash`` as their
    crash record."""

    child: ChildHandle
    crash: ProcessDeath | None
    halt_by: float
    kill_by: float


class Removals:
    """The removals that are under way. The slot of a removed child is empty at once, so that the
    loop fills it while the jobs go back."""

    def __init__(self, children: Children, rescue: Rescue, log: FilteringBoundLogger) -> None:
        self._children = children
        self._rescue = rescue
        self._log = log
        self._under_way: list[_Removal] = []

    def __iter__(self) -> Iterator[ChildHandle]:
        return (removal.child for removal in self._under_way)

    @property
    def due(self) -> float | None:
        """When ``advance`` has something to do (monotonic)."""
        return time.monotonic() + _HALT_CHECK if self._under_way else None

    def begin(
        self, child: ChildHandle, crash: ProcessDeath | None, why: str, *, overdue: bool = False
    ) -> bool:
        """Logs ``why`` and freezes ``child``; its jobs get ``crash`` as their crash record, or are
        marked as failed if they are ``overdue``. False if it is frozen or killed already, or has
        been reaped."""
        frozen = self.freeze(child, crash)
        if frozen:
            child.fail_overdue = overdue
            self._log.error(
                "removing a child by force; its jobs go back",
                child=child.name,
                pid=child.pid,
                why=why,
            )
        return frozen

    def freeze(
        self, child: ChildHandle, crash: ProcessDeath | None, kill_by: float | None = None
    ) -> bool:
        """Begins a removal without a line in the log. ``kill_by`` (monotonic): how long Redis
        has."""
        if child.frozen or child.killed or child not in self._children:
            return False
        os.kill(child.pid, signal.SIGSTOP)
        child.frozen = True
        now = time.monotonic()
        kill_by = now + _KILL_AFTER if kill_by is None else kill_by
        self._under_way.append(_Removal(child, crash, now + _HALT_LIMIT, kill_by))
        self._children.slots.empty(child)
        return True

    def advance(self) -> None:
        """Takes the next step of each. Called before the dead are reaped: a frozen child that was
        killed from outside still gets its crash record."""
        self._under_way = [removal for removal in self._under_way if not self._advance(removal)]

    def _advance(self, removal: _Removal) -> bool:
        """Returns whether it is over."""
        child = removal.child
        if child not in self._children:
            return True
        if not self._children.deaths.has_rescue(child):
            if has_halted(child) or time.monotonic() >= removal.halt_by:
                self._children.deaths.rescue(child, removal.crash)
            return False
        if self._rescue.holds(child.identity) and time.monotonic() < removal.kill_by:
            return False
        child.kill()
        return True


def has_halted(child: ChildHandle) -> bool:
    """Whether a frozen child has come to a halt (or has ended)."""
    options = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, child.pid, options) is not None
