"""The rolling restart: slot by slot the master replaces every child."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .children import Children
from .replacement import Replacement, Replacements
from .slot import Slot

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class RollingRestart:
    """Under way from ``begin`` until the last slot has its new child. ``reason``: why it was called
    off before that; "" if it was not."""

    def __init__(
        self, children: Children, replacements: Replacements, log: FilteringBoundLogger
    ) -> None:
        self._children = children
        self._replacements = replacements
        self._log = log
        self._waiting: list[Slot] = []
        self._current: Replacement | None = None
        self.reason = ""

    @property
    def under_way(self) -> bool:
        """Whether slots still wait for their new child."""
        return bool(self._waiting) or self._current is not None

    def begin(self) -> None:
        """Starts the replacement of every child that is in a slot now; a child that comes into an
        empty slot is new anyway."""
        self._log.info("rolling restart: new children first, old ones end in their own time")
        self._waiting = [slot for slot in self._children.slots if slot.child is not None]
        self.reason = ""

    def advance(self) -> None:
        """Takes the next step, if its time has come."""
        if self._current is None:
            self._replace_next()
        elif self._current.outcome != "under way":
            self._handle_outcome(self._current)

    def _replace_next(self) -> None:
        while self._waiting and self._current is None:
            slot = self._waiting[0]
            if slot in self._replacements:
                return  # its new child may have older code: that one is replaced afterwards
            del self._waiting[0]
            if slot.child is not None:  # an empty slot gets a new child anyway
                self._replacements.end_pauses()  # the new code may boot
                self._current = self._replacements.begin(slot.child, "rolling restart")

    def _handle_outcome(self, ended: Replacement) -> None:
        self._current = None
        if ended.outcome == "called off":
            self._waiting = []
            self.reason = f"{ended.slot.name}: {ended.reason}"
            self._log.error(
                "rolling restart called off: the new child died; the old ones go on",
                child=ended.slot.name,
                reason=ended.reason,
            )
