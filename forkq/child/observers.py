"""Observers of jobs: the log, the statistics, the history of periodic jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, TypeAlias

from ..errors import Asleep, Cancelled, Discard, Snooze
from ..features.marked import EndOutcome
from ..store.connection import RedisError
from ..store.held_classes import release
from ..store.pool import RedisPool
from ..store.watch.waker import Waker
from ..wire.keys import Keys
from ..wire.marks import long_run
from .failure.retry import Decision, End, GoOn, Snoozed
from .job_run import JobRun

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# What a job has said of itself, or was told.
Said: TypeAlias = Snooze | Discard | Asleep | Cancelled


class JobObserver:
    """An observer, which a processor tells, in its thread, what becomes of each job.

    A subclass overrides what it wants to know. It must not raise. ``only_marked``: it is told only
    of those done jobs whose payload has marks (``JobRun.marks``).
    """

    only_marked = False

    def started(self, run: JobRun) -> None:
        """The job is loaded, and about to be performed."""

    def done(self, run: JobRun) -> None:
        """The job was performed and is acknowledged."""

    def failed(self, run: JobRun, error: BaseException, decision: Decision) -> None:
        """``error`` ended the job, or its payload is malformed (``run.job`` is None). What was
        decided is settled."""

    def postponed(self, run: JobRun) -> None:
        """The job needs a newer forkq, or its batch is paused. It was not run, and waits in the
        schedule."""

    def ended(self, run: JobRun, outcome: EndOutcome) -> None:
        """A feature of the job has ended it instead of a run."""

    def decided(self, run: JobRun, said: Said, decision: Snoozed | End) -> None:
        """The job has said what becomes of it, and that is done."""

    def went_on(self, run: JobRun, decision: GoOn) -> None:
        """An iterable job has stopped between two items, and is in its queue again."""

    def interrupted(self, run: JobRun) -> None:
        """The stop cut the job short, and its lease stays until the stop returns it to its queue.
        Or another host has it (``run.unit.lost``)."""

    def returned(self, run: JobRun) -> None:
        """The job was not run: no other suspect of the tree may run beside it. It is at the tail of
        its list again."""


class SoloRuns(JobObserver):
    """An observer in a solo child, whose main thread tells the master at once when a job begins and
    ends, since the master forks more solo children by that. ``long_at``: when the runs that go on
    count as long ones (monotonic); 0 if none goes on. ``wants_sole``: a suspect was put back beside
    which no other one of the tree may run. ``on_end`` is called when a run has ended."""

    def __init__(self, waker: Waker) -> None:
        self.wants_sole = False
        self.on_end: Callable[[], None] = lambda: None
        self._long_at: dict[int, float] = {}  # by sequence number
        self._waker = waker

    @property
    def long_at(self) -> float:
        return max(self._long_at.copy().values(), default=0.0)

    def started(self, run: JobRun) -> None:
        self._long_at[run.unit.sequence] = run.unit.taken + long_run(run.marks)
        self._waker.wake()

    def done(self, run: JobRun) -> None:
        self._end(run)

    def failed(self, run: JobRun, error: BaseException, decision: Decision) -> None:
        self._end(run)

    def interrupted(self, run: JobRun) -> None:
        self._end(run)

    def postponed(self, run: JobRun) -> None:
        self._end(run)

    def ended(self, run: JobRun, outcome: EndOutcome) -> None:
        self._end(run)

    def decided(self, run: JobRun, said: Said, decision: Snoozed | End) -> None:
        self._end(run)

    def went_on(self, run: JobRun, decision: GoOn) -> None:
        self._end(run)

    def returned(self, run: JobRun) -> None:
        self.wants_sole = True
        self._waker.wake()

    def _end(self, run: JobRun) -> None:
        self._long_at.pop(run.unit.sequence, None)
        self.on_end()
        self._waker.wake()


class ReleaseClasses(JobObserver):
    """Releases a held class when one of its jobs has ended well, in a solo child. ``held`` are the
    classes that are held, as the master has told."""

    def __init__(
        self, held: AbstractSet[str], keys: Keys, pool: RedisPool, log: FilteringBoundLogger
    ) -> None:
        self._held = held
        self._keys = keys
        self._pool = pool
        self._log = log

    def done(self, run: JobRun) -> None:
        name = run.shown_class
        if not self._held or type(name) is not str or name not in self._held:
            return
        call = release(self._keys, name)
        try:
            with self._pool.connection() as connection:
                connection.script(call.script, call.keys, call.arguments)
        except RedisError as error:  # the next job that ends well does it
            self._log.warning("a held class was not released", held=name, error=str(error))


class Observers:
    """The methods to call for each event, in order. An observer that does not override an event
    costs it nothing. ``done_marked`` is for a job with marks, ``done`` for one without."""

    def __init__(self, observers: Sequence[JobObserver]) -> None:
        self.started: list[Callable[[JobRun], None]] = _overridden(observers, "started")
        self.done_marked: list[Callable[[JobRun], None]] = _overridden(observers, "done")
        self.done: list[Callable[[JobRun], None]] = _overridden(
            [one for one in observers if not one.only_marked], "done"
        )
        self.failed: list[Callable[[JobRun, BaseException, Decision], None]] = _overridden(
            observers, "failed"
        )
        self.ended: list[Callable[[JobRun, EndOutcome], None]] = _overridden(observers, "ended")
        self.decided: list[Callable[[JobRun, Said, Snoozed | End], None]] = _overridden(
            observers, "decided"
        )
        self.went_on: list[Callable[[JobRun, GoOn], None]] = _overridden(observers, "went_on")
        self.postponed: list[Callable[[JobRun], None]] = _overridden(observers, "postponed")
        self.interrupted: list[Callable[[JobRun], None]] = _overridden(observers, "interrupted")
        self.returned: list[Callable[[JobRun], None]] = _overridden(observers, "returned")


def _overridden(observers: Sequence[JobObserver], event: str) -> list[Callable[..., None]]:
    ignored = getattr(JobObserver, event)
    return [getattr(one, event) for one in observers if getattr(type(one), event) is not ignored]
