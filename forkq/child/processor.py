"""One processor: a thread that takes one job after the other, and the way of each.

A job's way is ``process``: load, perform, settle. What ``perform`` raised is a value from
``_perform`` on; the app's hooks and handlers, which run after it, are each fenced where they are
called.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

from .. import middleware, registry
from ..current_job import begin, end
from ..errors import InvalidJob, MalformedPayload, Shutdown, Unsettled
from ..process_state import stopping
from ..registry import JobSpec
from ..runtime.assignment import exit_job_fork, is_job_fork
from ..wire.lease import UnitOfWork
from ..wire.payload import Payload, legible, loads
from ..wire.times import now
from .failure.retry import Bury, Decision, Drop, Retry, caused_by_shutdown, decide
from .failure.settle import Settler
from .fetch.fetch_turn import Hand
from .fetch.fetcher import Fetcher
from .heartbeat.stats import Tally
from .interrupt import InterruptRegion
from .job_log import About, JobLog, about

# Bounds of the classes that payloads may name for the metrics: characters, and how many.
_LONGEST_NAME: Final = 200
_MOST_NAMES: Final = 1000

# Told of a job with notes of ours: the job, what became of it, the seconds that it took.
Outcome: TypeAlias = Literal["done", "retry", "dead", "dropped"]
OnEnd: TypeAlias = Callable[[Payload, Outcome, float], None]

_OUTCOMES: Final[dict[type[Decision], Outcome]] = {Retry: "retry", Bury: "dead", Drop: "dropped"}


class Interrupted(Exception):
    """The outcome of a job that the stop cut short. Its lease stays, and goes back to its queue."""


class Processor:
    """Takes units from the fetcher until the child is quiet."""

    def __init__(
        self,
        name: str,
        fetcher: Fetcher,
        settler: Settler,
        job_log: JobLog,
        on_end: OnEnd = lambda job, outcome, elapsed: None,
    ) -> None:
        self.tally = Tally()
        self.region = InterruptRegion()
        self._fetcher = fetcher
        self._settler = settler
        self._job_log = job_log
        self._on_end = on_end
        self._name = ""  # of the job at hand, if it is registered
        self._local: JobSpec | None = None
        self._gate = threading.Event()
        self._settled = False  # the unit at hand
        self.hand = Hand()
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
        """One job after the other."""
        self._gate.wait()
        try:
            while self._take_one():
                pass
        except BaseException as error:  # noqa: BLE001 - a stray one of the app's; we are replaced
            self._job_log.complain(error, "a processor ends: an exception struck outside of a job")

    def _take_one(self) -> bool:
        """Whether there may be another one after it."""
        try:
            unit = self._fetcher.take(self.hand)
            if unit is not None:
                self.process(unit)
        except Shutdown:
            # Python 3.10 can deliver it between two lines of ours. The lease stands: requeued.
            self.region.leave()
            return True
        return unit is not None

    def process(self, unit: UnitOfWork) -> None:
        """One job's way through this child. Whatever goes wrong on it, the job is settled: one that
        only went back to its queue would do the same again, for ever."""
        self._settled, self._name = False, ""
        try:
            unit.begin(threading.get_ident(), now())
            self._process(unit)
        except Shutdown:
            raise
        except BaseException as error:  # noqa: BLE001 - the last resort
            self.region.leave()
            end()
            self._last_resort(unit, error)

    def _process(self, unit: UnitOfWork) -> None:
        try:
            job = loads(unit.payload)
        except MalformedPayload as malformed:
            self._bury_verbatim(unit, malformed)
            return
        if "retry_count" in job:
            _count_from_zero(job)
        told = about(job)  # middleware may change the job
        self._job_log.started(told)
        error = self._perform(unit, job)
        if is_job_fork():
            exit_job_fork(error)  # the job forked, and this is not the child
        if error is None:
            self.tally.done(self._name, self._fetcher.acknowledge(unit))
            self._settled = True
            self._job_log.done(told, unit)
            self._tell_end(unit, told, "done")
        elif isinstance(error, Interrupted):
            self._settled = True
            self._job_log.interrupted(told, unit)
        else:
            self._fail(unit, told, job, error)

    def _perform(self, unit: UnitOfWork, job: Payload) -> BaseException | None:
        """Runs the job inside the region. Returns what it raised, Interrupted, or None."""
        error: BaseException | None = None
        try:
            self.region.enter()
            self._run(unit, job)
        except BaseException as raised:  # noqa: BLE001 - SystemExit must not end a processor
            error = raised
        try:
            interrupted = self.region.leave()
        except Shutdown:  # raised at the call itself; there is never a second one
            interrupted = self.region.leave()
        end()
        if interrupted or (error is not None and stopping() and caused_by_shutdown(error)):
            return Interrupted()
        return error

    def _run(self, unit: UnitOfWork, job: Payload) -> None:
        """The global ring: the job's name, its arguments, the middleware around it."""
        self._name, self._local = "", None
        spec = registry.lookup(job["class"])
        self._name = self._counted_as(spec, job) if "wrapped" in job else spec.name
        job.setdefault("queue", unit.queue_name)
        if len(middleware.server):
            middleware.server.run(job, lambda: self._call(spec, unit, job))
        else:
            self._call(spec, unit, job)

    def _counted_as(self, spec: JobSpec, job: Payload) -> str:
        """The name for the metrics: that of the class which ActiveJob, say, has wrapped. A payload
        could bring names without end; then the wrapper's own counts."""
        name, known = job["wrapped"], self.tally.classes
        fits = type(name) is str and 0 < len(name) <= _LONGEST_NAME
        return name if fits and (name in known or len(known) < _MOST_NAMES) else spec.name

    def _call(self, spec: JobSpec, unit: UnitOfWork, job: Payload) -> None:
        """The local ring: the job's own code, whose failures its own hooks judge."""
        args = _arguments(spec, job)
        perform = spec.make(begin(job, unit))
        self._local = spec
        perform(*args)
        self._local = None

    def _fail(self, unit: UnitOfWork, told: About, job: Payload, error: BaseException) -> None:
        """Decides and settles; only then it talks, which is where the app's handlers run."""
        complaints: list[tuple[BaseException, str]] = []
        decision = decide(unit, self._local, error, lambda *what: complaints.append(what))
        self._settle(unit, decision)
        for what in complaints:
            self._job_log.complain(*what)
        self._job_log.failed(told, job, unit, error, decision)
        self._tell_end(unit, told, _OUTCOMES[type(decision)])
        self._call_death_handlers(decision, error)

    def _bury_verbatim(self, unit: UnitOfWork, error: MalformedPayload) -> None:
        self._name = ""
        self._settle(unit, Bury(legible(unit.payload, unit.queue_name, error), None))
        self._job_log.malformed(unit, error)

    def _settle(self, unit: UnitOfWork, decision: Decision) -> None:
        self.tally.lost(self._name)
        self._settler.settle(unit, decision)
        self._settled = True

    def _last_resort(self, unit: UnitOfWork, error: BaseException) -> None:
        """The way of a job broke off, by an error of ours or a stray exception of the app's. It
        counts as a failure by the payload alone, and of the error only its class is trusted."""
        if is_job_fork():
            exit_job_fork(error)
        if not self._settled:
            reason = Unsettled(f"forkq could not settle this job: {type(error).__name__}")
            self._settle(unit, decide(unit, None, reason, lambda *_: None))
        self._job_log.complain(error, "forkq failed in the midst of a job")

    def _tell_end(self, unit: UnitOfWork, told: About, outcome: Outcome) -> None:
        """A job with notes of ours may be a periodic one, whose run is over."""
        if "forkq" in told and not unit.lost:  # else its entry waits for the run elsewhere
            self._on_end(told, outcome, time.monotonic() - unit.taken)

    def _call_death_handlers(self, decision: Decision, error: BaseException) -> None:
        if not isinstance(decision, Bury | Drop) or decision.job is None:
            return
        for handler in registry.death_handlers:
            try:
                handler(decision.job, error)
            except BaseException as bad:  # noqa: BLE001 - the app's own code, SystemExit too
                self._job_log.complain(bad, "a death handler failed")


def _count_from_zero(job: Payload) -> None:
    """Ruby's "retry now" counts down before it enqueues, from 0 too. The payload keeps its -1, so
    that this run costs no retry; the job need not see it."""
    count = job["retry_count"]
    if type(count) is int and count < 0:
        job["retry_count"] = 0


def _arguments(spec: JobSpec, job: Payload) -> list[Any]:
    """The job's arguments. Raises InvalidJob if ``perform`` cannot be called with them."""
    args = job.get("args")
    if args is None:
        return []
    if type(args) is not list:
        raise InvalidJob(f"`args` is a JSON {type(args).__name__}, not an array")
    fewest, most = spec.arity
    if not fewest <= len(args) <= most:
        takes = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        raise InvalidJob(f"{spec.name} takes {takes} arguments, the payload has {len(args)}")
    return args
