"""How many jobs a child leases ahead, and when, so that no processor waits for the network.

It leases as many as will start within the horizon: two round trips, but 5 ms at least. A job that
has not started by then, because one before it was slow, goes back (docs/decisions/016).

- Short jobs: so many as started lately, in the time in which there were jobs to start.
- Longer jobs: each processor is expected to end its job after the mean run time. So jobs that run
  in step are leased in step, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from time import monotonic
from typing import Final

_SHORTEST_HORIZON: Final = 0.005  # seconds
# For which part of ``late_after`` jobs are leased: few of them wait for the whole of it.
_PART: Final = 0.85
# With jobs for so many round trips left, the next fetch is due: a reply may be late. Redis needs
# time for each job, too (seconds): while it moves some hundred, a child would run out of jobs.
_LOW: Final = 1.5
_MOVE: Final = 4e-6
# Seconds. A job whose processor is expected to be free so shortly before the horizon is not leased.
_MARGIN: Final = 0.0005
# Seconds over which starts are counted, at least.
_WINDOW: Final = 0.001
_SHORTEST_BUSY: Final = 0.0001  # seconds of those with jobs to start
_SHORTEST_RUN: Final = 1e-6  # seconds
_GROWTH: Final = 4  # times what was leased ahead before, at most
# From this run time on, the end of each job is expected by itself.
_LONG: Final = 0.001
# Jobs of more than so many round trips gain nothing.
_TOO_LONG: Final = 200
_MUCH_LONGER: Final = 8  # times the mean
_MOST: Final = 2000
_SHARE: Final = 1 / 8  # of a round trip that is longer than those before


class Lookahead:
    """Not thread-safe: the lease exchange's. All times are in seconds.

    ``round_trip``: of a fetch. ``depth``: how many jobs may be leased and not started. ``low``:
    with so many left the next fetch is due; -1: not before ``due`` (monotonic), at the latest.
    ``expects_ends``: whether that depends on the ends of the jobs in progress.
    """

    def __init__(self, processors: int) -> None:
        self.round_trip = 0.0
        self.depth = 0
        self.low = 0
        self.due = inf
        self.expects_ends = False
        self._processors = processors
        self._counted_at = monotonic()
        self._started = 0
        self._waited = 0.0

    @property
    def horizon(self) -> float:
        """A job that is leased ahead starts within this time, or goes back."""
        return max(2 * self.round_trip, _SHORTEST_HORIZON)

    @property
    def late_after(self) -> float:
        """So long after the request a job is late: Redis leased it half a round trip after that."""
        return self.horizon + self.round_trip / 2

    @property
    def is_due_soon(self) -> bool:
        """Whether the next fetch is due at a time that is near."""
        return self.due - monotonic() < self.late_after

    def measured(self, round_trip: float) -> None:
        """A fetch took so long, and no processor had jobs meanwhile. The shortest times count most:
        others include the wait for the interpreter."""
        more = round_trip - self.round_trip
        self.round_trip += more * _SHARE if more > 0 < self.round_trip else more

    def bound_round_trip(self, seconds: float) -> None:
        """A reply was read so long after its request: a round trip takes no longer."""
        self.round_trip = min(self.round_trip, seconds)

    def waited(self, seconds: float) -> None:
        """So long a processor waited for a reply while there was no job to start."""
        self._waited += seconds

    def plan(self, started: int, began: Iterable[float], run_time: float) -> None:
        """Sets ``depth``, ``low`` and ``due``. ``started``: how many jobs have started since this
        child began. ``began`` (monotonic): when those in progress did. ``run_time``: of a job."""
        self.expects_ends = _LONG <= run_time < _TOO_LONG * self.round_trip
        if run_time < _LONG:
            self._plan_by_rate(started, run_time)
        elif self.expects_ends:
            self._plan_by_ends(began, run_time)
        else:
            self.depth, self.low, self.due = 0, 0, inf

    @property
    def _early(self) -> float:
        """A fetch is sent so many seconds before its reply is needed. Jobs end late and threads
        wake up late, by less than half of what the horizon leaves, mostly."""
        return (self.horizon - self.round_trip) / 2

    @property
    def _supply(self) -> float:
        """Seconds for which jobs are leased, from the request on."""
        return _PART * self.late_after

    def _plan_by_rate(self, started: int, run_time: float) -> None:
        now = monotonic()
        passed = now - self._counted_at
        if passed < _WINDOW:
            return
        fastest = self._processors / max(run_time, _SHORTEST_RUN)
        busy = max(passed - self._waited, _SHORTEST_BUSY)
        per_second = min((started - self._started) / busy, fastest)
        self._counted_at, self._started, self._waited = now, started, 0.0
        most = min(_MOST, _GROWTH * (self.depth + self._processors))
        self.depth = min(most, int(per_second * self._supply))
        lead = _LOW * self.round_trip + _MOVE * self.depth
        self.low, self.due = min(int(per_second * lead), self.depth * 3 // 4), inf

    def _plan_by_ends(self, began: Iterable[float], run_time: float) -> None:
        """A job that runs for longer than the mean is expected to go on as long again; one that
        runs for much longer has no end that can be expected."""
        now = monotonic()
        began = [at for at in began if now - at < _MUCH_LONGER * run_time]
        until = now + self.horizon - _MARGIN
        ends = [at + run_time if at + run_time > now else now + run_time for at in began]
        soon = [end for end in ends if end < until]
        self.depth = min(_MOST, sum(1 + int((until - end) / run_time) for end in soon))
        self.due = min(ends, default=inf) - self.round_trip - self._early
        # A fetch that is sent before would delay that one: what is done goes with it.
        self.low = -1 if self.is_due_soon else 0
