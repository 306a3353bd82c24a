"""Why a queue drains or does not: who serves it, and what holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from .processes import Process
from .queues import QueueState
from .running import RunningJob

# Worst first; only "full" and "rate" are usual in a busy system.
HoldKind: TypeAlias = Literal["damaged", "paused", "unserved", "quiet", "limit", "rate", "full"]


@dataclass(frozen=True, slots=True)
class Hold:
    """A reason why no job of the queue starts now, with a sentence for people.

    "damaged": its key holds another type. "paused": by hand. "unserved": no living process serves
    it. "quiet": those that serve it fetch no more. "limit": as many jobs are in progress as its
    limit allows (or the process_limit of each process). "rate": its rate allows none now. "full":
    every thread that serves it is busy.
    """

    kind: HoldKind
    text: str


@dataclass(frozen=True, slots=True)
class QueueReport:
    """A queue with all that tells why it drains or does not.

    ``state`` has size, busy and rules; ``latency`` is for how many seconds its next job has been
    queued; ``served_by`` are the living processes that fetch from it, ``in_flight`` its jobs in
    progress. ``holds`` are the reasons why none starts now, the worst first; empty if it drains, or
    if it is empty. Redis does not count what goes into and out of a queue: sample ``state.size``.
    """

    state: QueueState
    latency: float
    served_by: tuple[Process, ...]
    in_flight: tuple[RunningJob, ...]
    holds: tuple[Hold, ...]

    @property
    def threads(self) -> int:
        """How many threads serve it, among other queues."""
        return sum(process.concurrency for process in self.served_by)


def queue_reports(*names: str) -> list[QueueReport]:
    """The reports of these queues; without names, of every queue, by name. Costs some round trips
    for all together. Raises ServerUnavailable."""
    raise NotImplementedError
