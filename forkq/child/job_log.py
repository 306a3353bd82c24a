"""What a child logs about its jobs, and the app's error handlers. Never the arguments.

One line for each job that is done, and one for each run that failed. Each has the same values in
the formats for machines, and a sentence for the console.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from time import localtime, strftime, time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from .. import registry
from ..errors import Asleep, MalformedPayload, Snooze
from ..features.marked import EndOutcome
from ..logs import attempt_of
from ..runtime.done_lines import DoneValues
from ..runtime.log import LogOnce
from ..runtime.log_console import SENTENCE
from ..units import format_duration
from ..wire.lease import UnitOfWork
from ..wire.marks import is_paused, needs_newer
from ..wire.payload import Payload, loads
from ..wire.printable import class_name, message, shown_name, with_message
from ..wire.times import now, seconds
from .failure.retry import Bury, Decision, End, GoOn, Retry, Sleeps, Snoozed, tries
from .job_run import JobRun
from .observers import JobObserver, Said

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_WENT_ON: Final = {
    "head": "stopped between two items; goes back to the head of its queue",
    "tail": "ran for its max_runtime; goes on from the tail of its queue",
}
_INTERRUPTED: Final = "interrupted by the stop; goes back to the head of its queue"
_LOST: Final = "interrupted, since another host has the job"
_NEEDS_NEWER: Final = (
    "the job needs a newer forkq; it waits in the schedule, and a child that can run it gets it"
)
_NEEDS_NEWER_CODE: Final = (
    "the job needs newer code than this child has; it waits in the schedule, and a child that has "
    "it gets it"
)
_LONGEST_ERROR: Final = 1000
_UNUSED_STEPS: Final = (
    "the job is done, and has not come to steps that an earlier run has done: the code no longer "
    "has them, or has them under another name"
)
_MOST_STEPS: Final = 10

WriteDone: TypeAlias = Callable[[DoneValues], None]


def make_job_log(log: FilteringBoundLogger, write_done: WriteDone, done_every: int = 1) -> JobLog:
    """The job log of a child. The line that every job writes costs nothing when INFO is off.
    ``done_every``: each how many-th job of a class has that line; at DEBUG all have."""
    if log.is_enabled_for(logging.DEBUG):
        return DebugJobLog(log, write_done)
    if done_every > 1 and log.is_enabled_for(logging.INFO):
        return SampledJobLog(log, write_done, done_every)
    return VerboseJobLog(log, write_done) if log.is_enabled_for(logging.INFO) else JobLog(log)


class JobLog(JobObserver):
    """Logs what went wrong."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._log_once = LogOnce(log)

    def postponed(self, run: JobRun) -> None:
        """Logs one line for all jobs that a newer forkq must run: there may be many, and they come
        again. Who has paused a batch knows it."""
        if not needs_newer(run.marks):
            if not is_paused(run.marks):
                self._log_once.warning(run.shown_class, _NEEDS_NEWER_CODE, **_values(run))
            return
        version = run.marks.get("v") if type(run.marks) is dict else None
        self._log_once.warning("newer", _NEEDS_NEWER, **_values(run), v=version)

    def ended(self, run: JobRun, outcome: EndOutcome) -> None:
        """Logs that the job was not run, and why."""
        self._log.info(outcome, **_values(run), **{SENTENCE: f"{outcome}: not run"})

    def decided(self, run: JobRun, said: Said, decision: Snoozed | End) -> None:
        """Logs what the job has said, and what became of it."""
        values = {**_values(run), "elapsed": round(run.elapsed, 3)}
        if isinstance(decision, Sleeps):
            self._log.info("asleep", **values, **_pause(decision))
            return
        if isinstance(decision, Snoozed):
            again = format_duration(decision.at - now())
            self._log.info("snoozed", **values, again_in=again, **{SENTENCE: f"again in {again}"})
            return
        reason = message(said, _LONGEST_ERROR)
        if isinstance(said, Snooze):
            reason = f"a snooze of {reason} would end beyond its expiry"
        if isinstance(said, Asleep):
            reason = "it would sleep, or wait, beyond its expiry"
        self._log.info(decision.outcome, **values, reason=reason, **{SENTENCE: reason})

    def went_on(self, run: JobRun, decision: GoOn) -> None:
        """Logs that an iterable job is in its queue again. Its cursor may have what is secret."""
        elapsed, text = round(run.elapsed, 3), _WENT_ON["tail" if decision.at_tail else "head"]
        sentence = f"{text} (ran {format_duration(run.elapsed)})"
        self._log.info(text, **_values(run), elapsed=elapsed, **{SENTENCE: sentence})

    def interrupted(self, run: JobRun) -> None:
        values = {**_values(run), "elapsed": round(run.elapsed, 3)}
        event = _LOST if run.unit.lost else _INTERRUPTED
        text = f"{event} (ran {format_duration(run.elapsed)})"
        self._log.warning(event, **values, **{SENTENCE: text})

    def failed(self, run: JobRun, error: BaseException, decision: Decision) -> None:
        """Logs the failure and calls the app's error handlers."""
        for problem in run.problems:
            self.log_problem(*problem)
        if run.job is None and isinstance(error, MalformedPayload):
            self._malformed(run, error)
            return
        self._log.warning("failed", **_failure(run, error, decision), exc_info=error)
        outcome = _outcome(decision)
        context = {"context": "a job failed", "job": run.job or {}, "outcome": outcome}
        self._call_error_handlers(error, context)

    def log_problem(self, error: BaseException, meaning: str) -> None:
        """The app's own hook or handler failed; ``meaning`` says what that changes."""
        self._log.error(meaning, exc_info=error)
        self._call_error_handlers(error, {"context": meaning})

    def _malformed(self, run: JobRun, error: MalformedPayload) -> None:
        queue = run.unit.queue_name
        kind, text = class_name(type(error)), str(error)
        self._log.error("malformed payload, buried", queue=queue, error_class=kind, error=text)
        self._call_error_handlers(error, {"context": "malformed payload", "queue": queue})

    def _call_error_handlers(self, error: BaseException, context: dict[str, Any]) -> None:
        for handler in registry.error_handlers:
            try:
                registry.call_hook(handler, error, context)
            except BaseException as bad:  # noqa: BLE001 - the app's own code, SystemExit too
                self._log.error("an error handler failed", exc_info=bad)


