"""A pause that grows with each failure in a row."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Final

_FIRST: Final = 1.0
_LONGEST: Final = 300.0
_MOST_DOUBLINGS: Final = 10  # 2.0 ** 1024 is an error


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
        """Counts one more failure, and begins the pause after it, with jitter."""
        ceiling = min(_LONGEST, _FIRST * 2.0 ** min(self.count, _MOST_DOUBLINGS))
        self.count += 1
        self.due = time.monotonic() + ceiling * random.uniform(0.5, 1.0)
