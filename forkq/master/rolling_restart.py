"""The rolling restart: slot by slot the master forks a new child, and then the old one ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime.pipe import Stop
from .child_handle import ChildHandle, Slot
from .children import Children

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class RollingRestart:
    """Under way from ``begin`` until the last slot has its new child. ``reason``: why it was called
    off before that; "" if it was not."""

    def __init__(self, children: Children, log: FilteringBoundLogger) -> None:
        self._children = children
        self._log = log
        self._waiting: list[Slot] = []
        self._old: ChildHandle | None = None
        self._new: ChildHandle | None = None
        self.reason = ""

    @property
    def under_way(self) -> bool:
        """Whether slots still wait for their new child."""
        return bool(self._waiting) or self._new is not None

    def begin(self) -> None:
        """Starts the replacement of every child that is in a slot now; a child that comes into an
        empty slot is new anyway."""
        self._log.info("rolling restart: new children first, old ones end in their own time")
        self._waiting = [slot for slot in self._children.slots if slot.child is not None]
        self.reason = ""

    def advance(self, *, quiet: bool = False) -> None:
        """Takes the next step, if its time has come. ``quiet``: new children fetch nothing."""
        if self._new is None:
            self._fork_next(quiet)
        elif not self._is_alive(self._new):
            self._call_off(self._new)
        elif self._new.was_ready:
            self._replace_old(self._new)

    def _fork_next(self, quiet: bool) -> None:
        while self._waiting:
            slot = self._waiting.pop(0)
            if slot.child is not None:  # an empty slot gets a new child anyway
                self._old = slot.child
                try:
                    self._new = self._children.fork(slot, quiet=quiet)
                except OSError as error:
                    self._waiting.clear()
                    self.reason = f"cannot fork: {error}"
                    self._log.error("rolling restart called off: cannot fork", error=str(error))
                return

    def _replace_old(self, new: ChildHandle) -> None:
        """The new child is ready: it takes the slot, and the old one retires."""
        old, slot = self._old, new.slot
        self._old = self._new = None
        if slot.child is not None and slot.child is not old:
            new.send(Stop(None))  # the old one died meanwhile, and its slot was filled
            return
        slot.child = new
        if old is not None and self._is_alive(old):
            old.send(Stop(None))
        if not self.under_way:
            self._log.info("rolling restart: every child is new")

    def _is_alive(self, child: ChildHandle) -> bool:
        """Whether it has not been reaped. After that its descriptors may be another child's."""
        return self._children.by_pid.get(child.pid) is child

    def _call_off(self, new: ChildHandle) -> None:
        """The new code does not boot: the old children stay."""
        self.reason = f"{new.name}: {new.reason or f'it died with {new.how}'}"
        self._log.error(
            "rolling restart called off: the new child died; the old ones go on",
            child=new.name,
            reason=self.reason,
        )
        self._waiting, self._old, self._new = [], None, None
