"""Runs a recorded job in the test's process: the way of a job through a child, without Redis.

The processor, the middleware, the decisions about failures and the app's handlers are those of a
child. What is different: no lease, no time limit, and the thread is that of the test.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Container, Mapping, MutableMapping
from contextvars import copy_context
from functools import partial
from itertools import count
from time import monotonic
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import structlog

from .. import process_state
from ..batches.block import block
from ..child.event_loop import Loop
from ..child.failure.ends import way_of
from ..child.failure.retry import Bury, Decision, Drop, End, GoOn, Postpone, Retry, Sleeps, Snoozed
from ..child.job_log import JobLog
from ..child.job_run import JobRun
from ..child.job_way import Interrupted
from ..child.observers import JobObserver
from ..child.processor import Processor
from ..current_job import CurrentJob
from ..features.cancel.parts import NOTHING, Mark
from ..features.iterable.parts import Iteration, written
from ..registry import JobSpec
from ..runtime.deadlines import StartCells
from ..runtime.log_console import SENTENCE
from ..wire.lease import UnitOfWork
from ..wire.payload import Payload
from ..wire.printable import with_message
from .kills import KilledSteps, Kills
from .loops import call_without_loop, is_elsewhere, one_loop, runs_in_loop
from .recorded_job import RecordedJob
from .steps import RecordedSteps

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger
    from typing_extensions import Self

    from ..child.failure.settle import Settler, Until
    from ..child.fetch_turn import FetchParts
    from ..child.time_limits import TimeLimits
    from .recorder import Recorder

_sequence: Final = count(1)


def perform(job: RecordedJob, jobs: Recorder, kills: Kills | None) -> BaseException | None:
    """Runs ``job`` once; what becomes of it is noted in ``jobs``, unless the run is killed.
    Returns its error. ``kills``: where it is killed, if it is to be."""
    run = _Run(job, jobs)
    unit = UnitOfWork(1, job.queue, next(_sequence), job.raw, taken=monotonic())
    context = copy_context()  # the job's own: the job that pushes this one goes on after it
    context.run(block.set, None)  # a job is in no block of a batch, though its push may be in one
    if not (runs_in_loop() or is_elsewhere()):
        context.run(process_state.enter_thread_of_test)
    with one_loop() as loop:
        call_without_loop(lambda: context.run(run.processor(loop, kills).process, unit))
    if isinstance(run.error, KeyboardInterrupt):
        raise run.error
    return run.error


class _Run(JobObserver):
    """One run of one job, as its observer."""

    def __init__(self, job: RecordedJob, jobs: Recorder) -> None:
        self.error: BaseException | None = None
        self._job = job
        self._jobs = jobs

    def processor(self, loop: Loop, kills: Kills | None) -> Processor:
        """A processor of this run alone. ``loop`` runs the coroutine of the job."""
        log, ends = _Log(child_log()), _Ends(self._jobs)
        made = Processor if kills is None else partial(_KilledProcessor, kills)
        return made(
            "forkq.testing",
            cast("FetchParts", SimpleNamespace(fetcher=ends, leases=ends, turn=None)),
            cast("Settler", ends),
            [log, self],
            log.log_problem,
            cast("TimeLimits", _NoTimeLimits()),
            loop,
        )

    def done(self, run: JobRun) -> None:
        self._jobs.performed.append(self._job)

    def failed(self, run: JobRun, error: BaseException, decision: Decision) -> None:
        """Notes a failure: the job is given up unless it is retried, or its own hook said
        DISCARD."""
        self.error = error
        if isinstance(decision, Bury | Drop) and decision.job is not None:
            self._jobs.give_up(self._job, error)


class _Log(JobLog):
    def interrupted(self, run: JobRun) -> None:
        """Logs nothing: the run was killed, and so was what would log."""


class _KilledProcessor(Processor):
    """A processor whose run may be killed. Nothing is written then: the processor takes it for one
    that a stop has cut short, whose lease stays."""

    def __init__(self, kills: Kills, *parts: Any) -> None:
        super().__init__(*parts)
        self._kills = kills

    def _call(self, run: JobRun, spec: JobSpec, view: CurrentJob) -> None:
        view.steps = KilledSteps(view.jid, run.step_store(), self._kills)
        super()._call(run, spec, view)

    def _run_in_region(self, run: JobRun) -> BaseException | None:
        error = super()._run_in_region(run)
        if isinstance(error, KeyboardInterrupt):  # the author's own, who ends the test
            return error
        return Interrupted() if self._kills.at_end(error) else error


class _Ends:
    """What the processor has instead of a Fetcher, Leases and a Settler: the jobs go to the
    recorder at once, so nothing is waited for."""

    def __init__(self, jobs: Recorder) -> None:
        self.elsewhere = _NoOtherJobs()
        self._jobs = jobs

    def done(self, unit: UnitOfWork) -> float:
        """Notes that the job is done."""
        self._jobs.leave(unit.marked, "done")
        return monotonic() - unit.taken

    def which(self, unit: UnitOfWork) -> Literal["run"]:
        """Says that the job itself is to be run: none waits in the place of another one."""
        return "run"

    def start(self, unit: UnitOfWork, job: Payload) -> None:
        """Notes that the job starts. A step of a flow gets what others have returned."""
        self._jobs.flows.fill(job)
        self._jobs.locks.start(unit)

    def drop(self, unit: UnitOfWork, *, until: Until) -> None:
        """Notes that the job is given up, and that no set has it."""
        self._jobs.leave(unit.marked, "dropped")

    def occupy(self, consumer: object, *, on: bool) -> None:
        """Does nothing: no job is fetched."""

    def retry(self, unit: UnitOfWork, decision: Retry, *, until: Until) -> None:
        """Records the job for its retry, or for a newer forkq."""
        self._jobs.leave(unit.marked, way_of(decision))
        if isinstance(decision, Sleeps):
            self._jobs.remembered.pause(decision.jid, decision.pause)
        retrying = not isinstance(decision, Postpone | Snoozed)
        self._jobs.add_again(RecordedJob.of(decision.payload, decision.at, retrying=retrying))

    def cursors(self, run: JobRun) -> _Cursors:
        """What an iterable job asks while it runs."""
        return _Cursors(self._jobs, run)

    @property
    def memory(self) -> Self:
        """What jobs remember: the recorder has it."""
        return self

    def steps(self, run: JobRun) -> RecordedSteps:
        """What a job asks when it comes to its steps."""
        return RecordedSteps(self._jobs.remembered, run)

    def return_to_queue(self, unit: UnitOfWork, decision: GoOn) -> None:
        """Records an iterable job that goes on later, with its cursor."""
        self._jobs.remembered.cursors[decision.jid] = cast("Iteration", decision.reached)
        self._jobs.add(RecordedJob.of(decision.payload))

    def end(self, unit: UnitOfWork, decision: End, *, until: Until) -> None:
        """Notes that the job has ended otherwise, and that no set has it."""
        self._jobs.leave(unit.marked, decision.outcome)

    def bury(self, unit: UnitOfWork, decision: Bury, *, until: Until) -> None:
        """Records the job as one that the dead set would have."""
        self._jobs.leave(unit.marked, "dead")
        self._jobs.dead.append(RecordedJob.of(decision.payload))


class _NoOtherJobs:
    """What a test has instead of JobsElsewhere."""

    def has(self, name: object) -> bool:
        """Says that no other process has a job."""
        return False


class _Cursors:
    """What an iterable job has instead of ``child/failure/cursors.py``: the test keeps it."""

    def __init__(self, jobs: Recorder, run: JobRun) -> None:
        self._cursors = jobs.remembered.cursors
        self._jid = str(run.jid)

    def load(self) -> Iteration:
        """How far the job had come when it ran last."""
        return self._cursors.get(self._jid, Iteration())

    def save(self, reached: Iteration) -> bool:
        """Notes how far it has come, as JSON has it. No other process can cancel it."""
        self._cursors[self._jid] = reached._replace(cursor=json.loads(written(reached.cursor)))
        return False


class _NoTimeLimits:
    """Instead of TimeLimits: nothing interrupts a job of a test."""

    classes: Container[str] = ()
    cancelled: Mapping[str, Mark] = NOTHING
    paused: Mapping[str, Mark] = NOTHING

    def start_cells(self) -> StartCells:
        """The places in which begins are noted: no master reads them."""
        return [0, 0], [0.0]

    def watch(self, *_: object) -> None:
        """Notes nothing."""


def child_log() -> FilteringBoundLogger:
    """The log of a child in a test: its lines go to the logger ``forkq`` of the standard
    library."""
    return cast(
        "FilteringBoundLogger",
        structlog.wrap_logger(
            logging.getLogger("forkq"),
            processors=[_as_record],
            wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
            context_class=dict,
            cache_logger_on_first_use=False,
        ),
    )


def _as_record(
    _logger: object, level: str, event: MutableMapping[str, Any]
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The arguments for a method of ``logging.Logger``. A failed job is a warning: it may fail 26
    times, so it has no traceback here; that of the last run is the cause of what ``drain``
    raises."""
    error, text = event.pop("exc_info", None), event.pop("event")
    event.pop(SENTENCE, None)  # it says the same for a person at a console
    values = [f"{key}={value}" for key, value in event.items()]
    if level == "warning" and error is not None:
        told = with_message(type(error).__name__, str(error))
        return ("%s", " ".join((text, *values, told))), {}
    return ("%s", " ".join((text, *values))), {"exc_info": error}
