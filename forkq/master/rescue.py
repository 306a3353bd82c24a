"""Rescue: a dead child's jobs go back to their queues at once.

The one place where the master talks to Redis: on a connection of its own with short time-outs, and
never in the way of its other work. What Redis does not take now is tried again later.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

from .. import counters
from ..connection import ConnectionLost, RedisError, ResponseError, Wire
from ..recovery import Crash, Recovery

TIMEOUT: Final = 1.0
_PAUSE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Case:
    """One dead child: whose leases, in which queues, how it died (None: by our own hand), and how
    many jobs it had told us of."""

    identity: str
    queues: tuple[str, ...]
    crash: Crash | None
    processed: int = 0
    failed: int = 0


class Rescue:
    """Holds the cases that are still open."""

    def __init__(self, wire: Wire, recovery: Recovery, log: Any) -> None:
        self._wire = wire
        self._recovery = recovery
        self._log = log
        self._open: list[Case] = []
        self._due = 0.0
        self._complained = False
        self._resigned = False

    @property
    def due(self) -> float | None:
        """When an open case is to be tried again (monotonic); None if there is none."""
        return self._due if self._open else None

    def descriptors(self) -> Sequence[int]:
        """What a forked child must close."""
        return self._wire.descriptors()

    def take(self, case: Case) -> None:
        """Rescues the jobs of ``case`` now, or as soon as Redis lets us."""
        if case.queues and not self._resigned:
            self._open.append(case)
            if not self._complained:  # else each attempt may cost a time-out: not one per case
                self._due = 0.0

    def resign(self) -> None:
        """Takes no more cases: what is leased stays leased, for another host's sweep."""
        self._open.clear()
        self._resigned = True

    def work(self) -> bool:
        """Works through the open cases, if they are due. Returns whether all are closed."""
        while self._open and time.monotonic() >= self._due:
            try:
                self._close(self._open[0])
            except (*ConnectionLost, RedisError) as error:
                self._postpone(error)
            else:
                self._open.pop(0)
                self._complained = False
        return not self._open

    def _close(self, case: Case) -> None:
        started = time.monotonic()
        if self._wire.stale():
            self._wire.close()
        self._wire.connect()
        if case.crash is None:
            done = self._recovery.requeue(self._wire, case.queues, case.identity)
        else:
            done = self._recovery.recover(self._wire, case.queues, case.identity, case.crash)
        self._count(case)
        self._recovery.forget(self._wire, case.identity)
        spent = round((time.monotonic() - started) * 1000, 1)
        done.tell(self._log, "jobs rescued", owner=case.identity, ms=spent)

    def _count(self, case: Case) -> None:
        """Adds what the child had counted and not flushed. What Redis refuses of that must not keep
        other children's jobs from going back."""
        keys, moment = self._recovery.cemetery.keys, datetime.now(timezone.utc)
        try:
            counters.settle(self._wire, keys, case.identity, case.processed, case.failed, moment)
        except ResponseError as error:
            self._log.error("counts of a dead child dropped", error=str(error))

    def _postpone(self, error: BaseException) -> None:
        self._wire.close()
        self._due = time.monotonic() + _PAUSE
        if not self._complained:
            self._complained = True
            self._log.error("rescue waits for redis", error=str(error), cases=len(self._open))
