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

# All in seconds. After so long beside nothing, a suspect that goes on has other jobs beside it.
_LONG_RUN: Final = 60.0
# How long the ordinary processors wait for a suspect that a rule may keep back, and how long they
# then work before they wait again.
_WAIT: Final = 1.0
_WORK: Final = 10.0


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
        self._waits_since: float | None = None  # monotonic, as all times here
        self._works_until = 0.0

    def order(self, *, on: bool) -> None:
        """The master's order, to begin or to end this."""
        if on != self._ordered:
            event = "no solo child can boot: this child runs suspects, one at a time"
            self._log.warning(event if on else "a solo child has booted: it runs the suspects")
        self._ordered = on
        if on and self.parts is None:
            self._start()

    def advance(self) -> None:
        """The next step, in each turn of the main loop."""
        if self.parts is None:
            return
        suspects, now = self.parts.fetcher, time.monotonic()
        running = [unit for unit in suspects.in_flight() if unit.thread]
        is_long = any(now > unit.taken + _LONG_RUN for unit in running)
        turn = bool(running) or (self._ordered and now >= self._works_until)
        self._ordinary.pause(on=turn and not is_long)
        may_begin = turn and not running and self._ordered and self._is_drained()
        suspects.pause(on=not may_begin)
        self._wait_for_one(now, waits=may_begin)

    def _wait_for_one(self, now: float, *, waits: bool) -> None:
        """Ends the wait for a suspect that does not come: the ordinary processors work again."""
        if not waits:
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = now
        elif now >= self._waits_since + _WAIT:
            self._waits_since, self._works_until = None, now + _WORK

    def _is_drained(self) -> bool:
        """Whether a death of this process would harm no other job."""
        return not self._ordinary.in_flight() and not self._ordinary.owes

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
