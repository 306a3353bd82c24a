"""The rules of queues: limits, rates and pauses, and the jobs that use them up."""

from __future__ import annotations

from collections.abc import Iterator

from .queues import QueueState
from .running import RunningJob


class Limits:
    """The queues that have a rule or are paused. Set rules with ``Queue``. Raises
    ServerUnavailable."""

    __slots__ = ()

    def __iter__(self) -> Iterator[QueueState]:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def get(self, name: str) -> QueueState:
        """One queue and its rules."""
        raise NotImplementedError

    def holders(self, name: str) -> list[RunningJob]:
        """The jobs in progress that hold the slots of the queue's limit, the longest first."""
        raise NotImplementedError
