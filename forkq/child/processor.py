"""One processor: a thread that takes one job after the other, and the run of each.

What is decided before a run and after it is the way of a job (job_way.py).
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Sequence
from collections.abc import Set as AbstractSet
from contextvars import copy_context
from threading import get_ident
from types import CoroutineType
from typing import Any

from .. import middleware, registry
from ..current_job import CurrentJob, enter_job, leave_job
from ..errors import Cancelled, Shutdown
from ..process_state import stopping
from ..registry import JobSpec
from ..wire.lease import UnitOfWork
from ..wire.printable import keep_texts
from ..wire.times import now
from .code_of_job import arguments_of
from .event_loop import Loop
from .failure.retry import AddProblem
from .failure.settle import Settler
from .fetch_turn import FetchParts, Hand, UnitSource
from .heartbeat.stats import Tally
from .interrupt import RAISED, InterruptRegion
from .job_run import JobRun
from .job_task import JobTask
from .job_way import JobWay, Role
from .observers import JobObserver
from .time_limits import TimeLimits


class Processor:
    """Takes units from ``source``, by default from the fetcher in its turn, until the child is
    quiet.

    ``observers`` are told of each job; the counts in ``tally`` come first. ``log_problem`` logs an
    error in the app's own handlers, or in forkq. ``limits`` are the time limits of jobs, ``loop``
    runs their coroutines. In the role "solo" or "sole" it runs suspects; "sole": no other suspect
    of the tree runs meanwhile. An ordinary one moves them to the list of suspects, with jobs of the
    classes that are ``held``.
    """

    def __init__(
        self,
        name: str,
        fetch: FetchParts,
        settler: Settler,
        observers: Sequence[JobObserver],
        log_problem: AddProblem,
        limits: TimeLimits,
        loop: Loop,
        tally: Tally | None = None,
        *,
        role: Role = "ordinary",
        held: AbstractSet[str] = frozenset(),
        source: UnitSource | None = None,
    ) -> None:
        self.tally = Tally() if tally is None else tally
        self.region = InterruptRegion()
        self.hand = Hand()
        self._source: UnitSource = fetch.turn if source is None else source
        self._way = JobWay(
            *(fetch, settler, observers, log_problem, limits, self.tally), role=role, held=held
        )
        self._log_problem = log_problem
        self._loop = loop
        self._started, self._started_at = limits.start_cells()
        self._gate = threading.Event()
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)

    def start(self, gate: threading.Event) -> None:
        """Starts the thread, which takes its first job when ``gate`` is open."""
        self._gate = gate
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    @property
    def has_died(self) -> bool:
        """Whether the thread was started and runs no more."""
        return self._thread.ident is not None and not self._thread.is_alive()

    def run(self) -> None:
        """Performs one job after the other, until the child is quiet."""
        self._started[1] = get_ident()
        try:
            self._gate.wait()
            while True:
                try:
                    if (unit := self._source.take(self.hand)) is None:
                        return
                    copy_context().run(self.process, unit)  # what a job sets ends with it
                except (Shutdown, Cancelled):  # Python 3.10 can deliver it after the region
                    self.region.leave()  # the lease stands: the stop returns it
        except BaseException as error:  # noqa: BLE001 - raised by the app in this thread, too late
            self._log_problem(error, "a processor ends: an exception was raised outside of a job")

    def process(self, unit: UnitOfWork) -> None:
        """One job's way through this child. It always ends with an outcome: a job that only went
        back to its queue after an error would fail in the same way again, without end."""
        run = self._way.new_run(unit, self.hand)
        try:
            self._started_at[0] = unit.taken
            self._started[0] = unit.sequence  # the master reads it when this process dies
            unit.start(get_ident(), now())
            error = self._way.open(run, self.region)
            if error is None:
                error = self._run_in_region(run)  # what the job raised is a value from here on
            self._way.settle(run, error)
        except BaseException as error:
            if isinstance(error, Shutdown) and stopping():
                raise
            self.region.leave()
            self._way.last_resort(run, error)

    def _run_in_region(self, run: JobRun) -> BaseException | None:
        """Runs the job, which can be interrupted meanwhile. Returns what it has come to."""
        error: BaseException | None = None
        try:
            self.region.enter(run.time_limit, run)
            try:
                self._run(run)
            except BaseException as raised:  # noqa: BLE001 - as below
                error = raised
                keep_texts(raised)
        except BaseException as raised:  # noqa: BLE001 - SystemExit must not end a processor
            error = raised
        try:
            cut_short = self.region.leave()
        except RAISED:  # raised at the call itself; at most two in a job
            try:
                cut_short = self.region.leave()
            except RAISED:
                cut_short = self.region.leave()
        leave_job()
        return self._way.outcome(run, error, cut_short)

    def _run(self, run: JobRun) -> None:
        """Runs the outer ring: the job's name, and the middleware around the job. The payload alone
        decides what a failure here leads to."""
        job = run.job
        assert job is not None
        spec = registry.lookup(job["class"])
        run.counted_as = self._way.counted_as(spec, job) if "wrapped" in job else spec.name
        job.setdefault("queue", run.unit.queue_name)
        view = enter_job(job, run)
        if spec.is_iterable:
            view.cursors = self._way.cursors(run)
        if middleware.server.members:
            middleware.server.run(job, lambda: self._call(run, spec, view))
        else:
            self._call(run, spec, view)

    def _call(self, run: JobRun, spec: JobSpec, view: CurrentJob) -> None:
        """Runs the inner ring: the job's own code. Its own hooks decide what a failure leads to."""
        args = arguments_of(spec, view.payload)
        perform = spec.make(view)
        run.performing = spec
        made = perform(*args)
        if made is not None:
            if spec.is_async or isinstance(made, CoroutineType):
                made = self._await(run, made, view)
            if run.marks is not None:
                run.returned = made
        run.performing = None

    def _await(self, run: JobRun, coroutine: Awaitable[Any], view: CurrentJob) -> Any:
        """Runs the coroutine of a job in the child's loop, and returns what that returns. This
        thread waits for its end; meanwhile an interrupt goes to the coroutine. Raises what that
        raises."""
        ended = threading.Lock()
        ended.acquire()
        task = JobTask(coroutine, view, run.unit.sequence, lambda _: ended.release())
        try:
            self.region.divert(task)
            self._loop.begin(task)
        except BaseException:
            task.close()
            raise
        try:
            ended.acquire()
        finally:
            self.region.divert(None)
        run.note_heard(heard=task.was_interrupted)
        if (error := task.outcome) is not None:
            raise error
        return task.result
