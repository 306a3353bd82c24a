"""Isolation: each suspect runs alone, in a solo child, or in a group of suspects.

A suspect is a job that was in progress when a process died. It waits in a list of its own, from
which only solo children fetch, one job each; those of an async capsule, a group of those that were
in progress together. The master forks the first solo child of a capsule
when its own rescue or its clock says that suspects wait there, and more when each has a job and
still some wait. All but one end when they find nothing; the last one, when no suspect is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Final

from ..config.capsule import MOST_TOGETHER, Capsule
from ..runtime.memory import available, resident
from ..runtime.pipe import RunSuspects, Stop
from ..values import replace
from ..wire.lease import is_solo
from .child_handle import ChildHandle
from .children import Children
from .slot import Slot

# After so many solo children that could not boot, an ordinary child runs the suspects.
_BOOT_TRIES: Final = 3
# All in seconds. How long a solo child without a job stays, for the next suspect.
_LINGER: Final = 1.0
# How long the master goes by its own rescue; by then its clock has told what waits.
_RESCUE_COUNTS: Final = 5.0
# How long all solo children must have had a job before more are forked: the clock may not yet have
# told that they took the last suspect.
_NEWS_TRAVELS: Final = 0.1
# Of the turns of a sole child. How long the others may need to end; the next time it may be twice
# as long.
_DRAIN: Final = 60.0
_LONGEST_DRAIN: Final = 43_200.0
# After how long a sole child takes no further job.
_TURN: Final = 30.0
# How long a child must have had nothing to do before that counts.
_IDLE: Final = 1.0


class Isolation:
    """Called in each turn of the master's loop, until the tree stops."""

    def __init__(
        self,
        capsules: tuple[Capsule, ...],
        children: Children,
        is_silent: Callable[[ChildHandle], bool],
        free_memory: Callable[[], int] = available,
    ) -> None:
        self._children = children
        self._capsules = [
            SoloChildren(capsule, children, is_silent, free_memory) for capsule in capsules
        ]
        self._sole_turns = SoleTurns(children, is_silent)

    @property
    def due(self) -> float | None:
        """When ``advance`` has something to do (monotonic)."""
        moments = [self._sole_turns.due, *(each.due for each in self._capsules)]
        return min((moment for moment in moments if moment is not None), default=None)

    def begin_anew(self) -> None:
        """In the master's next program (restart.py): the solo children of the one before end
        with the job that they have, and no other child runs suspects any more."""
        for child in self._children:
            if is_solo(child.identity):
                child.send(Stop(None))
            elif child.slot.capsule is not None:
                child.send(RunSuspects(on=False))  # perhaps it has a suspect's lease

    def advance(self, *, quiet: bool) -> None:
        """Forks and ends solo children. A quiet tree begins no job."""
        rescued = self._children.deaths.take_suspects()
        told = {name for child in self._children for name in child.told.suspects}
        self._sole_turns.advance(self._capsules, quiet=quiet)
        for each in self._capsules:
            each.note(rescued=each.capsule in rescued, told=each.capsule in told)
            if self._sole_turns.blocks:
                each.make_way()
            else:
                each.advance(quiet=quiet)
        self._children.slots.solo = [slot for each in self._capsules for slot in each.wanted_slots]


