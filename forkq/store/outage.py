"""Redis gone and back: one log line for each, per process, whoever notices first."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

from .connection import ConnectionLost

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 10.0


class Outage:
    """Shared by everything in one process that talks to Redis. ``lost`` and ``back`` are the lines
    that it writes."""

    def __init__(
        self, log: FilteringBoundLogger, lost: str = "redis lost", back: str = "redis is back"
    ) -> None:
        self._log = log
        self._lost = lost
        self._back = back
        self._lock = threading.Lock()
        self._since: float | None = None

    def begin(self, error: BaseException) -> None:
        """Redis failed somebody. Logged only if it had not failed already."""
        with self._lock:
            if self._since is not None:
                return
            self._since = time.monotonic()
        self._log.error(self._lost, error=str(error) or type(error).__name__)

    def end(self) -> None:
        """Redis answered somebody."""
        if self._since is None:
            return
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            self._log.info(self._back, downtime=round(time.monotonic() - since, 1))

    def part(self, refused: str, accepted: str) -> Reach:
        """How one part of this process reaches Redis; two lines for what the server refuses it."""
        return Reach(self, Outage(self._log, refused, accepted))


class Reach:
    """How one part of a process reaches Redis. A lost connection is told by the outage that all
    parts share. A refusal is this part's own: the server is there, and other parts may go on."""

    def __init__(self, outage: Outage, refusal: Outage) -> None:
        self._outage = outage
        self._refusal = refusal

    def begin(self, error: BaseException) -> None:
        """Redis failed this part."""
        (self._outage if isinstance(error, ConnectionLost) else self._refusal).begin(error)

    def end(self) -> None:
        """Redis did what this part asked for."""
        self._outage.end()
        self._refusal.end()


class Backoff:
    """Growing pauses with jitter, so that a thousand children do not come back as one."""

    def __init__(self, first: float = _FIRST_PAUSE, longest: float = _LONGEST_PAUSE) -> None:
        self._first = first
        self._longest = longest
        self._failures = 0

    def pause(self) -> float:
        """Seconds to wait after one more failure."""
        ceiling = min(self._longest, self._first * 2**self._failures)
        self._failures = min(self._failures + 1, 16)
        return float(ceiling * random.uniform(0.5, 1.0))

    def reset(self) -> None:
        """It worked."""
        self._failures = 0
