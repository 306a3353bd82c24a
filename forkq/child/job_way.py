"""The way of a job through a child, but for its run: what is decided before it, and what becomes of
the job after it.

A processor and the event loop both go it. What the job raised, or why it was not run, is a value
here. Each of the app's handlers is called inside a ``try`` of its own.
"""

from __future__ import annotations

import time
from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Sequence
from collections.abc import Set as AbstractSet
from time import monotonic
from typing import Any, Final, Literal, TypeAlias

from .. import middleware, registry
from ..current_job import CurrentJob, leave_job
from ..errors import (
    Asleep,
    Cancelled,
    ConfigError,
    Dead,
    Discard,
    IterationStopped,
    LeaseLost,
    MalformedPayload,
    Snooze,
    SnoozedTooLong,
    UnknownJob,
    Unsettled,
    cancelled_in,
    caused_by_shutdown,
    decision_in,
)
from ..features.batch.pause import pause_of
from ..features.cancel.parts import field_in
from ..features.effects import name_of
from ..features.flow.parts import is_step
from ..features.marked import has_lock, outcome_at_start
from ..process_state import stopping
from ..registry import JobSpec
from ..runtime.assignment import exit_job_fork, exit_process, is_job_fork
from ..runtime.exit_codes import OUT_OF_MEMORY
from ..store.held_classes import name_in
from ..wire.lease import UnitOfWork
from ..wire.marks import (
    failure_in,
    is_suspect,
    needs_in,
    needs_newer,
    needs_sole,
    ran_until_failure,
)
from ..wire.payload import Payload, loads
from ..wire.times import now
from .code_of_job import arguments_of, newer_code
from .failure.cursors import Cursors
from .failure.retry import (
    AddProblem,
    Bury,
    Decision,
    Drop,
    End,
    Retry,
    Snoozed,
    decide,
    go_on,
    obey,
    postpone,
    put_off,
    waits_for_code,
)
from .failure.settle import (
    EndsUnrun,
    IsPaused,
    MustRunAlone,
    MustRunSole,
    NeedsNewer,
    NotRun,
    Settler,
    Unasked,
    Unread,
    Until,
)
from .fetch_turn import FetchParts
from .heartbeat.stats import JobCounter, Tally
from .interrupt import CutShort, InterruptRegion
from .job_run import JobRun
from .job_task import outside_of_job
from .observers import JobObserver, Observers, Said
from .time_limits import TimeLimits

# Seconds until a solo child fetches again after a payload that Redis did not give.
_UNREAD_PAUSE: Final = 1.0
# And after a suspect beside which no other one of the tree may run: the list may have more of them.
_SOLE_PAUSE: Final = 1.0
# Bounds of the classes that payloads may name for the metrics: characters, and how many.
_LONGEST_NAME: Final = 200
_MOST_NAMES: Final = 1000


Role: TypeAlias = Literal["ordinary", "solo", "sole"]


class Interrupted(Exception):
    """The outcome of a job that the stop cut short. Its lease stays, and goes back to its queue."""


