"""The time limits of running jobs, and the end of those that are cancelled.

A processor notes a job with a limit here before it performs it, and removes it after that. The
child's main thread looks at those jobs when the next limit is due, and raises ``TimeLimit``. The
heartbeat's thread raises ``Cancelled`` when it hears of a job that it is cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from functools import partial
from math import inf
from time import monotonic
from traceback import StackSummary
from typing import TYPE_CHECKING, Final

from .. import registry
from ..errors import InvalidJob, TimeLimit, shown
from ..features.batch.pause import BatchPause
from ..features.cancel.parts import Mark, field_in
from ..runtime.deadlines import DeadlineTable, StartCells, UnitCells
from ..runtime.stack_dump import calls_in, in_app, innermost
from ..store.watch.waker import Waker
from ..wire.payload import KEY, Payload
from ..wire.validation import time_limit
from .event_loop import EventLoop, LoopState
from .interrupt import InterruptRegion
from .job_run import JobRun
from .loop_watch import TOO_LONG

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_BEYOND: Final = "a job goes on beyond its hard_timeout"
_KEPT: Final = "a job cannot end by its hard_timeout: another one blocks the event loop"
_KEPT_BY_CALLBACK: Final = (
    "a job cannot end by its hard_timeout: a callback of no job blocks the event loop"
)
# Seconds after its TimeLimit in which a job may clean up before it is logged.
_CLEANUP: Final = 5.0
# How long another job, or a callback, must have blocked the loop to be the reason why a job goes
# on; or half of the hard_timeout, if that is less.
_TO_BLAME: Final = 5.0
# When to look again at a job that cannot end because the loop is blocked.
_AGAIN: Final = 1.0


class TimedJob:
    """One run of a job with a time limit. ``timeout``, ``hard_timeout``: seconds, 0 if it has none.

    ``steps``: what the main thread does, and when (monotonic), the next one last. ``raised``:
    TimeLimit was raised in the job; ``told``: the log has the job as one that goes on all the same.
    ``place``: of its hard limit in the DeadlineTable, -1 if it has none.
    """

    __slots__ = ("hard_timeout", "place", "raised", "region", "run", "steps", "timeout", "told")

    def __init__(
        self, region: InterruptRegion, run: JobRun, timeout: float, hard_timeout: float
    ) -> None:
        self.region = region
        self.run = run
        self.timeout = timeout
        self.hard_timeout = hard_timeout
        self.raised = False
        self.told = False
        self.place = -1
        self.steps: list[tuple[float, Callable[[TimedJob], None]]] = []

    def put_off(self, step: Callable[[TimedJob], None], at: float) -> None:
        """Has ``step`` done at that time (monotonic)."""
        self.steps = sorted([*self.steps, (at, step)], key=_when, reverse=True)

    @property
    def details(self) -> dict[str, object]:
        """The values of a log line about this job, with the limits that it has."""
        limits = {"timeout": self.timeout, "hard_timeout": self.hard_timeout}
        known = {key: limit for key, limit in limits.items() if limit}
        return {"class": self.run.shown_class, "jid": self.run.jid, **known}


class TimeLimits:
    """The time limits of one child. ``timeout``, ``hard_timeout``: the limits in seconds of jobs
    that set none; 0 is no limit. ``table``: where the master reads the hard limits. ``loop`` runs
    the coroutines of jobs. ``waker`` ends the main thread's wait."""

    def __init__(
        self,
        log: FilteringBoundLogger,
        timeout: float = 0.0,
        hard_timeout: float = 0.0,
        table: DeadlineTable | None = None,
        loop: EventLoop | None = None,
    ) -> None:
        self._log = log
        self._loop = None if loop is None else LoopState(loop)
        self._defaults = {"timeout": timeout, "hard_timeout": hard_timeout}
        self._table = table
        self.waker = Waker()
        self._running: set[TimedJob] = set()
        # What is cancelled, as far as this child knows; the heartbeat's thread changes it.
        self.cancelled: dict[str, Mark] = {}
        self.paused: dict[str, BatchPause] = {}  # and which batches are paused, by their ids
        self._forced: set[JobRun] = set()  # jobs that the master ends if they go on
        self._looks_at = 0.0  # when the main thread looks again, at the latest (monotonic)
        # The classes whose jobs are timed even if their payloads have no limit.
        self.classes: Container[str] = (
            _Every() if timeout or hard_timeout else registry.with_time_limit
        )

    def start_cells(self) -> StartCells:
        """The places in which a processor notes, for the master, which lease it begins, where and
        when."""
        return ([0, 0], [0.0]) if self._table is None else self._table.start_cells()

    def unit_cells(self, count: int) -> UnitCells:
        """The places in which the event loop notes, for the master, the units that it runs."""
        return UnitCells.unread(count) if self._table is None else self._table.unit_cells(count)

    def last_begun(self) -> int:
        """The highest sequence number of a lease whose job has begun; 0 if none has."""
        return 0 if self._table is None else self._table.last_begun()

    # Called by processors

    def watch(self, region: InterruptRegion, run: JobRun, job: Payload) -> None:
        """Notes the time limits of ``job``, which is about to enter ``region``."""
        timeout = self._limit(run, job, "timeout")
        hard_timeout = self._limit(run, job, "hard_timeout")
        if hard_timeout:  # a default is no shorter than the job's own limit
            hard_timeout = max(hard_timeout, timeout)
        timed = TimedJob(region, run, timeout, hard_timeout)
        began = run.unit.taken
        if hard_timeout:
            hard = began + hard_timeout
            timed.place = self._table.add(hard, run.unit.sequence) if self._table else -1
            timed.steps.append((hard, self._tell_master))
        if timeout:
            soft = began + timeout
            timed.steps += [(soft + _CLEANUP, self._warn), (soft, self._expire)]
            timed.steps.sort(key=_when, reverse=True)
        if timed.steps:
            self._start(timed)

    def end(self, timed: TimedJob, error: BaseException | None) -> None:
        """Removes a job that has ended, with ``error`` or without one."""
        self._running.discard(timed)
        if self._table is not None and timed.place >= 0:
            self._table.clear(timed.place)
            timed.place = -1
        if not timed.raised:
            return
        if isinstance(error, TimeLimit) and not error.args:
            error.args = (f"the job has run for its timeout of {timed.timeout:g} s",)
        elif error is None and not timed.told:
            self._log.warning(
                "a job swallowed its TimeLimit, or ended before it was delivered",
                **timed.details,
                elapsed=round(monotonic() - timed.run.unit.taken, 3),
            )

    def _start(self, timed: TimedJob) -> None:
        timed.run.time_limit = timed
        self._running.add(timed)
        if timed.steps[-1][0] < self._looks_at:
            self.waker.wake()

    def _limit(self, run: JobRun, job: Payload, key: str) -> float:
        """The limit of a job: its own, or that of its definition, or the capsule's."""
        limit = time_limit(job, key)
        if limit is not None:
            return limit
        if job.get(key) is not None:
            bad = InvalidJob(f"{key} is {shown(job[key])}")
            run.add_problem(bad, f"`{key}` is no time limit; that of the definition counts")
        if job["class"] in registry.with_time_limit:
            limit = time_limit(dict(registry.lookup(job["class"]).options), key)
        return self._defaults[key] if limit is None else limit

    def note_done(self, run: JobRun) -> None:
        """Logs that a job has ended well although it was cancelled."""
        self._log.warning(
            "a cancelled job is done: it swallowed its Cancelled, or ended before it was delivered",
            **{"class": run.shown_class, "jid": run.jid},
        )

    # Called by the heartbeat's thread

    def end_cancelled(self, regions: Iterable[InterruptRegion]) -> None:
        """Raises Cancelled in the jobs that run in ``regions`` and are cancelled, each once. If one
        is to be ended by force, the master ends this child unless it ends in time."""
        running = [(region, run) for region in regions if (run := region.run) and run.job]
        self._forced &= {run for _, run in running}
        for region, run in running:
            job = run.job or {}
            facts = {"jid": run.jid, "class": run.shown_class, KEY: job.get(KEY)}
            facts["created_at"] = job.get("created_at")
            if (mark := self.cancelled.get(field_in(self.cancelled, facts))) is not None:
                self._end_cancelled(region, run, mark)

    def _end_cancelled(self, region: InterruptRegion, run: JobRun, mark: Mark) -> None:
        if region.cancel(run):
            self._log.info("cancelling", **{"class": run.shown_class, "jid": run.jid})
        if mark.grace is not None and run not in self._forced:
            self._forced.add(run)
            limit = monotonic() + mark.grace
            region.while_inside(run, partial(self._force, region, run, limit))

    def _force(self, region: InterruptRegion, run: JobRun, limit: float) -> None:
        timed = run.time_limit or TimedJob(region, run, 0.0, 0.0)
        if self._table is not None and timed.place >= 0:
            self._table.clear(timed.place)  # of its hard_timeout: the earlier one counts
            limit = min([limit, *(at for at, step in timed.steps if step == self._tell_master)])
        timed.place = self._table.add(limit, run.unit.sequence) if self._table else -1
        steps = [step for step in timed.steps if step[1] != self._tell_master]
        timed.steps = steps
        timed.put_off(self._tell_master, limit)
        self._start(timed)

    # Called by the main thread

    def wait(self, longest: float) -> float:
        """For how many seconds the main thread may wait, at most ``longest``."""
        self._looks_at = inf  # from here on a job that begins ends the wait
        now = monotonic()
        due = min((timed.steps[-1][0] for timed in list(self._running)), default=inf)
        pause = min(longest, max(0.0, due - now))
        self._looks_at = now + pause
        return pause

    def enforce(self) -> None:
        """Does what is due."""
        if not self._running:
            return
        now = monotonic()
        for timed in list(self._running):
            while timed.steps and timed.steps[-1][0] <= now and timed in self._running:
                timed.steps.pop()[1](timed)
            if not timed.steps:
                self._running.discard(timed)

    def _expire(self, timed: TimedJob) -> None:
        if not self._is_put_off(timed, self._expire, timed.timeout):
            timed.region.expire(timed)

    def _is_put_off(
        self, timed: TimedJob, step: Callable[[TimedJob], None], seconds: float
    ) -> bool:
        """Whether a step is not due yet, since other jobs, or callbacks, have kept the coroutine
        from going on: for so long it did not run. Then the step has a later time."""
        unit = timed.run.unit
        kept = 0.0 if self._loop is None else self._loop.kept(unit.sequence, unit.taken)
        due = unit.taken + seconds + kept
        if not kept or due <= monotonic():
            return False
        timed.put_off(step, due)
        return True

    def _tell_master(self, timed: TimedJob) -> None:
        """Logs where the job hangs, and notes that for the master, which ends this child soon."""
        least = min(_TO_BLAME, timed.hard_timeout / 2 or _TO_BLAME)
        blocker, callback = self._blocker(timed, least), self._callback(timed, least)
        is_due = blocker or callback or timed.run in self._forced
        if not is_due and self._put_off_for_master(timed):
            return
        timed.told = True
        if blocker:
            self._blame(timed, blocker)
            return
        if callback:
            self._end_with_callback(timed, callback)
            return
        calls, is_cancelled = self._calls(timed.run), timed.run in self._forced
        event = "a cancelled job goes on" if is_cancelled else _BEYOND
        self._log.error(event, **timed.details, stack=in_app(calls))
        if self._table is not None and timed.place >= 0:
            blocks = self._blocks(timed.run.unit.sequence)
            text = innermost(calls)
            self._table.tell(timed.place, text, blocks=blocks, cancelled=is_cancelled)

    def _put_off_for_master(self, timed: TimedJob) -> bool:
        """Whether the hard limit of a job is not due yet. Then the master reads the later time."""
        if not self._is_put_off(timed, self._tell_master, timed.hard_timeout):
            return False
        if self._table is not None and timed.place >= 0:
            self._table.clear(timed.place)
            limit = max(at for at, step in timed.steps if step == self._tell_master)
            timed.place = self._table.add(limit, timed.run.unit.sequence)
        return True

    def _blocks(self, sequence: int) -> bool:
        step = None if self._loop is None else self._loop.step
        return step is not None and step.sequence == sequence

    def _blocker(self, timed: TimedJob, least: float) -> int:
        """The sequence of another job, whose step has kept the coroutine of this one from going on
        for so many seconds; 0 if none has."""
        step, own = None if self._loop is None else self._loop.step, timed.run.unit.sequence
        if self._loop is None or step is None or step.sequence == own:
            return 0
        is_kept = step.took(monotonic()) >= least and self._loop.runs(own)
        return step.sequence if is_kept else 0

    def _blame(self, timed: TimedJob, blocker: int) -> None:
        """Has the master end the job that blocks the loop, in the place of one that cannot end."""
        assert self._loop is not None
        calls = self._loop.calls_of(blocker)
        name, jid = self._loop.name_of(blocker)
        self._log.error(_KEPT, **timed.details, blocked_by=f"{name} {jid}", stack=in_app(calls))
        if self._table is not None and timed.place >= 0:
            self._table.tell(timed.place, innermost(calls), blocker=blocker)

    def _callback(self, timed: TimedJob, least: float) -> str:
        """The place of a callback of no job that has kept this coroutine from going on for so many
        seconds; "" if none has."""
        place = "" if self._loop is None else self._loop.callback(monotonic() - least)
        runs = place and self._loop is not None and self._loop.runs(timed.run.unit.sequence)
        return place if runs else ""

    def _end_with_callback(self, timed: TimedJob, place: str) -> None:
        """Has the master end the child, in which no coroutine can go on. No other job is to blame:
        the one whose limit is over has failed."""
        self._log.error(_KEPT_BY_CALLBACK, **timed.details, function=place)
        if self._table is not None and timed.place >= 0:
            why = f"a coroutine that could not go on: the event loop was blocked by {place}"
            self._table.tell(timed.place, why, blocks=True, cancelled=timed.run in self._forced)

    def _warn(self, timed: TimedJob) -> None:
        if not timed.raised:  # the stop has interrupted it before
            return
        if self._is_put_off(timed, self._warn, timed.timeout + _CLEANUP):
            return
        if self._blocker(timed, TOO_LONG):  # it cannot hear of its TimeLimit
            timed.put_off(self._warn, monotonic() + _AGAIN)
            return
        timed.told = True
        self._log.warning(
            "a job goes on after its TimeLimit: it swallowed it, or is in a call that blocks",
            **timed.details,
            stack=in_app(self._calls(timed.run)),
        )

    def _calls(self, run: JobRun) -> StackSummary:
        """Where a job is: its coroutine, or its thread."""
        found = None if self._loop is None else self._loop.calls_of(run.unit.sequence)
        return found or calls_in(run.unit.thread)


def _when(step: tuple[float, Callable[[TimedJob], None]]) -> float:
    return step[0]


class _Every:
    """Contains every class."""

    def __contains__(self, name: object) -> bool:
        return True