class SoloChildren:
    """The solo children of one capsule."""

    def __init__(
        self,
        capsule: Capsule,
        children: Children,
        is_silent: Callable[[ChildHandle], bool],
        free_memory: Callable[[], int],
    ) -> None:
        # Only what kills a child applies: solo children are too short-lived to be recycled.
        recycling = replace(capsule.recycling, max_memory=0, max_jobs=0, max_age=0.0)
        together = min(capsule.concurrency, MOST_TOGETHER) if capsule.is_async else 1
        self._alone = replace(capsule, concurrency=together, workers=1, recycling=recycling)
        self._most = capsule.most_solo
        self._children = children
        self._is_silent = is_silent
        self._free_memory = free_memory
        self._slots: list[Slot] = []
        self._sole_slots: list[Slot] = []
        self._told = False
        self._rescued_until = 0.0  # all times are monotonic
        self._all_busy_since: float | None = None
        self._surplus_since: float | None = None
        self._substitute: ChildHandle | None = None

    @property
    def capsule(self) -> str:
        """The name of the capsule."""
        return self._alone.name

    @property
    def due(self) -> float | None:
        """When there is something to do although no fact arrives; None: never."""
        moments = []
        if self._all_busy_since is not None and self.wanted and self._has_ordinary:
            moments.append(self._all_busy_since + _NEWS_TRAVELS)
        if self._surplus_since is not None:
            moments.append(self._surplus_since + _LINGER)
        return min(moments, default=None)

    def note(self, *, rescued: bool, told: bool) -> None:
        """Notes that suspects wait: a rescue has just made them, or the clock has found them."""
        self._told = told
        if rescued:
            self._rescued_until = time.monotonic() + _RESCUE_COUNTS

    def advance(self, *, quiet: bool) -> None:
        """Forks what is missing, and ends what has nothing to do."""
        staying = self._staying()
        idle = [child for child in staying if child.was_ready and not child.running]
        is_full = bool(staying) and all(child.was_ready and child.running for child in staying)
        # A quiet tree forks none. A child that hangs cannot tell that it is quiet.
        self._all_busy_since = _since(self._all_busy_since, condition=is_full and not quiet)
        wanted = self.wanted and not quiet
        if not self._has_ordinary:
            if any(slot.boot_failures for slot in self._own_slots()):
                self._make_room(staying)
        elif wanted:
            self._fork_missing(staying)
        surplus = idle[1:] if wanted else idle
        self._surplus_since = _since(self._surplus_since, condition=bool(surplus))
        linger = 0.0 if quiet else _LINGER
        if self._surplus_since is not None and _has_passed(self._surplus_since, linger):
            for child in surplus:
                child.send(Stop(None))
        self._order_substitute(staying, wanted=wanted)

    def make_way(self) -> None:
        """A sole child runs suspects, or will: the solo children end with the jobs that they have,
        and none is forked."""
        self._all_busy_since = self._surplus_since = None
        staying = self._staying()
        for child in staying:
            child.send(Stop(None))
        self._order_substitute(staying, wanted=False)

    @property
    def may_fork_sole(self) -> bool:
        """Whether a sole child can be forked, as far as it is known."""
        due = max((slot.due for slot in self._sole_slots), default=0.0)
        return self._has_ordinary and time.monotonic() >= due

    def fork_sole(self) -> None:
        """Forks a sole child. An earlier one may still run a suspect that runs for long."""
        slot = next((slot for slot in self._sole_slots if self._child(slot) is None), None)
        if slot is None:
            name = f"{self.capsule}.alone{len(self._sole_slots)}"
            slot = Slot(name, self._alone, solo=True, sole=True)
            self._sole_slots.append(slot)
        self._children.fill(slot)

    @property
    def wanted_slots(self) -> list[Slot]:
        """The slots for solo children that must be filled; without a suspect no slot must."""
        return self._slots if self.wanted else []

    @property
    def _has_ordinary(self) -> bool:
        """Whether an ordinary child of the capsule has booted."""
        return any(self._children.slots.is_ready(slot) for slot in self._own_slots())

    def _make_room(self, staying: list[ChildHandle]) -> None:
        """No ordinary child can boot: a solo child may have the port, or the memory, that it needs.
        Those without a job end. Not if the ordinary ones die of jobs: then these must run alone."""
        for child in staying:
            if not child.beat.busy:
                child.send(Stop(None))

    def _order_substitute(self, staying: list[ChildHandle], *, wanted: bool) -> None:
        """Has an ordinary child run the suspects if no solo child boots beside it: one may hold a
        port, or the memory. The master goes on trying, after growing pauses. Failures of before
        count: the next suspect does not wait for three more."""
        unready = (slot for slot in self._slots if not self._children.slots.is_ready(slot))
        failures = next((slot.boot_failures for slot in unready), 0)
        has_solo = any(child.was_ready for child in staying)
        ordinary, before = list(self._ordinary()), self._substitute
        if before is not None and (has_solo or not wanted or before not in ordinary):
            if before in self._children:
                before.send(RunSuspects(on=False))
            self._substitute = None
        if wanted and not has_solo and self._substitute is None and failures >= _BOOT_TRIES:
            self._substitute = next(iter(ordinary), None)
            if self._substitute is not None:
                self._substitute.send(RunSuspects(on=True))

    def _child(self, slot: Slot) -> ChildHandle | None:
        return self._children.slots.child(slot)

    def _ordinary(self) -> Iterator[ChildHandle]:
        """The capsule's ordinary children that take jobs."""
        for slot in self._own_slots():
            child = self._child(slot)
            if child is None or child.beat.state != "running" or self._is_silent(child):
                continue
            yield child

    def _own_slots(self) -> Iterator[Slot]:
        """The slots of the capsule's ordinary children."""
        for slot in self._children.slots:
            if slot.capsule is not None and slot.capsule.name == self.capsule:
                yield slot

    @property
    def wanted(self) -> bool:
        """Whether suspects wait, as far as it is known."""
        return self._told or time.monotonic() < self._rescued_until

    def _staying(self) -> list[ChildHandle]:
        """The living solo children that take jobs. One that a web UI made quiet ends."""
        staying = []
        for slot in self._slots:
            child = self._child(slot)
            if child is None or child.ordered.stop_at is not None:
                continue
            if child.beat.state not in ("booting", "running"):
                child.send(Stop(None))
                continue
            staying.append(child)
        return staying

    def _fork_missing(self, staying: list[ChildHandle]) -> None:
        """Forks the first one, also if memory is short; then twice as many each time, while all of
        them have a job and more suspects wait."""
        if not staying:
            self._fork(1, beside=False)
        elif self._all_busy_since is not None and _has_passed(self._all_busy_since, _NEWS_TRAVELS):
            taking_places = sum(not runs_for_long(child, self._is_silent) for child in staying)
            self._fork(min(len(staying), self._most - taking_places), beside=True)
            self._all_busy_since = None

    def _fork(self, count: int, *, beside: bool) -> None:
        """``beside``: others run, so there must be memory for one more."""
        for place in range(count):
            if (place or beside) and not self._has_memory():
                return
            slot = next((slot for slot in self._slots if self._child(slot) is None), None)
            if slot is None:
                slot = Slot(f"{self.capsule}.solo{len(self._slots)}", self._alone, solo=True)
                self._slots.append(slot)
            if time.monotonic() >= slot.due:
                self._children.fill(slot)

    def _has_memory(self) -> bool:
        """Whether there is room for one more child of the usual size."""
        ready = [child for child in self._children if child.was_ready and child.slot.capsule]
        sizes = [resident(child.pid) for child in ready]
        return self._free_memory() >= (median(sizes) if sizes else 0)


