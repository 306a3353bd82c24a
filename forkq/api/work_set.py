"""The jobs in progress."""

from __future__ import annotations

from collections.abc import Iterator

from .process_set import ProcessSet
from .running import RunningJob, running


class WorkSet:
    """The jobs in progress everywhere, the longest first, as ``running`` lists them: how long they
    run, their progress, and whether their process sends heartbeats. Raises ServerUnavailable."""

    __slots__ = ()

    def __iter__(self) -> Iterator[RunningJob]:
        return iter(running())

    def __len__(self) -> int:
        return len(running())

    def find(self, jid: str) -> RunningJob | None:
        """The run of that job; None if it does not run."""
        return next((job for job in self if job.jid == jid), None)

    def of_queue(self, name: str) -> list[RunningJob]:
        """The jobs of one queue."""
        return [job for job in self if job.queue == name]

    def of_process(self, identity: str) -> list[RunningJob]:
        """The jobs of one process."""
        return [job for job in self if job.identity == identity]

    def dump_stack(self, jid: str) -> bool:
        """Has the process that runs the job log the stacks of its threads (the stack does not come
        to Redis). Returns whether the job runs in a process that takes orders."""
        job = self.find(jid)
        return job is not None and ProcessSet().dump_stacks(job.identity) == 1
