"""Each run of a job in this process, for what reports it: OpenTelemetry, Sentry, statsd.

An observer sees a run begin, puts a context around it, and is told how it has ended. A failed run
ends when its job is settled: then it is known whether the job is tried again. The hooks and
handlers that forkq calls in between run in the same context.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from time import perf_counter, time, time_ns
from typing import Any, Final, Literal, TypeAlias

import msgspec

from forkq import middleware, registry
from forkq.errors import (
    Asleep,
    Discard,
    IterationStopped,
    LeaseLost,
    Snooze,
    cancelled_in,
    caused_by_shutdown,
    decision_in,
)
from forkq.logs import attempt_of
from forkq.process_state import stopping
from forkq.wire.payload import DEFAULT_QUEUE, Payload
from forkq.wire.times import now, seconds

Outcome: TypeAlias = Literal[
    "done",
    "retried",
    "dead",
    "dropped",
    "expired",
    "discarded",
    "snoozed",
    "cancelled",
    "interrupted",
]

_LONGEST_NAME: Final = 200
_log: Final = logging.getLogger(__name__)


class ObservedRun(msgspec.Struct, eq=False):
    """One run of a job.

    ``name``: its class, of an ActiveJob the wrapped one. ``attempt`` is 1 in the first run.
    ``began``: nanoseconds since the epoch. ``waited``: seconds from the push to the start; None if
    the payload does not say. ``elapsed``: seconds that the job has run. ``outcome`` is None until
    the run has ended: "done"; "retried" if the job failed and is tried again; "dead"; "dropped" if
    it has no more attempts and is not kept; "expired" if it failed and its retry would be too late;
    "discarded" if a rule of the app or the job itself said
    so; "snoozed" if it has asked to run later; "cancelled"; or "interrupted" if the stop returned
    it to its queue, or another host has got it. ``error``: what the job raised.
    ``kept``: what observers keep for this run.
    """

    job: Payload
    name: str
    jid: str
    queue: str
    attempt: int
    began: int
    waited: float | None
    elapsed: float = 0.0
    outcome: Outcome | None = None
    error: BaseException | None = None
    kept: dict[object, Any] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, job: Payload) -> ObservedRun:
        """A run of ``job`` that begins now."""
        return cls(
            job=job,
            name=name_of(job),
            jid=text(job.get("jid")),
            queue=text(job.get("queue")) or DEFAULT_QUEUE,
            attempt=attempt_of(job.get("retry_count")),
            began=time_ns(),
            waited=_waited(job.get("enqueued_at")),
        )

    @property
    def failed(self) -> bool:
        """Whether it has failed. A job that was discarded has not: the app has a rule for it."""
        return self.outcome in ("retried", "dead", "dropped", "expired")

    @property
    def is_over(self) -> bool:
        """Whether the job's attempt has ended: one that was interrupted or snoozes goes on later,
        as the same attempt."""
        return self.outcome not in ("interrupted", "snoozed")

    @property
    def counted_as(self) -> str:
        """The outcome by which ``forkq_jobs`` counts the run: there it is dropped if it failed and
        a rule of the app discards it."""
        by_rule = self.outcome == "discarded" and (
            self.error is None or decision_in(self.error) is None
        )
        return "dropped" if by_rule else self.outcome or ""


class RunObserver:
    """An observer of runs. It is called in the thread of each run; what it raises changes nothing,
    and its first error is logged."""

    def began(self, run: ObservedRun) -> None:
        """The job is about to run."""

    def inside(self, run: ObservedRun) -> AbstractContextManager[object]:
        """A context for the job, and for each hook and handler that is called after a failure."""
        return nullcontext()

    def ended(self, run: ObservedRun) -> None:
        """The run has ended, and ``run.outcome`` is known. Called once for each run."""


def observe(observer: RunObserver) -> None:
    """Makes ``observer`` hear of each run from now on, in place of another one of its type."""
    if _perform not in middleware.server.members:
        _observers.clear()
        _complained.clear()
        middleware.server.prepend(_perform)
        registry.around_hooks.append(_around_hook)
        registry.error_handlers.insert(0, _on_error)
    _observers[:] = [each for each in _observers if type(each) is not type(observer)]
    _observers.append(observer)


def name_of(job: Payload) -> str:
    """The class of a job; for an ActiveJob the wrapped one."""
    wrapped = job.get("wrapped")
    if type(wrapped) is str and 0 < len(wrapped) <= _LONGEST_NAME:
        return wrapped
    return text(job["class"])


def text(value: object) -> str:
    """A name or an id in a payload, cut: a collector refuses a large report, and all others that
    it is sent together with. "" for what is no text."""
    return value[:_LONGEST_NAME] if type(value) is str else ""


_observers: Final[list[RunObserver]] = []
# Those whose error is logged: a collector that is away must not fill the log with each job.
_complained: Final[set[RunObserver]] = set()
# The run of this thread: until the next one begins, since handlers of a death come last.
_current: Final[ContextVar[ObservedRun | None]] = ContextVar("forkq_run", default=None)


def _perform(job: Payload) -> Iterator[None]:
    """The middleware."""
    run = _begin(job)
    begun = perf_counter()
    try:
        with _inside(run):
            yield
    except BaseException as error:
        run.elapsed, run.error = perf_counter() - begun, error
        goes_on = isinstance(error, LeaseLost | IterationStopped)
        if goes_on or (stopping() and caused_by_shutdown(error)):
            _end(run, "interrupted")
        elif isinstance(said := decision_in(error), Snooze | Discard | Asleep):
            _end(run, said.outcome)
        elif cancelled_in(error):
            _end(run, "cancelled")
        raise
    run.elapsed = perf_counter() - begun
    _end(run, "done")
    _current.set(None)


def _begin(job: Payload) -> ObservedRun:
    before = _current.get()
    if before is not None and before.outcome is None:
        _end(before, "interrupted")  # no handler was told what became of it
    run = ObservedRun.of(job)
    _current.set(run)
    for observer in _observers:
        with _guarded(observer):
            observer.began(run)
    return run


def _end(run: ObservedRun, outcome: Outcome) -> None:
    run.outcome = outcome
    for observer in _observers:
        with _guarded(observer):
            observer.ended(run)
    run.error = None  # its traceback holds all that the job had


def _inside(run: ObservedRun) -> ExitStack:
    """Enters the contexts of all observers."""
    stack = ExitStack()
    for observer in _observers:
        with _guarded(observer):
            stack.enter_context(observer.inside(run))
    return stack


@contextmanager
def _guarded(observer: RunObserver) -> Iterator[None]:
    try:
        yield
    except Exception:  # noqa: BLE001 - telemetry must not fail a job
        if observer not in _complained:
            _complained.add(observer)
            _log.exception("%s failed; the jobs go on", type(observer).__qualname__)


def _around_hook() -> AbstractContextManager[object]:
    run = _current.get()
    return nullcontext() if run is None else _inside(run)


def _on_error(error: BaseException, context: registry.ErrorContext) -> None:
    """The error handler: it is the first that is told what becomes of a failed job."""
    job, run = context.get("job"), _current.get()
    if not job:
        if "queue" in context:  # a malformed payload: this thread's job before has no part in it
            _current.set(None)
        return
    if run is None or run.job is not job or run.outcome is not None:
        run = _begin(job)  # it was not performed: no such class, or it has crashed too often
    run.error = error
    _end(run, context["outcome"])


def _waited(stamp: object) -> float | None:
    if type(stamp) is not float and type(stamp) is not int:
        return None
    return max(0.0, now() - seconds(stamp))


def epoch_ns(stamp: object) -> int | None:
    """A time stamp of a payload, in nanoseconds; None if it is none of this century."""
    if type(stamp) is not float and type(stamp) is not int:
        return None
    since = seconds(stamp)
    return int(since * 1e9) if 0 < since < 2 * time() else None
