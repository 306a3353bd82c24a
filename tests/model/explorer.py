"""Looks at all situations of a world, breadth first, so that the first broken promise that it finds
has one of the shortest ways to it.
"""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass, field

from .ghosts import Violation
from .store import Store
from .talk import model_time
from .world import Event, Situation, Stage, World


@dataclass(frozen=True)
class Found:
    """A broken promise, and what led to it."""

    violation: Violation
    trace: list[Event]


@dataclass
class Exploration:
    """What was looked at: how many ``situations``, ``steps`` from one to another, and whether that
    is all there is."""

    stage: Stage
    situations: int = 0
    steps: int = 0
    is_complete: bool = False
    found: Found | None = None
    seconds: float = field(default=0.0, compare=False)


def explore(
    world: World,
    store: Store | None = None,
    *,
    most: int = 4_000_000,
    seconds: float = float("inf"),
) -> Exploration:
    """Looks at all situations until it finds a broken promise, at ``most`` so many, and for so
    many ``seconds``."""
    began = time.perf_counter()
    with model_time():
        result = _Search(Stage(world, store), most, began + seconds).run()
    result.seconds = time.perf_counter() - began
    return result


class _Search:
    def __init__(self, stage: Stage, most: int, end: float) -> None:
        self._stage = stage
        self._most = most
        self._end = end
        self._numbers: dict[Situation, int] = {}
        self._situations: list[Situation] = []
        self._from: list[tuple[int, Event | None]] = []
        self._back: list[list[int]] = []  # without a fault: from which situations
        self._result = Exploration(stage)

    def run(self) -> Exploration:
        result = self._result
        at = 0
        try:
            self._add(self._stage.first(), -1, None)
        except Violation as violation:
            result.found = Found(violation, [])
            return result
        while at < len(self._situations) < self._most and time.perf_counter() < self._end:
            if (found := self._expand(at)) is not None:
                result.found = found
                break
            at += 1
        result.situations = len(self._situations)
        result.is_complete = result.found is None and at == len(self._situations)
        if result.is_complete:
            result.found = self._waiting_for_ever()
        return result

    def _expand(self, at: int) -> Found | None:
        now = self._situations[at]
        for event in self._stage.events(now):
            self._result.steps += 1
            try:
                then = self._stage.after(now, event)
                if then not in self._numbers:
                    self._stage.fates.check_sleepers(then)
            except Violation as violation:
                return Found(violation, [*self._trace(at), event])
            number = self._add(then, at, event)
            if not event.is_fault:
                self._back[number].append(at)
        return None

    def _add(self, situation: Situation, before: int, event: Event | None) -> int:
        number = self._numbers.get(situation)
        if number is None:
            number = self._numbers[situation] = len(self._situations)
            self._situations.append(situation)
            self._from.append((before, event))
            self._back.append([])
        return number

    def _trace(self, at: int) -> list[Event]:
        events = []
        before, event = self._from[at]
        while event is not None:
            events.append(event)
            before, event = self._from[before]
        return events[::-1]

    def _waiting_for_ever(self) -> Found | None:
        """The nearest situation from which no way without faults leads to the end of all jobs: one
        from which no way leads at all, if there is one."""
        ends = [
            at for at, each in enumerate(self._situations) if self._stage.fates.is_settled(each)
        ]
        reached, queue = set(ends), deque(ends)
        while queue:
            for before in self._back[queue.popleft()]:
                if before not in reached:
                    reached.add(before)
                    queue.append(before)
        stuck = [at for at in range(len(self._situations)) if at not in reached]
        if not stuck:
            return None
        going_on = {before for after in stuck for before in self._back[after] if before != after}
        at = next((at for at in stuck if at not in going_on), stuck[0])
        return Found(Violation("nothing waits for ever"), self._trace(at))


def walk(world: World, seed: int, length: int, store: Store | None = None) -> Found | None:
    """One long way through a world that is too large to be looked at in full."""
    chance = random.Random(seed)
    with model_time():
        stage, trace = Stage(world, store), list[Event]()
        now = stage.first()
        for _ in range(length):
            events = list(stage.events(now))
            if not events:
                break
            event = chance.choice(events)
            trace.append(event)
            try:
                now = stage.after(now, event)
            except Violation as violation:
                return Found(violation, trace)
    return None
