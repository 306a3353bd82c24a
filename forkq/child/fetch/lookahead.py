"""How many jobs a child leases ahead, so that no processor waits for the network.

It leases as many as will start within the horizon: two round trips, but 5 ms at least. The number
that started lately tells how many that is. While the network is the bound, the number doubles with
each fetch; once the processors are, it stays. A job that has not started by then, because one
before it was slow, goes back (docs/decisions/016).
"""

from __future__ import annotations

from time import monotonic
from typing import Final

_SHORTEST_HORIZON: Final = 0.005  # seconds
# Seconds over which starts are counted, at least.
_WINDOW: Final = 0.001
# A script that moves so many jobs keeps Redis from others for about a millisecond.
_MOST: Final = 1000
_SHARE: Final = 1 / 8  # of a round trip that is longer than those before
_SHORTEST_RUN: Final = 1e-7


class Lookahead:
    """Not thread-safe: the lease exchange's. All times are in seconds."""

    def __init__(self, processors: int) -> None:
        self._processors = processors
        self._round_trip = 0.0
        self._counted_at = monotonic()
        self._started = 0
        self._per_second = 0.0

    @property
    def horizon(self) -> float:
        """A job that is leased ahead starts within this time, or goes back."""
        return max(2 * self._round_trip, _SHORTEST_HORIZON)

    def measured(self, round_trip: float) -> None:
        """A fetch took so long, and no processor had jobs meanwhile. The shortest times count most:
        others include the wait for the interpreter."""
        more = round_trip - self._round_trip
        self._round_trip += more * _SHARE if more > 0 < self._round_trip else more

    def count(self, started: int, run_time: float) -> None:
        """``started`` jobs have started since this child began. Lately a job took ``run_time``:
        jobs that start in step must not pass for ten times as many."""
        now = monotonic()
        passed = now - self._counted_at
        if passed >= _WINDOW:
            fastest = self._processors / max(run_time, _SHORTEST_RUN)
            self._per_second = min((started - self._started) / passed, fastest)
            self._counted_at, self._started = now, started

    @property
    def depth(self) -> int:
        """How many jobs may be leased and not started."""
        return min(_MOST, int(self._per_second * self.horizon))

    @property
    def low(self) -> int:
        """With so many left the next fetch is due: its reply comes when the last one starts."""
        return int(self._per_second * self._round_trip)
