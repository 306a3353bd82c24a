"""How long a child holds back after a wake-up: many children wake up for the same job.

A child answers the first wake-up at once. A wake-up after which its fetch brings nothing makes it
hold back at the next one, twice as long each time, until a fetch brings something. After a while
without a wake-up it holds back as after one miss: one of several idle children goes at once, and
the others do not compete with it for a core. So a hundred idle children do not send a hundred
fetches for every job; docs/decisions/010 has the figures.
"""

from __future__ import annotations

import random
import time
from typing import Final

# Seconds. The longest is what a job may wait in the worst case: all quicker children are busy.
_FIRST: Final = 0.001
_LONGEST: Final = 0.064
_QUIET: Final = 0.5
# Where Redis does not say what changes, the child polls: soon after a job, less often when idle.
_POLL_FIRST: Final = 0.02
_POLL_LONGEST: Final = 1.0


class WakeupBackoff:
    """The fetcher's; one thread at a time uses it."""

    def __init__(self) -> None:
        self._misses = 0
        self._last = 0.0
        self._poll = _POLL_FIRST

    def pause_after_wakeup(self) -> float:
        """Seconds to hold back, now that Redis has said that a key changed."""
        now = time.monotonic()
        if now - self._last > _QUIET:
            self._misses = min(self._misses, 1)
        self._last = now
        if self._misses == 0:
            return 0.0
        return float(min(_LONGEST, _FIRST * 2**self._misses) * random.uniform(0.5, 1.0))

    def pause_before_poll(self) -> float:
        """Seconds until the next fetch, where Redis does not say what changes."""
        pause, self._poll = self._poll, min(self._poll * 1.5, _POLL_LONGEST)
        return pause

    def fetched(self, *, woken: bool, won: bool) -> None:
        """A fetch brought something (``won``) or nothing; ``woken``: a wake-up had led to it."""
        if won:
            self._misses = 0
            self._poll = _POLL_FIRST
        elif woken:
            self._misses = min(self._misses + 1, 16)
