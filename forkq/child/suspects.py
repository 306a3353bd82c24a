"""Suspects: jobs that were in progress when a process died. Each runs alone, in a solo child.

A child that has fetched a suspect holds its lease, tells the master, and goes on with other jobs.
The master names the lease to a solo child (master/isolation.py), which takes it over and runs the
job.
"""

from __future__ import annotations

from collections import deque

from ..process_state import stopping
from ..runtime.pipe import Adopted, Fact, SoloFree, SuspectHeld, send
from ..wire.lease import UnitOfWork
from .failure.retry import Decision
from .fetch.fetcher import Fetcher
from .job_run import JobRun
from .observers import JobObserver


class Suspects:
    """The suspects that this child holds. Thread-safe: processors call ``hold``."""

    def __init__(self, fetcher: Fetcher, report: int) -> None:
        self._fetcher = fetcher
        self._report = report
        self._held: dict[int, UnitOfWork] = {}
        self._unsent: deque[SuspectHeld] = deque()

    def hold(self, unit: UnitOfWork) -> None:
        """``unit`` must run alone: it keeps its lease, but not its processor. A child that stops
        puts it back: another host may have a solo child for it."""
        self._fetcher.hold(unit)
        self._held[unit.sequence] = unit
        self._unsent.append(SuspectHeld(unit.queue_name, unit.sequence))
        self.tell_master()
        if stopping():
            self.put_back()

    def tell_master(self) -> None:
        """Reports what is held, as far as the pipe takes it. The main loop calls again."""
        while self._unsent:
            fact = self._unsent.popleft()
            if not send(self._report, fact):
                self._unsent.appendleft(fact)
                return

    def release(self, sequence: int) -> None:
        """A solo child has taken over that lease."""
        unit = self._held.pop(sequence, None)
        if unit is not None:
            unit.lost = False  # wherever it runs now, it did not run here
            self._fetcher.forget(unit)

    def put_back(self) -> None:
        """Returns all that is held to the queues."""
        for sequence in list(self._held):
            unit = self._held.pop(sequence, None)
            if unit is not None:
                unit.lost = False  # as in ``release``
                self._fetcher.put_back(unit)


class SoloReporter(JobObserver):
    """Tells the master when a solo child has begun and ended its job."""

    def __init__(self, report: int) -> None:
        self._report = report
        self._unsent: deque[Fact] = deque()

    def adopted(self, found: bool) -> None:
        """The solo child has taken over a lease, or found none."""
        self._send(Adopted(found))

    def done(self, run: JobRun) -> None:
        self._send(SoloFree())

    def failed(self, run: JobRun, error: BaseException, decision: Decision) -> None:
        self._send(SoloFree())

    def interrupted(self, run: JobRun) -> None:
        self._send(SoloFree())

    def _send(self, fact: Fact) -> None:
        """What a full pipe did not take goes before it: the master would wait for it for ever."""
        self._unsent.append(fact)
        while self._unsent and send(self._report, self._unsent[0]):
            self._unsent.popleft()
