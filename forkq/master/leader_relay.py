"""Which child leads in this host's name, while the clock holds the leader's lease."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..runtime.pipe import Lead
from .child_handle import ChildHandle, Slot


class Leadership:
    """Passed on by the master's loop. Never two children at once: another one is told only when the
    last one is dead, or has reported that it is quiet, and so leads no more."""

    def __init__(self) -> None:
        self._leader: ChildHandle | None = None
        self._until = 0.0

    def go_on(self, slots: Iterable[Slot], children: Mapping[int, ChildHandle]) -> None:
        """Tells one child until when the clock holds the lease, if there is news."""
        held = max((child.leads_until for child in children.values()), default=0.0)
        if not self._leads_on(children):
            self._leader, self._until = _heir(slots), 0.0
        if self._leader is not None and held != self._until:
            self._leader.order(Lead(held))
            self._until = held

    def _leads_on(self, children: Mapping[int, ChildHandle]) -> bool:
        leader = self._leader
        return leader is not None and children.get(leader.pid) is leader and _fit(leader)


def _heir(slots: Iterable[Slot]) -> ChildHandle | None:
    """The first child that runs jobs."""
    return next((slot.child for slot in slots if slot.child and _fit(slot.child)), None)


def _fit(child: ChildHandle) -> bool:
    return child.slot.capsule is not None and child.state == "running"
