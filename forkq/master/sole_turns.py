"""Turns of a sole child: while it runs suspects, no other solo child of the tree does.

The death of a whole tree leaves records in all jobs that were in progress. Each of these may kill
the next tree, too, so beside them no other suspect may run. An ordinary solo child that finds such
a job puts it back, and asks for a turn. Then all solo children end with the jobs that they have,
and one is forked that may run such jobs. All others have their turn for as long after that.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ..runtime.pipe import Stop
from ..wire.lease import is_solo
from .child_handle import ChildHandle
from .children import Children

if TYPE_CHECKING:
    from .isolation import SoloChildren

# All in seconds. How long the others may need to end; the next time it may be twice as long.
_DRAIN: Final = 60.0
_LONGEST_DRAIN: Final = 43_200.0
# After how long a sole child takes no further job.
_TURN: Final = 30.0
# How long a child must have had nothing to do before that counts.
_IDLE: Final = 1.0


class SoleTurns:
    """Called in each turn of the master's loop. ``children`` knows which solo children live: that
    none of two runs beside a sole one follows from that alone, whatever was killed or handed over
    to the master's next program."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._asking: dict[str, None] = {}  # names of capsules, the first one first
        self._next: SoloChildren | None = None  # its turn begins when all others have ended
        self._patience = _DRAIN
        self._began = 0.0  # all times are monotonic
        self._others_until = 0.0
        self._idle_since: float | None = None

    @property
    def blocks(self) -> bool:
        """Whether no other solo child may begin a suspect."""
        return self._next is not None or self._sole is not None

    @property
    def due(self) -> float | None:
        """When ``advance`` has something to do although no fact arrives."""
        if self._asking or self.blocks:
            return time.monotonic() + _IDLE
        return None

    def advance(self, capsules: Sequence[SoloChildren], *, quiet: bool) -> None:
        """Begins a turn, or ends it."""
        for child in self._children:
            if child.wants_sole and child.slot.capsule is not None and not child.stop_ordered_at:
                self._asking[child.slot.capsule.name] = None
        if (sole := self._sole) is not None:
            self._go_on(sole, quiet=quiet)
        elif self._next is not None:
            self._drain(self._next, quiet=quiet)
        elif not quiet:
            self._perhaps_begin(capsules)

    @property
    def _sole(self) -> ChildHandle | None:
        found = (child for child in self._children if child.sole and not child.runs_for_long)
        return next(found, None)

    def _others(self) -> list[ChildHandle]:
        """The children that may run a suspect. One that runs for long keeps nobody waiting."""
        found = [c for c in self._children if is_solo(c.identity) or c.long_at]
        return [child for child in found if not child.runs_for_long]

    def _perhaps_begin(self, capsules: Sequence[SoloChildren]) -> None:
        """If the others have had their time, or have nothing to do in it."""
        named = {one.capsule: one for one in capsules if one.wanted}
        self._asking = {name: None for name in self._asking if name in named}
        if not self._asking:
            self._idle_since = None
        elif time.monotonic() >= self._others_until or self._are_idle(self._others()):
            able = (named[name] for name in self._asking if named[name].may_fork_sole)
            self._next, self._began = next(able, None), time.monotonic()

    def _drain(self, capsule: SoloChildren, *, quiet: bool) -> None:
        """No further suspect begins (isolation.py). When none runs any more, the turn begins."""
        took = time.monotonic() - self._began
        if quiet or not capsule.may_fork_sole:
            self._next = None
        elif not self._others():
            self._next, self._idle_since = None, None
            self._patience = _DRAIN
            del self._asking[capsule.capsule]
            capsule.fork_sole()
            self._others_until = time.monotonic() + max(_IDLE, took)
        elif took >= self._patience:
            self._next = None
            self._others_until = time.monotonic() + self._patience
            self._patience = min(2 * self._patience, _LONGEST_DRAIN)

    def _go_on(self, sole: ChildHandle, *, quiet: bool) -> None:
        now = time.monotonic()
        self._others_until = now + max(_IDLE, now - self._began)
        is_late = sole.was_ready and now >= sole.ready_at + _TURN
        idle = self._are_idle([sole]) or (quiet and not sole.running)
        if (is_late or idle or sole.state not in ("booting", "running")) and (
            sole.stop_ordered_at is None
        ):
            sole.send(Stop(None))

    def _are_idle(self, children: Sequence[ChildHandle]) -> bool:
        """Whether they have booted, and have had no job for a moment."""
        if any(child.running or not child.was_ready for child in children):
            self._idle_since = None
            return False
        if self._idle_since is None:
            self._idle_since = time.monotonic()
        return time.monotonic() >= self._idle_since + _IDLE
