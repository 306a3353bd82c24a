"""Removes a child by force: freezes it, returns its jobs to their queues, and kills it.

Frozen first, none of its jobs can finish after it went back, or run in two places.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..store.crash_record import ProcessDeath
from .child_handle import ChildHandle
from .children import Children
from .rescue import Rescue

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Seconds in which a frozen child comes to a halt. One that has not is stuck in the kernel, and runs
# nothing.
_HALT_LIMIT: Final = 0.25
_HALT_CHECK: Final = 0.01
# Seconds after which a frozen child is killed, however few jobs Redis has taken back. The rescue
# goes on then.
_KILL_AFTER: Final = 1.0


@dataclass(slots=True, eq=False)
class _Removal:
    """A frozen child; ``halt_by`` and ``kill_by`` are monotonic. Its jobs get ``crash`` as their
    crash record."""

    child: ChildHandle
    crash: ProcessDeath | None
    halt_by: float
    kill_by: float


class Removals:
    """Those that are under way. The slot of a removed child is empty at once, so that the loop
    fills it while the jobs go back."""

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

    def begin(self, child: ChildHandle, crash: ProcessDeath | None, why: str) -> bool:
        """Logs ``why`` and freezes ``child``; its jobs get ``crash`` as their crash record. False
        if it is frozen or killed already, or has been reaped."""
        frozen = self.freeze(child, crash)
        if frozen:
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
        """As ``begin``, without a line in the log. ``kill_by`` (monotonic): how long Redis has."""
        if child.frozen or child.killed or child not in self._children:
            return False
        child.freeze()
        now = time.monotonic()
        kill_by = now + _KILL_AFTER if kill_by is None else kill_by
        self._under_way.append(_Removal(child, crash, now + _HALT_LIMIT, kill_by))
        if child.slot.child is child:
            child.slot.record_death(child, "")
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
        if not child.rescued:
            if child.has_halted() or time.monotonic() >= removal.halt_by:
                self._children.rescue(child, removal.crash)
            return False
        if self._rescue.holds(child.identity) and time.monotonic() < removal.kill_by:
            return False
        child.kill()
        return True
