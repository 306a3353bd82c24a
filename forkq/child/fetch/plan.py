"""How many jobs a child leases, and when: facts go in, a plan comes out. No clock is read here.

A child leases as many jobs as will start within the horizon: two round trips, but 5 ms at least. A
job that has not started by then, because one before it was slow, goes back (docs/decisions/016).

- Short jobs: as many as started lately, in the time in which there were jobs to start.
- Longer jobs: each processor is expected to end its job after the mean run time. So jobs that run
  in step are leased in step, too.

What the last fetch said of the queues (``FetchState``) decides what the thread that drives the
fetcher does next:

| state    | meaning                                               | its next step          |
|----------|-------------------------------------------------------|------------------------|
| plenty   | the last fetch brought all that it wanted             | fetch                  |
| short    | it brought less; Redis may not say when there is more | register keys, fetch   |
| tracked  | it brought less; Redis will say when there is more    | wait                   |
| waiting  | the driving thread waits now                          |                        |
| notified | Redis said that a key has changed                     | fetch                  |

| from    | event                                             | to       |
|---------|---------------------------------------------------|----------|
| any     | a fetch brought all that it wanted                | plenty   |
| any     | it brought less, and not all keys are registered  | short    |
| any     | it brought less, and all keys are registered      | tracked  |
| any*    | the connection was lost                           | short    |
| any*    | jobs that were leased ahead went back             | short    |
| any*    | an exchange told of ends, and wanted no job       | short    |
| any     | the driving thread begins to wait                 | waiting  |
| waiting | Redis said that a key has changed                 | notified |
| waiting | a consumer has news, or the time is up            | short    |

(*) but waiting: the thread that waits finds out by itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from math import inf
from typing import Final, Literal, TypeAlias

import msgspec

from .leases import Leased

FetchState: TypeAlias = Literal["plenty", "short", "tracked", "waiting", "notified"]

# All times are in seconds.
_SHORTEST_HORIZON: Final = 0.005
# For which part of ``late_after`` jobs are leased: few of them wait for the whole of it.
_PART: Final = 0.85
# With jobs for so many round trips left, the next fetch is due: a reply may be late. Redis needs
# time for each job, too: while it moves some hundred, a child would run out of jobs.
_LOW: Final = 1.5
_MOVE: Final = 4e-6
# A job whose processor is expected to be free so shortly before the horizon is not leased.
_MARGIN: Final = 0.0005
_WINDOW: Final = 0.001  # over which starts are counted, at least
_SHORTEST_BUSY: Final = 0.0001  # of the time with jobs to start
_SHORTEST_RUN: Final = 1e-6
_GROWTH: Final = 4  # times what was leased ahead before, at most
_LONG: Final = 0.001  # from this run time on, the end of each job is expected by itself
_TOO_LONG: Final = 200  # round trips: a job that takes longer gains nothing
_MUCH_LONGER: Final = 8  # times the mean
_MOST: Final = 2000
_SHARE: Final = 1 / 8  # of a round trip that is longer than those before
# A script that moves more jobs than these keeps Redis from others for some milliseconds.
_MOST_AT_ONCE: Final = 1000

# A job is tiny if it takes less than a thread switch or any I/O would: while it runs, other
# processors could not have done anything with the turn.
_TINY: Final = 50e-6
_SHARE_OF_RUN: Final = 1 / 16  # of the last job in the mean run time

# About how many bytes of payloads a fetch brings (fetch.lua), besides one job.
_FETCH_BYTES: Final = 524_288
_RULED_FOR: Final = 1.0  # after a rule was in force, nothing is leased ahead for so long

# When a processor first looks for a reply, in round trips: one that comes early corrects a round
# trip that was measured as too long. A look of the watch comes later.
_FIRST_LOOK: Final = 0.9
_REPLY_BY: Final = 1.1
# A reply that is so little late has not arrived yet, and no look comes sooner.
_SHORTEST_PAUSE: Final = 0.0003

# How long a child holds back after a wake-up, at most: what a job may wait if all quicker children
# are busy. After a wake-up, ``_QUIET`` without another one is forgotten.
_FIRST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.064
_QUIET: Final = 0.5
_MOST_MISSES: Final = 16
# Where Redis does not say what changes, the child polls: soon after a job, less often when idle.
_POLL_FIRST: Final = 0.02
POLL_LONGEST: Final = 1.0


class FetchPlan(msgspec.Struct, frozen=True):
    """How far a child leases ahead. ``depth``: how many jobs may be leased and not started.
    ``low``: how many are left when the next fetch is due; -1: not before ``due_at`` (monotonic), at
    the latest. ``expects_ends``: whether that depends on the ends of the jobs in progress."""

    depth: int = 0
    low: int = 0
    due_at: float = inf
    expects_ends: bool = False


class FetchPace:
    """What was measured lately. Counted without a lock: a count that is missed does no harm.

    ``round_trip`` of a fetch, ``run_time`` of a job, ``tiny_jobs``: how many in a row took less
    than a thread switch. ``fitting``: how many payloads of the last size fit into a reply. Without
    ``ahead`` no plan leases a job for which no processor is free.
    """

    def __init__(self, processors: int, now: float, *, ahead: bool = True) -> None:
        self.round_trip = 0.0
        self.run_time = 0.0
        self.tiny_jobs = 0
        self.fitting = _FETCH_BYTES
        self._processors = processors
        self._ahead = ahead
        self._counted_at = now
        self._started = 0
        self._waited = 0.0
        self._last = FetchPlan()
        self._ruled_until = 0.0
        self._misses = 0
        self._woken_at = 0.0
        self._poll = _POLL_FIRST

    # What was measured

    def performed(self, seconds: float) -> None:
        """Adds the run time of one job. One long job among short ones, or a moment without a CPU,
        changes ``run_time`` little."""
        if seconds < _TINY:
            self.tiny_jobs += 1
        else:
            self.tiny_jobs = 0
            seconds = min(seconds, 4 * self.run_time + _TINY)
        self.run_time += (seconds - self.run_time) * _SHARE_OF_RUN

    def measured(self, round_trip: float) -> None:
        """Adds the time of one fetch during which no processor had jobs. The shortest times count
        most: others include the wait for the interpreter."""
        more = round_trip - self.round_trip
        self.round_trip += more * _SHARE if more > 0 < self.round_trip else more

    def waited(self, seconds: float) -> None:
        """Adds the time for which a processor waited for a reply while there was no job to
        start."""
        self._waited += seconds

    def replied(
        self, now: float, seconds: float, largest: int, *, ruled: bool, woken: bool
    ) -> None:
        """Notes that a reply was read ``seconds`` after its request: a round trip takes no longer.
        ``largest`` is its largest payload (0: it had none); ``ruled``: a rule was in force;
        ``woken``: a wake-up had led to it."""
        self.round_trip = min(self.round_trip, seconds)
        if ruled:
            self._ruled_until = now + _RULED_FOR
        if largest:
            self.fitting = max(1, _FETCH_BYTES // largest)
            self._misses = 0
            self._poll = _POLL_FIRST
        elif woken:
            self._misses = min(self._misses + 1, _MOST_MISSES)

    def reply_lost(self) -> None:
        """Notes that a reply was lost: its payloads may have been too large to come in time."""
        self.fitting = 1

    # What follows

    @property
    def horizon(self) -> float:
        """The time within which a job that is leased ahead starts, or goes back."""
        return max(2 * self.round_trip, _SHORTEST_HORIZON)

    @property
    def late_after(self) -> float:
        """How long after its request a leased job is late: Redis leased it half a round trip after
        the request."""
        return self.horizon + self.round_trip / 2

    def is_ruled(self, now: float) -> bool:
        """Whether a rule was in force lately: then nothing is leased ahead."""
        return now < self._ruled_until

    def plan(self, now: float, started: int, began: Iterable[float]) -> FetchPlan:
        """The plan for now. ``started``: how many jobs have started since this child began.
        ``began`` (monotonic): when those in progress did."""
        if not self._ahead:
            return FetchPlan()
        expects_ends = _LONG <= self.run_time < _TOO_LONG * self.round_trip
        if expects_ends:
            self._last = self._plan_by_ends(now, began)
        elif self.run_time < _LONG:
            self._last = self._plan_by_rate(now, started)
        else:
            self._last = FetchPlan()
        return self._last

    def _plan_by_rate(self, now: float, started: int) -> FetchPlan:
        last, passed = self._last, now - self._counted_at
        if passed < _WINDOW:
            return FetchPlan(last.depth, last.low, last.due_at)
        fastest = self._processors / max(self.run_time, _SHORTEST_RUN)
        busy = max(passed - self._waited, _SHORTEST_BUSY)
        per_second = min((started - self._started) / busy, fastest)
        self._counted_at, self._started, self._waited = now, started, 0.0
        most = min(_MOST, _GROWTH * (last.depth + self._processors))
        depth = min(most, int(per_second * _PART * self.late_after))
        lead = _LOW * self.round_trip + _MOVE * depth
        return FetchPlan(depth, min(int(per_second * lead), depth * 3 // 4))

    def _plan_by_ends(self, now: float, began: Iterable[float]) -> FetchPlan:
        """The plan for longer jobs, by when those in progress will end. A job that runs for longer
        than the mean is expected to go on as long again; one that runs for much longer has no end
        that can be expected."""
        run_time = self.run_time
        began = [at for at in began if now - at < _MUCH_LONGER * run_time]
        until = now + self.horizon - _MARGIN
        ends = [at + run_time if at + run_time > now else now + run_time for at in began]
        soon = [end for end in ends if end < until]
        depth = min(_MOST, sum(1 + int((until - end) / run_time) for end in soon))
        # A fetch is sent so early because jobs end late and threads wake up late, by less than half
        # of what the horizon leaves, mostly.
        due_at = min(ends, default=inf) - self.round_trip - (self.horizon - self.round_trip) / 2
        # A fetch that is sent before would delay that one: what is done goes with it.
        low = -1 if due_at - now < self.late_after else 0
        return FetchPlan(depth, low, due_at, expects_ends=True)

    # How long a child holds back after a wake-up: many children wake up for the same job.
    #
    # A child answers the first wake-up at once. A wake-up after which its fetch brings nothing
    # makes it hold back at the next one, twice as long each time, until a fetch brings something.
    # After a while without a wake-up it holds back as after one miss: one of several idle children
    # goes at once, and the others do not compete with it for a core (docs/decisions/010).

    def woken(self, now: float) -> float:
        """Notes that Redis has said that a key changed. Returns the seconds to wait before the
        fetch."""
        if now - self._woken_at > _QUIET:
            self._misses = min(self._misses, 1)
        self._woken_at = now
        if self._misses == 0:
            return 0.0
        return float(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**self._misses) * random.uniform(0.5, 1.0))

    def next_poll_pause(self) -> float:
        """Seconds until the next fetch, where Redis does not say what changes: longer each time."""
        pause, self._poll = self._poll, min(self._poll * 1.5, POLL_LONGEST)
        return pause


def state_after(state: FetchState, want: int, *, short: bool, tracked: bool) -> FetchState:
    """The state after a reply. ``tracked``: Redis will say when there is more. An exchange that
    wanted nothing has changed the queues."""
    if not want:
        return state_after_loss(state)
    if not short:
        return "plenty"
    return "tracked" if tracked else "short"


def state_after_loss(state: FetchState) -> FetchState:
    """The state in which Redis will not say when there is more: the connection is lost, or this
    child itself has put jobs back."""
    return state if state == "waiting" else "short"


def wanted(free: int, ahead: int) -> int:
    """How many jobs a fetch asks for: ``free`` can begin, ``ahead`` may be leased."""
    return max(free, min(ahead, _MOST_AT_ONCE))


def is_time_to_send(low: int, count: Leased) -> bool:
    """Whether the next fetch is due between two jobs: some end is to be told, at most ``low`` units
    are ready, and many ends are to be told, or no processor is free to have the turn."""
    if not count.ended or count.ready > low:
        return False
    return count.ended >= max(1, count.capacity * 3 // 4) or count.all_busy


def first_look(pace: FetchPace, sent_at: float) -> float:
    """When a processor first looks whether the reply has come."""
    return sent_at + _FIRST_LOOK * pace.round_trip


# What the watch needs, while each processor performs and no processor is between two jobs.


def is_due_while_all_are_busy(
    plan: FetchPlan, pace: FetchPace, now: float, count: Leased, *, quiet: bool
) -> bool:
    """Whether the next fetch is due while each processor performs."""
    if quiet or (count.ended and plan.due_at - now >= pace.late_after):
        return count.ended > 0
    return plan.due_at <= now and count.ready < plan.depth


def reply_due(plan: FetchPlan, pace: FetchPace, sent_at: float, *, quiet: bool) -> float:
    """When the watch reads the reply to a fetch: by then it has arrived."""
    if quiet:
        return 0.0
    return sent_at + (_REPLY_BY * pace.round_trip if plan.expects_ends else pace.late_after)


def pause_of_watch(
    plan: FetchPlan, pace: FetchPace, now: float, count: Leased, reply_at: float | None
) -> float | None:
    """Seconds until the watch looks again; None: nothing is due. While a processor is free, the
    watch is not needed: it looks again before each of them may be busy with jobs leased ahead.
    ``reply_at``: when a reply is due, if a fetch is under way."""
    due_at = count.oldest + pace.late_after if count.ready else inf
    if reply_at is not None:
        due_at = min(due_at, reply_at)
    elif count.all_busy:
        due_at = min(due_at, plan.due_at)
    if due_at == inf:
        return None
    return max(due_at - now, _SHORTEST_PAUSE) if due_at > now else pace.horizon / 4
