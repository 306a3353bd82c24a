"""The canary: the first child with new code. The master starts it by exec, in a fresh interpreter
that reads the configuration again, and watches it before it replaces any other child."""

from __future__ import annotations

import time
from typing import Final

from .child_handle import ChildHandle
from .children import Children
from .handover import Fixed
from .slot import Slot

NAME: Final = "canary"
# Seconds that it must live after it was ready.
_WATCH: Final = 2.0
# Seconds after which it is trusted although its first job still runs.
_LONGEST_WATCH: Final = 10.0
# Seconds between two looks at a canary that has lived long enough, but whose first job still runs.
_CHECK: Final = 0.1


class Canary:
    """Under watch from ``begin`` until ``forget``, or the next ``begin``."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._child: ChildHandle | None = None
        self._ready_at: float | None = None

    @property
    def due(self) -> float | None:
        """When ``has_proved`` may have changed with no fact from the canary (monotonic)."""
        if self._ready_at is None:
            return None
        return max(self._ready_at + _WATCH, time.monotonic() + _CHECK)

    def begin(self, fixed: Fixed, *, quiet: bool) -> None:
        """Starts it, with a slot of its own beside the others. Raises OSError."""
        capsule = next(slot.capsule for slot in self._children.slots if slot.capsule)
        self._ready_at = None
        self._child = self._children.fork(Slot(NAME, capsule), quiet=quiet, fresh=fixed)

    def forget(self) -> None:
        """Ends the watch."""
        self._child = self._ready_at = None

    @property
    def failure(self) -> str:
        """Why it has failed; "" if it has not."""
        child = self._child
        if child is None or child in self._children:
            return ""
        if self._ready_at is None:
            return child.reason or f"it died with {child.how} before it was ready"
        how = "a job beyond its hard_timeout" if child.fail_overdue else child.how
        return f"it died with {how} {self._age():.1f} s after it was ready"

    @property
    def has_proved(self) -> bool:
        """Whether it has lived long enough after it was ready, and has ended its first job if it
        has one."""
        if self._child is None or self.failure or not self._child.was_ready:
            return False
        if self._ready_at is None:
            self._ready_at = time.monotonic()
        idle_or_done = self._child.processed > 0 or not self._child.busy
        return self._age() >= (_WATCH if idle_or_done else _LONGEST_WATCH)

    def _age(self) -> float:
        return time.monotonic() - (self._ready_at or 0.0)