class StepsLog(JobObserver):
    """Tells of the steps that a job remembers, and that its code no longer has."""

    only_marked = True

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log

    def done(self, run: JobRun) -> None:
        """Logs the steps to which the run has not come."""
        find = getattr(run, "unused_steps", None)
        if find is not None and (unused := find()):
            names = ", ".join(shown_name(name) for name in unused[:_MOST_STEPS])
            self._log.warning(_UNUSED_STEPS, **_values(run), steps=names)


class VerboseJobLog(JobLog):
    """Logs each job that is done, too."""

    def __init__(self, log: FilteringBoundLogger, write_done: WriteDone) -> None:
        super().__init__(log)
        self._write_done = write_done

    def done(self, run: JobRun) -> None:
        unit, job = run.unit, run.job or {}
        attempt = attempt_of(job["retry_count"]) if "retry_count" in job else 1
        waited = _waited(unit, job)
        self._write_done(
            (time(), run.shown_class, run.jid, unit.queue_name, attempt, waited, run.elapsed)
        )


class SampledJobLog(VerboseJobLog):
    """Logs the first job of each class that is done, and then each ``every``-th."""

    def __init__(self, log: FilteringBoundLogger, write_done: WriteDone, every: int) -> None:
        super().__init__(log, write_done)
        self._every = every
        self._done: Counter[str] = Counter()

    def done(self, run: JobRun) -> None:
        number = self._done[run.counted_as]
        self._done[run.counted_as] = number + 1
        if number % self._every == 0:
            super().done(run)


class DebugJobLog(VerboseJobLog):
    """Logs each job's beginning, too."""

    def started(self, run: JobRun) -> None:
        self._log.debug("start", **_values(run))


def _waited(unit: UnitOfWork, job: Payload) -> float | None:
    """Seconds from the push to the start of this run; None if the payload does not say."""
    since = job.get("enqueued_at")
    if type(since) is not float:
        if type(since) is not int:
            return None
        since = seconds(since)
    waited = unit.started - since
    return waited if waited > 0 else 0.0


def _values(run: JobRun) -> dict[str, Any]:
    """The values of a line about a job."""
    job = run.job or {}
    waited = _waited(run.unit, job)
    return {
        "class": run.shown_class,
        "jid": run.jid,
        "queue": run.unit.queue_name,
        "attempt": attempt_of(job.get("retry_count")),
        **({} if waited is None else {"waited": round(waited, 3)}),
    }


def _pause(decision: Sleeps) -> dict[str, Any]:
    """The values of the line of a job that sleeps, or waits for a signal."""
    lasts = format_duration(decision.at - now())
    step, waits = shown_name(decision.pause.name), decision.pause.event
    said = f"waits for a signal, for {lasts} at most" if waits else f"again in {lasts}"
    return {"step": step, "again_in": lasts, SENTENCE: f'at the step "{step}": {said}'}


def _failure(run: JobRun, error: BaseException, decision: Decision) -> dict[str, Any]:
    """The values of the line of a failed run. The app may have changed ``run.job``: the attempt is
    read from the unit."""
    job = loads(run.unit.payload) if run.job is not None else {}
    attempt, most = attempt_of(job.get("retry_count")), tries(job, run.performing)
    outcome, then = _consequence(decision, gives_up=most is not None and attempt < most)
    kind, text = class_name(type(error)), message(error, _LONGEST_ERROR)
    of_most = f"attempt {attempt} of {most}" if most else f"attempt {attempt}"
    why, more = with_message(kind, text), f"({of_most}, {then}; jid {run.jid})"
    sentence = f"failed after {format_duration(run.elapsed)}: {why} {more}"
    return {
        **_values(run),
        "attempt": attempt,
        **({"attempts": most} if most else {}),
        "elapsed": round(run.elapsed, 3),
        "error_class": kind,
        "error": text,
        **outcome,
        SENTENCE: sentence,
    }


def _outcome(decision: Decision) -> str:
    """The outcome of the job, for error handlers."""
    if isinstance(decision, Retry):
        return "retried"
    if isinstance(decision, Bury):
        return "dead"
    if isinstance(decision, End):
        return decision.outcome
    return "dropped" if decision.job is not None else "discarded"


def _consequence(decision: Decision, *, gives_up: bool) -> tuple[dict[str, Any], str]:
    """What follows from the failure, for machines and in words. ``gives_up``: the job had attempts
    left."""
    if isinstance(decision, Retry):
        wait = round(decision.at - now(), 1)
        at = strftime("%H:%M:%S", localtime(time() + wait))
        return {"retry_in": wait}, f"again in {format_duration(wait)}, at {at}"
    if isinstance(decision, End):
        return {"outcome": decision.outcome}, f"a retry would be too late: {decision.outcome}"
    outcome = "dead" if isinstance(decision, Bury) else "dropped"
    return {"outcome": outcome}, f"{'given up' if gives_up else 'no more attempts'}: {outcome}"
