"""Passes on what the clocks tell: until when this host leads, and which classes are held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..config.shards import DEFAULT_SHARD
from ..runtime.pipe import HoldClasses, Lead
from .child_handle import ChildHandle
from .children import Children
from .slot import Slot


class LeaderRelay:
    """Passes on the leader's lease: the clock holds it, and one child of this host leads by it.

    Called by the master's loop. Two children never lead at once: the master tells another one
    only after the first one has died, or has reported that it is quiet and so leads no more."""

    def __init__(self) -> None:
        self._leader: ChildHandle | None = None
        self._sent_until = 0.0

    @property
    def leader_pid(self) -> int:
        """The pid of the child that leads; 0 if none does."""
        return 0 if self._leader is None else self._leader.pid

    def adopt(self, leader: ChildHandle | None) -> None:
        """In the master's next program: ``leader`` was told by the program before."""
        self._leader = leader

    def advance(self, slots: Iterable[Slot], by_pid: Mapping[int, ChildHandle]) -> None:
        """Tells one child until when the clock holds the lease, if that has changed. Of shards it
        is the default one's: each has a lease, and one process is the leader of all."""
        clocks = (child for child in by_pid.values() if child.slot.shard in ("", DEFAULT_SHARD))
        held_until = max((child.lease_held_until for child in clocks), default=0.0)
        if not self._has_leader(by_pid):
            self._leader, self._sent_until = _first_running(slots), 0.0
        if self._leader is not None and held_until != self._sent_until:
            self._leader.send(Lead(held_until))
            self._sent_until = held_until

    def _has_leader(self, by_pid: Mapping[int, ChildHandle]) -> bool:
        leader = self._leader
        return leader is not None and by_pid.get(leader.pid) is leader and _can_lead(leader)


class HeldClassRelay:
    """Passes on which classes are held: the clock of a shard sees it in Redis, and the children
    whose jobs are there obey.

    Called in each turn of the master's loop, right after the forks: a new child must know it
    before it fetches."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._held: dict[str, tuple[str, ...]] = {}  # by shard; a clock may die
        self._told: dict[ChildHandle, tuple[str, ...]] = {}

    def advance(self) -> None:
        """Tells each child what it does not know yet. One whose pipe is full is told later."""
        for child in self._children:
            if child.slot.capsule is None and child.held_classes is not None:
                self._held[child.shard] = tuple(child.held_classes)
        self._told = {
            child: known for child, known in self._told.items() if child in self._children
        }
        for child in self._children:
            names = self._held.get(child.shard, ())
            if child.slot.capsule is None or names == self._told.get(child, ()):
                continue
            if child.send(HoldClasses(names)):
                self._told[child] = names


def _first_running(slots: Iterable[Slot]) -> ChildHandle | None:
    return next((slot.child for slot in slots if slot.child and _can_lead(slot.child)), None)


def _can_lead(child: ChildHandle) -> bool:
    """Whether it runs jobs: not the clock, and neither booting nor quiet nor stopping."""
    return child.slot.capsule is not None and child.state == "running"
