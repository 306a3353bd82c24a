"""The tally: what the journal comes to so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from .journal import Event

_WINDOW: Final = 2.0
_CHART: Final = 30


@dataclass(slots=True)
class Tally:
    """Fed with the journal's events in order. Times in epoch seconds."""

    runs: int = 0
    running: dict[int, dict[str, str]] = field(default_factory=dict)
    done: dict[str, set[str]] = field(default_factory=dict)
    failed: dict[str, set[str]] = field(default_factory=dict)
    retried: set[str] = field(default_factory=set)
    again: dict[str, float] = field(default_factory=dict)
    seconds: Counter[int] = field(default_factory=Counter)
    recent: list[float] = field(default_factory=list)

    def feed(self, events: Iterable[Event]) -> None:
        """Takes in what happened."""
        for event in events:
            if event.what == "began":
                self._begin(event)
            else:
                self._end(event)

    def keep_living(self, pids: Iterable[int]) -> None:
        """Forgets what dead children were running."""
        living = set(pids)
        self.running = {pid: jobs for pid, jobs in self.running.items() if pid in living}

    def rate(self, at: float) -> float:
        """Jobs done per second, lately."""
        self.recent = [moment for moment in self.recent if moment > at - _WINDOW]
        return len(self.recent) / _WINDOW

    def chart(self, at: float) -> list[int]:
        """Jobs done in each of the last whole seconds, oldest first."""
        begun = min(self.seconds, default=int(at))
        return [self.seconds[s] for s in range(max(begun, int(at) - _CHART), int(at))]

    @property
    def ended(self) -> int:
        """Jobs that are done or have failed."""
        return sum(self.ended_of(kind) for kind in {*self.done, *self.failed})

    def ended_of(self, kind: str) -> int:
        """Jobs of one kind that are done or have failed; what did both counts once."""
        return len(self.done.get(kind, set()) | self.failed.get(kind, set()))

    @property
    def best_second(self) -> int:
        """The most jobs done within one second."""
        return max(self.seconds.values(), default=0)

    def _begin(self, event: Event) -> None:
        self.runs += 1
        self.running.setdefault(event.pid, {})[event.jid] = event.label
        if event.retry is not None:
            self.retried.add(event.jid)
        if event.crashed:
            self.again.setdefault(event.jid, event.at)

    def _end(self, event: Event) -> None:
        self.running.get(event.pid, {}).pop(event.jid, None)
        if event.what == "failed":
            self.failed.setdefault(event.job, set()).add(event.jid)
            return
        self.done.setdefault(event.job, set()).add(event.jid)
        self.seconds[int(event.at)] += 1
        self.recent.append(event.at)
