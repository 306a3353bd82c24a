"""The rules of queues: limits, rates and pauses, and the jobs that use them up."""

from __future__ import annotations

from collections.abc import Iterator

from .queues import QueueState, queues
from .running import RunningJob
from .work_set import WorkSet


class Limits:
    """The queues that have a rule or are paused. Set rules with ``Queue``. Raises
    ServerUnavailable."""

    __slots__ = ()

    def __iter__(self) -> Iterator[QueueState]:
        return (state for state in queues() if state.has_rules)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def get(self, name: str) -> QueueState:
        """One queue and its rules."""
        [state] = queues(name)
        return state

    def holders(self, name: str) -> list[RunningJob]:
        """The jobs in progress that hold the slots of the queue's limit, the longest first."""
        return WorkSet().of_queue(name)
