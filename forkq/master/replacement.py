"""Replaces a child: the master forks a new one for its slot. When the new one is ready it takes the
slot, and the old one fetches no more and ends when its last job has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..runtime.pipe import Stop
from ..store.outage import LONGEST_BETWEEN_FORKS, Backoff
from .child_handle import ChildHandle
from .children import Children
from .slot import Slot

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

Outcome: TypeAlias = Literal["under way", "done", "called off"]


@dataclass(slots=True, eq=False)
class Replacement:
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
    """Those that are under way: of any number of slots, one for each slot at most."""

    def __init__(self, children: Children, log: FilteringBoundLogger) -> None:
        self._children = children
        self._log = log
        self._under_way: dict[Slot, Replacement] = {}
        self._backoffs: dict[Slot, Backoff] = {}

    def __iter__(self) -> Iterator[Replacement]:
        return iter(self._under_way.values())

    def __contains__(self, slot: Slot) -> bool:
        return slot in self._under_way

    def begin(self, child: ChildHandle, why: str) -> Replacement | None:
        """Starts the replacement of ``child``; ``advance`` forks the new one. None if the child is
        in no slot any more, if its slot has one under way, or if the slot's last one was called off
        a short time ago."""
        slot = child.slot
        if slot.child is not child or slot in self._under_way or self._is_paused(slot):
            return None
        replacement = self._under_way[slot] = Replacement(slot, child, why)
        return replacement

    def end_pauses(self) -> None:
        """There may be new code that boots: every slot may have a replacement at once."""
        self._backoffs.clear()

    def advance(self, *, quiet: bool = False) -> None:
        """Takes the next step of each. Called before the empty slots are filled, so that a slot
        whose old child died gets the new one. ``quiet``: new children fetch nothing."""
        for replacement in list(self):
            self._advance(replacement, quiet)

    def _is_paused(self, slot: Slot) -> bool:
        backoff = self._backoffs.get(slot)
        return backoff is not None and not backoff.over

    def _advance(self, replacement: Replacement, quiet: bool) -> None:
        slot, new = replacement.slot, replacement.new
        if new is None:
            self._fork(replacement, quiet)
        elif new not in self._children:
            self._call_off(replacement, new.told.reason or f"it died with {new.how}")
        else:
            if slot.child is None:  # the old one died: no third child is forked
                slot.child = new
            if new.was_ready:
                self._hand_over(replacement, new)

    def _fork(self, replacement: Replacement, quiet: bool) -> None:
        slot = replacement.slot
        if slot.child is None:  # the old one died, so the slot gets a new one anyway
            self._end(replacement, "done")
            return
        slot.ended[replacement.counted_as] += 1
        try:
            replacement.new = self._children.fork(slot, quiet=quiet)
        except OSError as error:
            self._call_off(replacement, f"it cannot be forked: {error}")

    def _hand_over(self, replacement: Replacement, new: ChildHandle) -> None:
        """The new child is ready: it takes the slot, and the old one retires."""
        old, slot = replacement.old, replacement.slot
        if slot.child is old:
            slot.child = new
            old.retire()
        elif slot.child is not new:
            new.send(Stop(None))  # the old one died meanwhile, and its slot was filled
        self._backoffs.pop(slot, None)
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
