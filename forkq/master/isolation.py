"""Isolation: each suspect runs alone, in a solo child that the master forks for it.

A suspect is a job that was in progress when a process died. A child that fetches one holds its
lease and reports it. The master names the lease to a solo child of the same capsule, which takes it
over in Redis (adopt.lua) and runs the job. A few solo children run side by side, so that innocent
jobs do not wait for each other. They end when no suspect is left.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from ..config.capsule import Capsule
from ..limits.patterns import matches_any
from ..runtime.pipe import Adopt, Adopted, PutBack, Release, Stop, SuspectHeld
from ..wire.lease import is_solo
from .child_handle import ChildHandle
from .children import Children
from .slot import Slot

# How many solo children of one capsule run side by side.
MOST_SOLO: Final = 4
# Seconds that solo children without a job stay, for the next suspect.
_LINGER: Final = 1.0


@dataclass(slots=True, eq=False)
class Suspect:
    """One suspect: who holds its lease. ``adopted``: its solo child does, by now."""

    holder: ChildHandle
    queue: str
    sequence: int
    adopted: bool = False


class Isolation:
    """Called in each turn of the master's loop, until the tree stops."""

    def __init__(self, capsules: tuple[Capsule, ...], children: Children) -> None:
        self._children = children
        self._wards = {capsule.name: SoloChildren(capsule, children) for capsule in capsules}

    def begin_anew(self) -> None:
        """In the master's next program (succession.py), which knows of no suspect: the children put
        theirs back, and the solo children end with the job that they have."""
        for child in self._children:
            child.send(Stop(None) if is_solo(child.identity) else PutBack())

    def advance(self, *, quiet: bool) -> None:
        """Reads what the children have reported, and takes the next steps. A quiet tree begins no
        job: its children put the suspects back that they hold."""
        for child in self._children:
            if not child.isolation_facts or child.slot.capsule is None:
                continue
            facts, child.isolation_facts = child.isolation_facts, []
            ward = self._wards.get(child.slot.capsule.name)
            if ward is not None:  # else the child has outlived a rolling restart
                ward.read(child, facts)
        for ward in self._wards.values():
            ward.advance(quiet=quiet)


class SoloChildren:
    """The solo children of one capsule, and the suspects that wait for them."""

    def __init__(self, capsule: Capsule, children: Children) -> None:
        # Only what kills a child applies: solo children are too short-lived to be recycled.
        recycling = replace(capsule.recycling, max_memory=0, max_jobs=0, max_age=0.0)
        alone = replace(capsule, concurrency=1, workers=1, recycling=recycling)
        most = min(MOST_SOLO, capsule.concurrency * capsule.workers)
        self._slots = [Slot(f"{capsule.name}.solo{n}", alone, solo=True) for n in range(most)]
        self._queues = capsule.queue_names
        self._children = children
        children.solo_slots += self._slots
        self._waiting: deque[Suspect] = deque()
        self._running: dict[ChildHandle, Suspect] = {}  # by solo child
        self._idle_since = time.monotonic()

    def read(self, child: ChildHandle, facts: Iterable[object]) -> None:
        """What ``child`` has reported."""
        for fact in facts:
            self._read(child, fact)

    def _read(self, child: ChildHandle, fact: object) -> None:
        if isinstance(fact, SuspectHeld):
            # After a rolling restart an old child may serve other queues: it returns what it holds
            # when it ends, and a child that serves the queue fetches it.
            if matches_any(fact.queue, self._queues):
                self._waiting.append(Suspect(child, fact.queue, fact.sequence))
        elif isinstance(fact, Adopted) and child in self._running:
            suspect = self._running[child]
            suspect.adopted = True
            if suspect.holder in self._children:
                suspect.holder.send(Release(suspect.sequence))
            if not fact.found:
                del self._running[child]
        else:
            self._running.pop(child, None)

    def advance(self, *, quiet: bool) -> None:
        """Names suspects to solo children that are free, and forks or ends solo children."""
        self._forget_the_dead()
        if quiet:
            self._waiting.clear()
        if self._waiting or self._running:
            self._idle_since = time.monotonic()
            self._assign()
            self._fork_missing()
        elif quiet or time.monotonic() >= self._idle_since + _LINGER:
            self._end_idle()

    def _forget_the_dead(self) -> None:
        """What a solo child had not taken over when it died, or went quiet, waits for another one.
        The rescue returns what a dead child held, and then it is fetched again."""
        for child, suspect in list(self._running.items()):
            if child not in self._children or (child.state != "running" and not suspect.adopted):
                del self._running[child]
                if not suspect.adopted:
                    self._waiting.appendleft(suspect)
        if self._waiting:
            self._waiting = deque(one for one in self._waiting if one.holder in self._children)

    def _assign(self) -> None:
        for slot in self._slots:
            child = slot.child
            if child is None or not self._waiting or not self._is_idle(child):
                continue
            if child.state != "running":  # a web UI made it quiet: another one takes its slot
                child.send(Stop(None))
                continue
            suspect = self._waiting.popleft()
            self._running[child] = suspect
            child.send(Adopt(suspect.holder.identity, suspect.queue, suspect.sequence))

    def _fork_missing(self) -> None:
        empty = [slot for slot in self._slots if slot.child is None]
        there = [slot.child for slot in self._slots if slot.child is not None]
        staying = sum(child.stop_ordered_at is None for child in there)
        missing = len(self._waiting) + len(self._running) - staying
        for slot in empty[: max(0, missing)]:
            if time.monotonic() >= slot.due:
                self._children.fill(slot)

    def _end_idle(self) -> None:
        for slot in self._slots:
            if slot.child is None:
                slot.boot_failures, slot.fork_error = 0, ""  # nothing is missing without a suspect
            if slot.child is not None and self._is_idle(slot.child):
                slot.child.send(Stop(None))

    def _is_idle(self, child: ChildHandle) -> bool:
        """Whether it has booted, has no suspect, and was not told to end."""
        return child.was_ready and child not in self._running and child.stop_ordered_at is None