class SoleTurns:
    """Turns of a sole child: while it runs suspects, no other solo child of the tree does.

    The death of a whole tree leaves records in all jobs that were in progress. Each of these may
    kill the next tree, too, so beside them no other suspect may run. An ordinary solo child that
    finds such a job returns it, and asks for a turn. Then all solo children end with the jobs
    that they have, and one is forked that may run such jobs. All others have their turn for as long
    after that. Which solo children live decides all of this, so it stays right after a kill, and
    after an exec of the master."""

    def __init__(self, children: Children, is_silent: Callable[[ChildHandle], bool]) -> None:
        self._children = children
        self._is_silent = is_silent
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
            if (
                child.beat.wants_sole
                and child.slot.capsule is not None
                and not child.ordered.stop_at
            ):
                self._asking[child.slot.capsule.name] = None
        if (sole := self._sole) is not None:
            self._go_on(sole, quiet=quiet)
        elif self._next is not None:
            self._drain(self._next, quiet=quiet)
        elif not quiet:
            self._perhaps_begin(capsules)

    @property
    def _sole(self) -> ChildHandle | None:
        sole = (child for child in self._children if child.slot.sole)
        return next((child for child in sole if not runs_for_long(child, self._is_silent)), None)

    def _others(self) -> list[ChildHandle]:
        """The children that may run a suspect. One that runs for long lets others begin."""
        found = [c for c in self._children if is_solo(c.identity) or c.beat.long_at]
        return [child for child in found if not runs_for_long(child, self._is_silent)]

    def _perhaps_begin(self, capsules: Sequence[SoloChildren]) -> None:
        """Begins a turn if the others have had their time, or have nothing to do in it."""
        named = {one.capsule: one for one in capsules if one.wanted}
        self._asking = {name: None for name in self._asking if name in named}
        if not self._asking:
            self._idle_since = None
        elif time.monotonic() >= self._others_until or self._are_idle(self._others()):
            able = (named[name] for name in self._asking if named[name].may_fork_sole)
            self._next, self._began = next(able, None), time.monotonic()

    def _drain(self, capsule: SoloChildren, *, quiet: bool) -> None:
        """Lets no further suspect begin. When none runs any more, the turn begins."""
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
        ready_at = sole.told.ready_at
        is_late = ready_at is not None and now >= ready_at + _TURN
        idle = self._are_idle([sole]) or (quiet and not sole.running)
        if (is_late or idle or sole.beat.state not in ("booting", "running")) and (
            sole.ordered.stop_at is None
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


def runs_for_long(child: ChildHandle, is_silent: Callable[[ChildHandle], bool]) -> bool:
    """Whether the suspect of the child keeps no other one waiting any more: else a few that never
    end would keep all others waiting. One that holds the interpreter's lock may keep its child from
    telling when that is."""
    return 0.0 < child.beat.long_at <= time.monotonic() or is_silent(child)


def _since(moment: float | None, *, condition: bool) -> float | None:
    """Since when ``condition`` holds (monotonic); None if it does not."""
    if not condition:
        return None
    return time.monotonic() if moment is None else moment


def _has_passed(since: float, seconds: float) -> bool:
    return time.monotonic() >= since + seconds
