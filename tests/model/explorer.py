"""Looks at all situations of a world, breadth first, so that the first broken promise that it finds
has a short way to it.
"""

from __future__ import annotations

import random
import time
from array import array
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .footprints import Footprints, WrongGuess
from .ghosts import Violation
from .stage import Choices, Event, Situation, Stage
from .store import Store
from .talk import model_time
from .world import World

_Found: TypeAlias = "list[tuple[int, Choices]]"


@dataclass(frozen=True)
class Found:
    """A broken promise, and what led to it."""

    violation: Violation
    trace: list[Event]


@dataclass
class Exploration:
    """What was looked at: how many ``situations``, ``steps`` from one to another, and whether that
    is all there is. ``ends``: what Redis has, and what became of the jobs, once nothing is left to
    do. ``seconds`` of CPU it took."""

    stage: Stage
    situations: int = 0
    steps: int = 0
    is_complete: bool = False
    found: Found | None = None
    ends: frozenset[Any] = frozenset()
    seconds: float = field(default=0.0, compare=False)


def explore(
    world: World,
    store: Store | None = None,
    *,
    most: int = 4_000_000,
    seconds: float = float("inf"),
    in_all_orders: bool = False,
) -> Exploration:
    """Looks at all situations until it finds a broken promise, at ``most`` so many, and for so
    many ``seconds`` of CPU. ``in_all_orders``: without the reduction of footprints.py."""
    began = time.process_time()
    end = began + seconds
    with model_time():
        stage, footprints = Stage(world, store), None if in_all_orders else Footprints()
        while True:
            try:
                result = _Search(stage, footprints, most, end).run()
                break
            except WrongGuess:
                assert footprints is not None
                footprints.forget_guesses()
    result.seconds = time.process_time() - began
    return result


class _Search:
    def __init__(self, stage: Stage, footprints: Footprints | None, most: int, end: float) -> None:
        self._stage = stage
        self._footprints = footprints
        self._most = most
        self._end = end
        self._numbers: dict[Situation, int] = {}
        self._situations: list[Situation] = []
        # How each was found: from which one, and by what.
        self._from = array("q")
        self._by: list[Event | None] = []
        # Where those without a fault lead: the steps from a situation begin at its place in _first.
        self._first, self._to = array("q", [0]), array("q")
        self._steps = 0
        self._result = Exploration(stage)

    def run(self) -> Exploration:
        result = self._result
        try:
            self._add(self._stage.first(), -1, None)
        except Violation as violation:
            result.found = Found(violation, [])
            return result
        at = 0
        while at < len(self._situations) < self._most and result.found is None:
            result.found = self._expand(at)
            at += 1
            if not at % 1000 and time.process_time() > self._end:
                break
        result.situations = len(self._situations)
        result.steps = self._steps
        result.is_complete = result.found is None and at == len(self._situations)
        if result.is_complete:
            result.found = self._waiting_for_ever()
        return result

    def _expand(self, at: int) -> Found | None:
        now, event = self._situations[at], None
        found = list(self._stage.choices(now))
        try:
            check(found)
            self._stage.check_end(now)
            found = self._needed(now, found)
            self._steps += sum(len(each.steps) + len(each.faults) for _, each in found)
            for number, choices in found:
                for event, effect in choices.steps:
                    self._to.append(self._add(self._stage.after(now, number, effect), at, event))
            self._first.append(len(self._to))
            for number, choices in found:
                for event, effect in choices.faults:
                    self._add(self._stage.after(now, number, effect), at, event)
        except Violation as violation:
            ways = self._trace(at)
            return Found(violation, [*ways, event] if event else ways)
        return None

    def _needed(self, now: Situation, found: _Found) -> _Found:
        """Those of the choices that must be followed: one private step is enough, if it leads to
        what is new. Raises WrongGuess."""
        if self._footprints is None:
            return found
        for number, choices in found:
            self._footprints.note(number, choices)
        private = self._footprints.private_step(found)
        if private is None:
            return found
        number, choices = private
        then = self._stage.after(now, number, choices.steps[0][1])
        return found if then in self._numbers else [private]

    def _add(self, situation: Situation, before: int, event: Event | None) -> int:
        number = self._numbers.setdefault(situation, len(self._situations))
        if number == len(self._situations):
            self._situations.append(situation)
            self._from.append(before)
            self._by.append(event)
        return number

    def _trace(self, at: int) -> list[Event]:
        events = []
        while (event := self._by[at]) is not None:
            events.append(event)
            at = self._from[at]
        return events[::-1]

    def _after(self, at: int) -> array[int]:
        """To which situations steps without a fault lead from this one."""
        return self._to[self._first[at] : self._first[at + 1]]

    def _waiting_for_ever(self) -> Found | None:
        """The nearest situation from which no way without faults leads to the end of all jobs: one
        from which no way leads at all, if there is one."""
        ends = bytearray(map(self._stage.is_settled, self._situations))
        settled = {self._situations[at][0] for at, is_end in enumerate(ends) if is_end}
        self._result.ends = frozenset(map(self._stage.shown, settled))
        left = [at for at in range(len(ends) - 1, -1, -1) if not ends[at]]
        while True:
            stuck = []
            for at in left:  # backwards: most steps lead on
                if any(ends[after] for after in self._after(at)):
                    ends[at] = 1
                else:
                    stuck.append(at)
            if len(stuck) == len(left):
                break
            left = stuck
        if not stuck:
            return None
        stuck.reverse()
        at = next((at for at in stuck if set(self._after(at)) <= {at}), stuck[0])
        return Found(Violation("nothing waits for ever"), self._trace(at))


def check(found: _Found) -> None:
    """Raises the Violation that the situation itself is."""
    for _, choices in found:
        if choices.broken is not None:
            raise choices.broken


def walk(world: World, seed: int, length: int, store: Store | None = None) -> Found | None:
    """One long way through a world that is too large to be looked at in full."""
    chance = random.Random(seed)
    with model_time():
        stage, trace = Stage(world, store), list[Event]()
        now = stage.first()
        for _ in range(length):
            found = list(stage.choices(now))
            ways = [(number, step) for number, each in found for step in each.steps + each.faults]
            try:
                check(found)
                if not ways:
                    break
                number, (event, effect) = chance.choice(ways)
                trace.append(event)
                now = stage.after(now, number, effect)
            except Violation as violation:
                return Found(violation, trace)
    return None
