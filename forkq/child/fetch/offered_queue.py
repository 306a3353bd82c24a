"""What a capsule's queues are to a fetch: single queues, and groups of which it offers a part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby

from ...config.capsule import Capsule
from ...limits.patterns import is_pattern
from ...limits.rules import NO_RULES, Rules
from .queue_group import QueueGroup


@dataclass(slots=True)
class OfferedQueue:
    """One of the capsule's queues, one of its patterns with the queues that it stands for, or a
    long list of queues."""

    name: str
    weight: int
    rules: Rules
    known: QueueGroup | None = None
    shown: list[str] = field(default_factory=list)  # in the last offer

    @property
    def fair(self) -> bool:
        """Whether its queues take turns."""
        return self.known is not None and bool(self.rules.fair)

    def show(self, most: int, *, turning: bool) -> list[str]:
        """The names for the next offer."""
        if self.known is None:
            self.shown = [self.name]
        elif self.rules.blocking:
            self.shown = self.known.awake()  # one left out could not keep the others waiting
        else:
            self.shown = self.known.awake(most, turning=turning or self.fair)
        return self.shown

    def turn(self, taken: Mapping[str, int]) -> None:
        """So many jobs were taken of these queues: the next offer goes on after them."""
        assert self.known is not None
        served = [name for name in self.shown if name in taken]
        if served:
            most = max(taken[name] for name in served)
            self.known.go_on_after([name for name in served if taken[name] == most][-1])
        elif self.shown and self.cut:
            self.known.go_on_after(self.shown[-1])

    def rest(self, until: Mapping[str, float]) -> float:
        """Puts those of the last offer to sleep, each until its moment. Returns when the next one
        wakes by itself. All times are monotonic; infinity: never."""
        assert self.known is not None
        for name in self.shown:
            self.known.rest(name, until.get(name))
        self.shown = [name for name in self.shown if name not in until]
        return self.known.due

    @property
    def cut(self) -> bool:
        """Whether it has queues awake that are not in the last offer."""
        return self.known is not None and self.known.count() > len(self.shown)


def offered_queues(capsule: Capsule, window: int) -> list[OfferedQueue]:
    """A list of more than ``window`` queues is offered as groups, if it is taken in order and no
    queue blocks others: that would need all of them in each offer."""
    names = [name for name, _ in capsule.queues if not is_pattern(name)]
    has_blocking = any(capsule.rules.of(name).blocking for name, _ in capsule.queues)
    if capsule.mode != "strict" or len(names) <= window or has_blocking:
        return [_entry(capsule, name, weight) for name, weight in capsule.queues]
    entries = []
    for are_patterns, run in groupby(capsule.queues, key=lambda queue: is_pattern(queue[0])):
        if are_patterns:
            entries += [_entry(capsule, name, weight) for name, weight in run]
        else:
            listed = QueueGroup([name for name, _ in run])
            entries.append(OfferedQueue("", 1, NO_RULES, listed))
    return entries


def _entry(capsule: Capsule, name: str, weight: int) -> OfferedQueue:
    known = QueueGroup() if is_pattern(name) else None
    return OfferedQueue(name, weight, capsule.rules.of(name), known)
