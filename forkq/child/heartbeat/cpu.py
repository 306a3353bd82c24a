"""How much processor time this process uses, for its record in Redis."""

from __future__ import annotations

import time
from typing import Final

_SHORTEST: Final = 1.0  # seconds: beats on news come faster, and would say more or less at random


class CpuMeter:
    """Neither clock is a system call that gives up the interpreter's lock (see memory.py)."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._used = time.process_time()
        self._percent = 0.0

    def percent(self) -> float:
        """Since about the last beat, 100 for one processor."""
        at, used = time.monotonic(), time.process_time()
        if at - self._at >= _SHORTEST:
            self._percent = round((used - self._used) / (at - self._at) * 100, 1)
            self._at, self._used = at, used
        return self._percent
