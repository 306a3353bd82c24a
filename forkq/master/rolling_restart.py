"""The rolling restart: place by place a new child first, then the old one ends in its own time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime.pipe import Stop
from .child_handle import ChildHandle, Slot
from .children import Children

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class Rolling:
    """Under way from ``begin`` until the last place has its new child. Asked for again meanwhile,
    it does one more round: the children that are new already may have older code."""

    def __init__(self, family: Children, log: FilteringBoundLogger) -> None:
        self._children = family
        self._log = log
        self._waiting: list[Slot] = []
        self._old: ChildHandle | None = None
        self._new: ChildHandle | None = None
        self._again = False

    @property
    def under_way(self) -> bool:
        """Whether places still wait for their new child."""
        return bool(self._waiting) or self._new is not None or self._again

    def begin(self) -> bool:
        """Starts a rolling restart. False if one is under way: then another one follows it."""
        if self.under_way:
            if not self._again:
                self._again = True
                self._log.info("rolling restart: one is under way; another one follows it")
            return False
        self._start()
        return True

    def go_on(self, *, quiet: bool = False) -> None:
        """The next step, if its time has come. ``quiet``: new children are to fetch nothing."""
        if self._new is None:
            if self._again and not self._waiting:
                self._again = False
                self._start()
            self._next_place(quiet)
        elif not self._lives(self._new):
            self._call_off(self._new)
        elif self._new.was_ready:
            self._hand_over(self._new)

    def _start(self) -> None:
        self._log.info("rolling restart: new children first, old ones end in their own time")
        self._waiting = list(self._children.slots)
        self._children.begin_generation()

    def _next_place(self, quiet: bool) -> None:
        while self._waiting:
            slot = self._waiting.pop(0)
            if slot.child is not None:  # an empty place gets a new child anyway
                self._old = slot.child
                try:
                    self._new = self._children.fork(slot, quiet=quiet)
                except OSError as error:
                    self._waiting.clear()
                    self._log.error("rolling restart called off: cannot fork", error=str(error))
                return

    def _hand_over(self, new: ChildHandle) -> None:
        """The new child is ready: it takes the place, and the old one retires."""
        old, slot = self._old, new.slot
        self._old = self._new = None
        if slot.child is not None and slot.child is not old:
            new.order(Stop(None))  # the old one died meanwhile, and its place was filled
            return
        slot.child = new
        if old is not None and self._lives(old):
            old.order(Stop(None))
        if not self.under_way:
            self._log.info("rolling restart: every place has its new child")

    def _lives(self, child: ChildHandle) -> bool:
        """Whether it has not been reaped: the descriptors of one that has may be another's now."""
        return self._children.children.get(child.pid) is child

    def _call_off(self, new: ChildHandle) -> None:
        """The new code does not boot: the old children stay."""
        self._log.error(
            "rolling restart called off: the new child died; the old ones go on",
            child=new.name,
            reason=new.reason or "it was killed",
        )
        self._waiting, self._old, self._new = [], None, None
