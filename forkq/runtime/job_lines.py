"""The bound of the lines that the app logs and prints in a minute of one run of a job.

A job that logs in a loop fills a disk, and in a journal that limits its services it takes the lines
of all other jobs along. What is left out is counted, and told in one line. Lines of WARNING and
above have a bound of their own, so that no such line is lost because of those below. forkq's own
lines are never left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, MutableMapping
from time import monotonic
from typing import Any, Final

import structlog

from ..current_job import CurrentJob, running_job
from ..logs import job_values

_MINUTE: Final = 60.0
# A thread that has just looked at the time may still count a line into a minute that is over.
_GRACE: Final = 1.0
_PLAIN: Final = frozenset({"debug", "info", "msg", "notset"})


class JobMinute:
    """What one run has written in a minute, below WARNING and from there on, and how many lines it
    may not write. ``values``: its class, jid, queue and attempt."""

    __slots__ = ("began", "left_out", "values", "written")

    def __init__(self) -> None:
        self.began = monotonic()
        self.written = [0, 0]
        self.left_out = 0
        self.values = job_values()

    def is_over(self, for_seconds: float = 0.0) -> bool:
        """Whether this minute ended that many seconds ago."""
        return monotonic() >= self.began + _MINUTE + for_seconds


class JobLines:
    """The bound of this process. ``most``: lines a minute; 0 is no bound. Any thread may write.
    The count of a line may be wrong by one where two threads of one job write at one time."""

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self._overfull: deque[JobMinute] = deque()

    def admit(self, *, urgent: bool, lines: int = 1) -> bool:
        """Counts ``lines`` more of this thread's job, and returns whether they may be written.
        Outside of a job they may."""
        job = running_job() if self.most else None
        if job is None:
            return True
        minute = _minute_of(job)
        if minute.written[urgent] < self.most:
            minute.written[urgent] += lines
            return True
        if not minute.left_out:
            self._overfull.append(minute)
        minute.left_out += lines
        return False

    def gate(self, _logger: object, method: str, event: MutableMapping[str, Any]) -> Any:
        """The first step of structlog's chain for lines of the app."""
        if not self.admit(urgent=method not in _PLAIN):
            raise structlog.DropEvent
        return event

    def take_overfull(self, *, at_end: bool = False) -> Iterator[tuple[dict[str, Any], int]]:
        """The values of each job whose minute is over, and how many of its lines were left out.
        ``at_end``: this process ends, so no minute goes on."""
        for _ in range(len(self._overfull)):
            minute = self._overfull.popleft()
            if not at_end and not minute.is_over(_GRACE):
                self._overfull.append(minute)
            elif minute.left_out:
                yield minute.values, minute.left_out
                minute.left_out = 0

    def forget(self) -> None:
        """Forgets what was left out, in a child after its fork: the parent reports that."""
        self._overfull = deque()


def _minute_of(job: CurrentJob) -> JobMinute:
    """The minute of a job that runs now. It is kept at the job, since a job may log in any thread
    or task."""
    minute: JobMinute | None = getattr(job, "log_minute", None)
    if minute is None or minute.is_over():
        minute = job.log_minute = JobMinute()
    return minute
