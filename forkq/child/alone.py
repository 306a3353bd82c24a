"""Where no solo child can boot: an ordinary child runs the suspects, one at a time.

The parts of a solo child are built in this process a second time, under an identity of their own.
So to Redis, and to those who recover its jobs, it is a solo child like any other. While a suspect
runs, nothing else does: the ordinary processors finish what they have, and wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from .build import Parts
from .fetch.fetcher import Fetcher

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# All in seconds. How long the child drains, and then waits for a suspect, which a rule may keep
# back; and how long the ordinary processors then work before they wait again: at first, at most.
_DRAIN: Final = 60.0
_WAIT: Final = 1.0
_WORK: Final = 10.0
_LONGEST_WORK: Final = 300.0
_MOST_VAIN: Final = 10  # doublings


class AloneRunner:
    """Used by the child's main thread. ``build`` makes the parts, when they are first needed."""

    def __init__(
        self, ordinary: Fetcher, build: Callable[[], Parts], log: FilteringBoundLogger
    ) -> None:
        self._ordinary = ordinary
        self._build = build
        self._log = log
        self.parts: Parts | None = None
        self._ordered = False
        self._gives_up_at: float | None = None  # monotonic, as all times here
        self._works_until = 0.0
        self._vain = 0

    def order(self, *, on: bool) -> None:
        """Takes the master's order to begin this, or to end it."""
        if on != self._ordered:
            event = "no solo child can run: this child runs suspects, one at a time"
            self._log.warning(event if on else "this child runs no more suspects")
        self._ordered = on
        if on and self.parts is None:
            self._start()

    def advance(self) -> None:
        """Does the next step, in each turn of the main loop."""
        if self.parts is None:
            return
        suspects, now = self.parts.fetcher, time.monotonic()
        running = any(unit.thread for unit in self.parts.leases.units().values())
        is_long = running and 0.0 < self.parts.runs.long_at <= now
        turn = running or (self._ordered and now >= self._works_until)
        self._ordinary.pause(on=turn and not is_long)
        is_drained = self._ordinary.is_drained
        may_begin = turn and not running and self._ordered and is_drained
        suspects.pause(on=not may_begin)
        if running:
            self._gives_up_at, self._vain = None, 0
        elif turn:
            self._wait_for_one(now, _WAIT if is_drained else _DRAIN)

    def _wait_for_one(self, now: float, limit: float) -> None:
        """Ends the wait for running jobs, or for a suspect, that takes too long: the ordinary
        processors work again, each time for longer."""
        latest = now + limit
        self._gives_up_at = latest if self._gives_up_at is None else min(self._gives_up_at, latest)
        assert self.parts is not None
        if now >= self._gives_up_at and not self.parts.fetcher.owes:
            work = min(_LONGEST_WORK, _WORK * 2**self._vain)
            self._gives_up_at, self._works_until = None, now + work
            self._vain = min(self._vain + 1, _MOST_VAIN)

    def _start(self) -> None:
        parts = self._build()
        parts.fetcher.pause(on=True)
        try:
            parts.heartbeat.start()
            parts.manager.start()
        except RuntimeError as error:  # the system has no thread left
            self._ordered = False
            self._log.error("this child cannot run suspects", error=str(error))
            return
        parts.heartbeat.open()
        parts.manager.open()
        self.parts = parts
