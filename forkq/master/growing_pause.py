"""A pause that grows with each failure in a row."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from ..store.outage import growing_pause

_FIRST: Final = 1.0
_LONGEST: Final = 300.0


@dataclass(slots=True)
class GrowingPause:
    """``count``: the failures in a row; ``due`` (monotonic): when the pause after the last one
    ends."""

    count: int = 0
    due: float = 0.0

    @property
    def over(self) -> bool:
        """Whether the next try may begin."""
        return time.monotonic() >= self.due

    def begin(self) -> None:
        """Counts one more failure, and begins the pause after it."""
        self.due = time.monotonic() + growing_pause(self.count, _FIRST, _LONGEST)
        self.count += 1
