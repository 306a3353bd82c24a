"""What the master passes on between others: until when this host leads, which classes are held, and
a command's wish for the counts of now."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..config.shards import DEFAULT_SHARD
from ..runtime.pipe import HoldClasses, Lead, SendBeat
from .child_handle import ChildHandle
from .children import Children
from .slot import Slots


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

    def inherit(self, leader: ChildHandle | None) -> None:
        """In the master's next program: ``leader`` was told by the program before."""
        self._leader = leader

    def advance(self, slots: Slots, by_pid: Mapping[int, ChildHandle]) -> None:
        """Tells one child until when the clock holds the lease, if that has changed. Of shards it
        is the default one's: each has a lease, and one process is the leader of all."""
        clocks = (child for child in by_pid.values() if child.slot.shard in ("", DEFAULT_SHARD))
        held_until = max((child.told.leads_until for child in clocks), default=0.0)
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
            if child.slot.capsule is None and child.told.held_classes is not None:
                self._held[child.shard] = tuple(child.told.held_classes)
        self._told = {
            child: known for child, known in self._told.items() if child in self._children
        }
        for child in self._children:
            names = self._held.get(child.shard, ())
            if child.slot.capsule is None or names == self._told.get(child, ()):
                continue
            if child.send(HoldClasses(names)):
                self._told[child] = names


class FreshCounts:
    """The counts of all children as of now, for ``forkq status`` and ``forkq stats``: asks the
    children, and finds whether they have answered.

    A child reports by itself what has changed since its last Beat, once a second. A job tells no
    other process of its end: that would cost each job a system call. A command that shows counts
    sends the master SIGURG instead."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._asked: list[ChildHandle] = []
        self._asked_at = self._reported_at = 0.0

    def ask(self) -> None:
        """Asks each child that runs jobs."""
        self._asked_at = time.monotonic()
        self._asked = [child for child in self._children if child.was_ready and child.slot.capsule]
        for child in self._asked:
            child.send(SendBeat(self._asked_at))

    def note_answers(self) -> float:
        """Notes which children have answered. Returns when the counts were last asked for
        (monotonic) that have arrived from every child, or from all but those that have ended
        meanwhile; 0 before."""
        if all(self._has_answered(child) for child in self._asked):
            self._reported_at, self._asked = self._asked_at, []
        return self._reported_at

    def _has_answered(self, child: ChildHandle) -> bool:
        return child.beat.asked_at >= self._asked_at or child not in self._children


def _first_running(slots: Slots) -> ChildHandle | None:
    children = (slots.child(slot) for slot in slots)
    return next((child for child in children if child is not None and _can_lead(child)), None)


def _can_lead(child: ChildHandle) -> bool:
    """Whether it runs jobs: not the clock, and neither booting nor quiet nor stopping."""
    return child.slot.capsule is not None and child.beat.state == "running"
