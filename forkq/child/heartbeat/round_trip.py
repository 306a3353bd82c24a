"""The round trip to Redis: measured with every beat, and logged when it stays slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_SLOW: Final = 0.05  # seconds
_IN_A_ROW: Final = 5
_WARNING: Final = (
    "slow round trips: redis or the network is slow, or this process is short of CPU; then lower "
    "its concurrency"
)

T = TypeVar("T")


class RoundTrip:
    """``microseconds`` is the last sample. Each row of slow samples is logged once."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self.microseconds = 0
        self._log = log
        self._slow: list[int] = []

    def measure(self, exchange: Callable[[], T], busy: int) -> T:
        """Performs ``exchange``, one command and its reply, and measures its time. ``busy``: how
        many processors may have kept this thread from the CPU meanwhile."""
        sent = time.perf_counter()
        reply = exchange()
        self.add(time.perf_counter() - sent, busy)
        return reply

    def add(self, seconds: float, busy: int) -> None:
        """Takes a sample."""
        self.microseconds = int(seconds * 1e6)
        if seconds <= _SLOW:
            self._slow.clear()
            return
        self._slow.append(round(seconds * 1000))
        if len(self._slow) == _IN_A_ROW:
            self._log.warning(_WARNING, ms=self._slow.copy(), busy=busy)
        del self._slow[_IN_A_ROW + 1 :]
