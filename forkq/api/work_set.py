"""The jobs in progress."""

from __future__ import annotations

from collections.abc import Iterator

from .running import RunningJob


class WorkSet:
    """The jobs in progress everywhere, the longest first, as ``running`` lists them: how long they
    run, their progress, and whether their process sends heartbeats. Raises ServerUnavailable."""

    __slots__ = ()

    def __iter__(self) -> Iterator[RunningJob]:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def find(self, jid: str) -> RunningJob | None:
        """The run of that job; None if it does not run."""
        raise NotImplementedError

    def of_queue(self, name: str) -> list[RunningJob]:
        """The jobs of one queue."""
        raise NotImplementedError

    def of_process(self, identity: str) -> list[RunningJob]:
        """The jobs of one process."""
        raise NotImplementedError

    def dump_stack(self, jid: str) -> bool:
        """Has the process that runs the job log the stacks of its threads (the stack does not come
        to Redis). Returns whether the job runs in a process that takes orders."""
        raise NotImplementedError
