"""Many children wait for the same news, and only one can win: how long to hold back next time.

The first wake-up is answered at once. One that wins nothing makes the next wait, twice as long
each time, until a fetch brings something or it has been quiet for a while. So a hundred idle
children do not ask a hundred times for every job; docs/decisions/010 has the figures.
"""

from __future__ import annotations

import random
import time
from typing import Final

# Seconds. The longest is what a job may wait in the worst case: all who were quicker are busy.
_FIRST: Final = 0.001
_LONGEST: Final = 0.064
_QUIET: Final = 0.5
# Where the server does not tell of changes, we ask: soon after a job, ever later when idle.
_POLL_FIRST: Final = 0.02
_POLL_LONGEST: Final = 1.0


class WakeupBackoff:
    """The fetcher's; one thread at a time uses it."""

    def __init__(self) -> None:
        self._misses = 0
        self._last = 0.0
        self._poll = _POLL_FIRST

    def patience(self) -> float:
        """Seconds to hold back, now that the server has told us something."""
        now = time.monotonic()
        if now - self._last > _QUIET:
            self._misses = 0
        self._last = now
        if self._misses == 0:
            return 0.0
        return float(min(_LONGEST, _FIRST * 2**self._misses) * random.uniform(0.5, 1.0))

    def pause(self) -> float:
        """Seconds until we ask again, where the server tells us nothing."""
        pause, self._poll = self._poll, min(self._poll * 1.5, _POLL_LONGEST)
        return pause

    def judge(self, *, woken: bool, won: bool) -> None:
        """What the fetch brought, and whether news had led to it."""
        if won:
            self._misses = 0
            self._poll = _POLL_FIRST
        elif woken:
            self._misses = min(self._misses + 1, 16)
