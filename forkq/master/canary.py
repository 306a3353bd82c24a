"""Canaries: the first children with new code, one for each capsule. The master starts them by exec,
in fresh interpreters that read the configuration again, and watches them before it replaces any
other child."""

from __future__ import annotations

import time
from typing import Final

from ..runtime.pipe import Stop
from .child_handle import ChildHandle
from .children import Children
from .handover import Fixed
from .slot import Slot

_SUFFIX: Final = ".canary"
# Seconds that each must live after it was ready.
_WATCH: Final = 2.0
# Seconds after which one is trusted although its first job still runs.
_LONGEST_WATCH: Final = 10.0
# Seconds between two looks at one that has lived long enough, but whose first job still runs.
_CHECK: Final = 0.1


def is_canary(child: ChildHandle) -> bool:
    """Whether it is the canary of its capsule, by its name: that outlives the master's exec."""
    return child.name.endswith(_SUFFIX)


class Canaries:
    """Under watch from ``begin`` until ``retire``, or the next ``begin``."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._watched: list[_Canary] = []

    @property
    def due(self) -> float | None:
        """When ``have_proved`` may have changed with no fact from a canary (monotonic)."""
        return min((one.due for one in self._watched if one.due is not None), default=None)

    def begin(self, fixed: Fixed, *, quiet: bool) -> None:
        """Starts them, with slots of their own beside the others. Raises OSError."""
        self._watched = []
        capsules = {
            slot.capsule.name: slot.capsule for slot in self._children.slots if slot.capsule
        }
        for name, capsule in capsules.items():
            slot = Slot(f"{name}{_SUFFIX}", capsule)
            child = self._children.fork(slot, quiet=quiet, fresh=fixed)
            self._watched.append(_Canary(child))

    def retire(self) -> None:
        """Ends the watch, and each canary when its jobs have ended."""
        for one in self._watched:
            if one.child in self._children:
                one.child.send(Stop(None))
        self._watched = []

    @property
    def failed(self) -> tuple[str, str] | None:
        """The name of the first one that has failed, and why; None if there is none."""
        dead = [one for one in self._watched if one.child not in self._children]
        return next(((one.child.name, one.failure) for one in dead), None)

    @property
    def have_proved(self) -> bool:
        """Whether each has lived long enough after it was ready, and has ended its first job if it
        has one."""
        if not self._watched or self.failed:
            return False
        for one in self._watched:
            one.look()
        return all(one.has_proved for one in self._watched)


class _Canary:
    """One of them."""

    def __init__(self, child: ChildHandle) -> None:
        self.child = child
        self._ready_at: float | None = None

    @property
    def due(self) -> float | None:
        if self._ready_at is None:
            return None
        return max(self._ready_at + _WATCH, time.monotonic() + _CHECK)

    def look(self) -> None:
        """Notes since when it is ready."""
        if self.child.was_ready and self._ready_at is None:
            self._ready_at = time.monotonic()

    @property
    def failure(self) -> str:
        """Why it has failed, if it is dead."""
        child = self.child
        if self._ready_at is None:
            return child.reason or f"it died with {child.how} before it was ready"
        how = "a job beyond its hard_timeout" if child.fail_overdue else child.how
        return f"it died with {how} {self._age():.1f} s after it was ready"

    @property
    def has_proved(self) -> bool:
        if self._ready_at is None:
            return False
        idle_or_done = self.child.processed > 0 or not self.child.busy
        return self._age() >= (_WATCH if idle_or_done else _LONGEST_WATCH)

    def _age(self) -> float:
        return time.monotonic() - (self._ready_at or 0.0)