class JobWay:
    """What one consumer of units does with each job before and after its run.

    ``observers`` are told of each job; the counts in ``tally`` come first. ``log_problem`` logs an
    error in the app's own handlers, or in forkq. ``limits`` are the time limits of jobs. In the
    role "solo" or "sole" suspects run here; "sole": no other suspect of the tree runs meanwhile.
    In the role "ordinary" they move to the list of suspects, with jobs of the classes that are
    ``held``. ``pause`` keeps the place of a job that has gone elsewhere for some seconds; by
    default the thread waits.
    """

    def __init__(
        self,
        fetch: FetchParts,
        settler: Settler,
        observers: Sequence[JobObserver],
        log_problem: AddProblem,
        limits: TimeLimits,
        tally: Tally,
        *,
        role: Role = "ordinary",
        held: AbstractSet[str] = frozenset(),
    ) -> None:
        self.tally = tally
        # A class of its own, so that no run pays for what few need.
        known = {"__slots__": (), "memory": settler.memory}
        self.new_run: type[JobRun] = type("JobRun", (JobRun,), known)
        self._fetcher = fetch.fetcher
        self._leases = fetch.leases
        self._settler = settler
        self._observers = Observers([JobCounter(tally), *observers])
        self._log_problem = log_problem
        self.pause: Callable[[object, float], None] = self._wait
        self._role = role
        self._held = held
        self._limits = limits
        self._timed_classes = limits.classes

    # Before the run

    def open(self, run: JobRun, region: InterruptRegion) -> BaseException | None:
        """Loads the job. Returns why it is not performed here; None if it is: then the observers
        know that it starts, and its time limits count. Of a large or marked job it asks Redis."""
        unit = run.unit
        try:
            job = run.job or loads(unit.payload or self._settler.read(unit))
            run.loaded(job)
            if is_unique := unit.marked is not None and has_lock(unit.marked):
                job = self._newest(run, job)
        except (MalformedPayload, NotRun) as problem:
            return problem
        if "retry_count" in job:
            _count_from_zero(job)
        if run.marks is not None or self._held or self._limits.cancelled:
            if (verdict := self._verdict(run, job)) is not None:
                return verdict
            if is_unique:
                self._settler.start(unit, job)
            elif is_step(run.marks) and (missing := self._start_step(unit, job)) is not None:
                return missing
        for started in self._observers.started:
            started(run)
        if "timeout" in job or "hard_timeout" in job or job["class"] in self._timed_classes:
            self._limits.watch(region, run, job)
        return None

    def _newest(self, run: JobRun, job: Payload) -> Payload:
        """The job that is to be run in the place of the one that was fetched, as a rule that one.
        Raises NotRun if there is none, or if that is not known."""
        if needs_newer(run.marks):
            return job
        if (said := self._settler.which(run.unit)) == "run":
            return job
        if said != "newer":
            raise EndsUnrun("replaced", is_counted=said == "over")
        for ended in self._observers.ended:
            ended(run, "replaced")
        newest = loads(self._settler.read(run.unit))
        run.loaded(newest)
        return newest

    def _start_step(self, unit: UnitOfWork, job: Payload) -> BaseException | None:
        """Has a step of a flow get what others have returned. Returns why that cannot be."""
        try:
            self._settler.start(unit, job)
        except (ConfigError, Dead, NotRun) as problem:  # the first: the flow is on no shard here
            return problem
        return None

    def counted_as(self, spec: JobSpec, job: Payload) -> str:
        """The name for the metrics: the class that ActiveJob, say, has wrapped. Payloads could name
        any number of classes; beyond the bounds the wrapper's own name counts."""
        name, known = job["wrapped"], self.tally.classes
        fits = type(name) is str and 0 < len(name) <= _LONGEST_NAME
        return name if fits and (name in known or len(known) < _MOST_NAMES) else spec.name

    def cursors(self, run: JobRun) -> Cursors:
        """What an iterable job asks of Redis while it runs."""
        return self._settler.memory.cursors(run)

    def _verdict(self, run: JobRun, job: Payload) -> BaseException | None:
        """Why the job is not to be performed here, by its marks or its class; None if it is."""
        if (newer := newer_code(run.marks, job)) is not None:
            return newer
        if self._limits.cancelled and field_in(self._limits.cancelled, job):
            return EndsUnrun("cancelled")
        error, needs = failure_in(run.marks), needs_in(run.marks)
        outcome = outcome_at_start(needs, now())
        if outcome is not None and error is None:
            return EndsUnrun(outcome)
        if (
            self._limits.paused
            and error is None
            and (pause := pause_of(self._limits.paused, needs))
        ):
            return IsPaused(pause)
        if self._role == "ordinary" and is_suspect(run.marks):
            return MustRunAlone()
        if self._role == "ordinary" and (name := name_in(job)) in self._held:
            return MustRunAlone(name)
        if error is None and self._role == "solo" and needs_sole(run.marks):
            return MustRunSole()
        if error is not None:
            run.elapsed = ran_until_failure(run.marks)
            if (spec := registry.find(job["class"])) is not None:
                run.performing, run.counted_as = spec, spec.name
        return error

    def perform(self, run: JobRun, view: CurrentJob) -> Coroutine[Any, Any, None]:
        """Runs a job as a coroutine, from the outer ring on. The payload alone decides what a
        failure leads to that comes before the job's own code."""
        if middleware.server.members:
            return self._perform_inside(run, view)
        return self._await(run, view)

    async def _perform_inside(self, run: JobRun, view: CurrentJob) -> None:
        """Runs a job inside of the middleware."""
        spec = self._prepared(run, view)
        with middleware.server.around(view.payload):
            try:
                await self._await(run, view, spec)
            except CancelledError as error:  # the middleware sees what it would in a thread
                raise outside_of_job(error, view.ending) from None

    def _prepared(self, run: JobRun, view: CurrentJob) -> JobSpec:
        job = view.payload
        spec = registry.lookup(job["class"])
        run.counted_as = self.counted_as(spec, job) if "wrapped" in job else spec.name
        job.setdefault("queue", run.unit.queue_name)
        if spec.is_iterable:
            view.cursors = self.cursors(run)
        return spec

    async def _await(self, run: JobRun, view: CurrentJob, spec: JobSpec | None = None) -> None:
        spec = spec or self._prepared(run, view)
        args = arguments_of(spec, view.payload)
        perform = spec.make(view)
        run.performing = spec
        run.returned = await perform(*args)
        run.performing = None

    # After the run

    def outcome(
        self, run: JobRun, error: BaseException | None, cut_short: CutShort
    ) -> BaseException | None:
        """What a run that has left its region has come to. ``error``: what it raised; None if it
        has ended well."""
        if cut_short == "stop" or (error and stopping() and caused_by_shutdown(error)):
            found: BaseException | None = Interrupted()
        elif cut_short:
            found = self._cancelled(run, error)
        else:
            found = error and (decision_in(error) or error)
        if is_job_fork():
            exit_job_fork(found)  # the job has forked, and this process is the copy
        if run.time_limit is not None:
            self._limits.end(run.time_limit, found)
        if found is not None:  # else ``done`` measures it
            run.elapsed = monotonic() - run.unit.taken
        return found

    def settle(self, run: JobRun, error: BaseException | None) -> None:
        """Ends a job whose run, or whose way to it, has come to ``error``."""
        if error is None:
            if run.marks is not None:
                run.note_returned()
            ends = self._fetcher if run.marks is None else self._settler
            run.elapsed = ends.done(run.unit)  # sent with the next fetch
            run.settled = True
            observers = self._observers
            for done in observers.done if run.marks is None else observers.done_marked:
                done(run)
        elif isinstance(error, Interrupted | LeaseLost):
            if run.unit.lost:
                self._fetcher.done(run.unit)  # else the stop returns it to its queue
            run.settled = True
            for interrupted in self._observers.interrupted:
                interrupted(run)
        elif isinstance(error, NotRun):
            self._put_elsewhere(run, error)
        elif isinstance(error, IterationStopped):
            self._go_on(run, error)
        elif isinstance(error, Snooze | Discard | Asleep | Cancelled):
            self._obey(run, error)
        elif isinstance(error, UnknownJob) and self._is_elsewhere(run):
            self._put_elsewhere(run, NeedsNewer())
        else:
            self._fail(run, error)

    def _is_elsewhere(self, run: JobRun) -> bool:
        """Whether another process has the job that is not known here: during a deploy it waits for
        that one, for a day at most. An error of the job's own code says nothing of its class."""
        if run.performing is not None or run.job is None or not waits_for_code(run.marks):
            return False
        return self._settler.elsewhere.has(run.job["class"])

    def _fail(self, run: JobRun, error: BaseException) -> None:
        decision = decide(run.unit, run.performing, error, run.add_problem)
        run.note_failed(error)
        leases, until = self._leases, _until(decision)
        if registry.error_handlers or registry.death_handlers:
            # They may be slow: no job is fetched for this processor.
            leases.occupy(run.consumer, on=True)
        try:
            if isinstance(decision, Retry):
                self._settler.retry(run.unit, decision, until=until)
            elif isinstance(decision, Bury):
                self._settler.bury(run.unit, decision, until=until)
            elif isinstance(decision, End):
                self._settler.end(run.unit, decision, until=until)
            else:
                self._settler.drop(run.unit, until=until)
            run.settled = True
            for failed in self._observers.failed:
                failed(run, error, decision)
            if not run.unit.lost:  # else another process has the job
                self._call_death_handlers(decision, error)
        finally:
            leases.occupy(run.consumer, on=False)

    def _obey(self, run: JobRun, said: Said) -> None:
        """Does what the job has said of itself."""
        decision = obey(run.unit, said)
        if isinstance(decision, SnoozedTooLong):
            self._fail(run, decision)
            return
        if isinstance(said, Discard):
            run.note_failed(said)
        if isinstance(decision, Snoozed):
            self._settler.retry(run.unit, decision, until="queued")
        else:
            self._settler.end(run.unit, decision, until="queued")
        run.settled = True
        for decided in self._observers.decided:
            decided(run, said, decision)

    def _go_on(self, run: JobRun, stopped: IterationStopped) -> None:
        """Returns an iterable job to its queue, with its cursor."""
        decision = go_on(run.unit, stopped)
        self._settler.return_to_queue(run.unit, decision)
        run.settled = True
        for went_on in self._observers.went_on:
            went_on(run, decision)

    def _cancelled(self, run: JobRun, error: BaseException | None) -> BaseException | None:
        """What a job has raised that was cancelled while it ran: Cancelled, unless it has failed
        for another reason. None if it has ended well."""
        if error is None:
            self._limits.note_done(run)
            return None
        return cancelled_in(error) or decision_in(error) or error

    def _put_elsewhere(self, run: JobRun, why: NotRun) -> None:
        """Sends a job elsewhere that is not performed here. Nothing of it counts."""
        unit = run.unit
        if isinstance(why, NeedsNewer | IsPaused):
            later = put_off(unit, why.pause) if isinstance(why, IsPaused) else postpone(unit)
            self._settler.retry(unit, later, until="queued")
            for postponed in self._observers.postponed:
                postponed(run)
        elif isinstance(why, EndsUnrun):
            name, jid = name_of(run.job or {}), str(run.jid or "")
            decision = End(why.outcome, name, unrun=True, jid=jid, is_counted=why.is_counted)
            self._settler.end(unit, decision, until="queued")
            for ended in self._observers.ended:
                ended(run, why.outcome)
        elif isinstance(why, Unasked) or (isinstance(why, Unread) and self._role != "ordinary"):
            self._settler.return_to_queue(unit)  # elsewhere, or later, Redis may answer
            self.pause(run.consumer, _UNREAD_PAUSE)
        elif isinstance(why, MustRunSole):
            self._settler.isolate(unit, last=True)
            for returned in self._observers.returned:
                returned(run)
            self.pause(run.consumer, _SOLE_PAUSE)
        else:
            held = why.held if isinstance(why, MustRunAlone) else ""
            self._settler.isolate(unit, held, until="queued")
        run.settled = True

    def _wait(self, consumer: object, seconds: float) -> None:
        """Waits, and lets no other job begin in the place of this one."""
        self._leases.occupy(consumer, on=True)
        time.sleep(seconds)
        self._leases.occupy(consumer, on=False)

    def last_resort(self, run: JobRun, error: BaseException) -> None:
        """Settles a job whose way was ended early by an error in forkq, or by a late exception of
        the app's. It is a failure, by its payload alone; of the error only its class is used."""
        self._leases.occupy(run.consumer, on=False)
        leave_job()
        if is_job_fork():
            exit_job_fork(error)
        if run.time_limit is not None:
            self._limits.end(run.time_limit, error)
        if isinstance(error, MemoryError) and not run.settled:
            self._out_of_memory(run, error)
            return
        if not run.settled:
            run.performing = None
            run.elapsed = monotonic() - run.unit.taken
            self._fail(run, Unsettled(f"forkq could not settle this job: {type(error).__name__}"))
        self._log_problem(error, "forkq failed while it processed a job")

    def _out_of_memory(self, run: JobRun, error: MemoryError) -> None:
        """Sends a job to a solo child, which has more memory left, when this process lacks the
        memory to read or to settle it. A solo child that fails, too, dies of it, which counts:
        three such deaths bury the job."""
        if self._role != "ordinary":
            self._log_problem(error, "no memory for a job that runs alone; this child ends")
            exit_process(OUT_OF_MEMORY)
        run.settled = True
        run.unit.payload = b""
        self._settler.isolate(run.unit)
        self._log_problem(error, "no memory for a job; it runs alone")

    def _call_death_handlers(self, decision: Decision, error: BaseException) -> None:
        if not isinstance(decision, Bury | Drop) or decision.job is None:
            return
        for handler in registry.death_handlers:
            try:
                registry.call_hook(handler, decision.job, error)
            except BaseException as bad:  # noqa: BLE001 - the app's own code, SystemExit too
                self._log_problem(bad, "a death handler failed")


def _until(decision: Decision) -> Until:
    """How far the end of a failed job must have come before the app's handlers run: death handlers
    run once Redis confirms the burial. Other handlers may take their time, and the end must not
    wait for them here."""
    if registry.death_handlers and isinstance(decision, Bury) and decision.job is not None:
        return "told"
    return "sent" if registry.error_handlers or registry.death_handlers else "queued"


def _count_from_zero(job: Payload) -> None:
    """Sidekiq's "retry now" counts down before it enqueues, even from 0. The unit's payload keeps
    its -1, so this run costs no retry. The job itself sees 0."""
    count = job["retry_count"]
    if type(count) is int and count < 0:
        job["retry_count"] = 0
