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
from ..errors import InvalidJob, MalformedPayload, Shutdown
from ..lease import Unit
from ..payload import Job, legible, loads
from ..post import end_copy, is_a_copy
from ..registry import JobSpec
from ..running import begin, end
from ..standing import stopping
from ..times import now
from .fetcher import Fetcher
from .region import Region
from .reporter import Reporter
from .retry import Bury, Decision, Drop, Retry, caused_by_shutdown, decide
from .settle import Settler
from .stats import Tally

# Bounds of the classes that payloads may name for the metrics: characters, and how many.
_LONGEST_NAME: Final = 200
_MOST_NAMES: Final = 1000

# Told of a job with notes of ours: the job, what became of it, the seconds that it took.
Outcome: TypeAlias = Literal["done", "retry", "dead", "dropped"]
OnEnd: TypeAlias = Callable[[Job, Outcome, float], None]

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
        reporter: Reporter,
        on_end: OnEnd = lambda job, outcome, elapsed: None,
    ) -> None:
        self.tally = Tally()
        self.region = Region()
        self._fetcher = fetcher
        self._settler = settler
        self._reporter = reporter
        self._on_end = on_end
        self._name = ""  # of the job at hand, if it is registered
        self._local: JobSpec | None = None
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
    def ident(self) -> int:
        """The thread's identifier, as in ``Unit.thread``."""
        return self._thread.ident or 0

    def run(self) -> None:
        """One job after the other."""
        self._gate.wait()
        while (unit := self._fetcher.take()) is not None:
            try:
                self.process(unit)
            except Shutdown:
                # Python 3.10 can deliver it between two lines of ours. The lease stands: requeued.
                self.region.leave()

    def process(self, unit: Unit) -> None:
        """One job's way through this child."""
        unit.begin(threading.get_ident(), now())
        try:
            job = loads(unit.payload)
        except MalformedPayload as malformed:
            self._bury_verbatim(unit, malformed)
            return
        if "retry_count" in job:
            _count_from_zero(job)
        self._reporter.started(job)
        error = self._perform(unit, job)
        if is_a_copy():
            end_copy(error)  # the job forked, and this is not the child
        if error is None:
            self.tally.done(self._name, self._fetcher.acknowledge(unit))
            self._reporter.done(job, unit)
            if "forkq" in job:
                self._tell_end(unit, job, "done")
        elif isinstance(error, Interrupted):
            self._reporter.interrupted(job, unit)
        else:
            self._fail(unit, job, error)

    def _perform(self, unit: Unit, job: Job) -> BaseException | None:
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

    def _run(self, unit: Unit, job: Job) -> None:
        """The global ring: the job's name, its arguments, the middleware around it."""
        self._name, self._local = "", None
        spec = registry.lookup(job["class"])
        self._name = self._counted_as(spec, job) if "wrapped" in job else spec.name
        job.setdefault("queue", unit.queue_name)
        if len(middleware.server):
            middleware.server.run(job, lambda: self._call(spec, unit, job))
        else:
            self._call(spec, unit, job)

    def _counted_as(self, spec: JobSpec, job: Job) -> str:
        """The name for the metrics: that of the class which ActiveJob, say, has wrapped. A payload
        could bring names without end; then the wrapper's own counts."""
        name, known = job["wrapped"], self.tally.classes
        fits = type(name) is str and 0 < len(name) <= _LONGEST_NAME
        return name if fits and (name in known or len(known) < _MOST_NAMES) else spec.name

    def _call(self, spec: JobSpec, unit: Unit, job: Job) -> None:
        """The local ring: the job's own code, whose failures its own hooks judge."""
        args = _arguments(spec, job)
        perform = spec.make(begin(job, unit))
        self._local = spec
        perform(*args)
        self._local = None

    def _fail(self, unit: Unit, job: Job, error: BaseException) -> None:
        self.tally.lost(self._name)
        decision = decide(unit, self._local, error, self._reporter.complain)
        self._reporter.failed(job, unit, error, decision)
        self._settler.settle(unit, decision)
        if "forkq" in job:
            self._tell_end(unit, job, _OUTCOMES[type(decision)])
        self._mourn(decision, error)

    def _bury_verbatim(self, unit: Unit, error: MalformedPayload) -> None:
        self.tally.lost("")
        self._reporter.malformed(unit, error)
        self._settler.settle(unit, Bury(legible(unit.payload, unit.queue_name, error), None))

    def _tell_end(self, unit: Unit, job: Job, outcome: Outcome) -> None:
        """A job with notes of ours may be a periodic one, whose run is over."""
        if not unit.lost:  # else its entry waits for the run elsewhere
            self._on_end(job, outcome, time.monotonic() - unit.taken)

    def _mourn(self, decision: Decision, error: BaseException) -> None:
        if not isinstance(decision, Bury | Drop) or decision.job is None:
            return
        for handler in registry.death_handlers:
            try:
                handler(decision.job, error)
            except BaseException as bad:  # noqa: BLE001 - the app's own code, SystemExit too
                self._reporter.complain(bad, "a death handler failed")


def _count_from_zero(job: Job) -> None:
    """Ruby's "retry now" counts down before it enqueues, from 0 too. The payload keeps its -1, so
    that this run costs no retry; the job need not see it."""
    count = job["retry_count"]
    if type(count) is int and count < 0:
        job["retry_count"] = 0


def _arguments(spec: JobSpec, job: Job) -> list[Any]:
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
