"""Decides whether a failed job is retried, buried or dropped: docs/wire.md, "Retry".

``decide`` calls the app's hooks and returns a value; the processor settles it. A hook gets a copy
of the job: what it changes there is not written.
"""

from __future__ import annotations

import base64
import random
import sys
import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeAlias, cast

import msgspec

from ...errors import (
    Asleep,
    Cancelled,
    Crashed,
    Dead,
    Discard,
    InvalidJob,
    IterationStopped,
    MalformedPayload,
    Snooze,
    SnoozedTooLong,
    UnknownVersion,
    shown,
)
from ...features.batch.pause import BatchPause
from ...features.effects import jid_of, name_of
from ...features.iterable.parts import Iteration, with_cursor
from ...features.marked import EndOutcome, outcome_at_start
from ...features.steps.parts import Pause, wait_no_more, waiting_for
from ...registry import DISCARD, KILL, JobSpec, call_hook
from ...wire import marks
from ...wire.lease import UnitOfWork
from ...wire.malformed import wrap_malformed
from ...wire.payload import Payload, dumps, loads
from ...wire.printable import class_name, frames, message
from ...wire.times import EXPONENTIAL, SPREAD, delay_of, is_backoff, now, seconds, stamp_failure

DEFAULT_RETRIES: Final = 25
_MESSAGE_LIMIT: Final = 10_000
# Of a larger payload the clock reads the two ends only (due_jobs.lua). In bytes.
_LARGE: Final = 256 << 10
# Seconds, spread so that many such jobs do not come back at once. A rolling deploy takes minutes.
_POSTPONED_FOR: Final = (15.0, 45.0)
_EARLIER: Final = (0.75, 1.0)
# Any integer may stand in a payload, but the delay that comes of it has to fit a float.
_TRIES_CEILING: Final = 10_000
_WINDOW_CEILING: Final = 1e9

# Called with an error in the app's own hook or payload, and a line on what it changes.
AddProblem: TypeAlias = Callable[[BaseException, str], None]


class Retry(msgspec.Struct, frozen=True):
    """Run it again at ``at``, epoch seconds."""

    at: float
    payload: bytes


class Postpone(Retry, frozen=True):
    """It was not run, and has not failed: it waits in the schedule until ``at``."""


class PutOff(Postpone, frozen=True):
    """It was not run, since its batch is paused."""


class Snoozed(Retry, frozen=True):
    """It has asked to run again at ``at``, and has not failed. ``name``: its class."""

    name: str


class Sleeps(Snoozed, frozen=True):
    """It sleeps until ``at``, or waits for a signal until then. ``pause``: what it remembers of
    that; ``jid``: its own."""

    pause: Pause
    jid: str


class Bury(msgspec.Struct, frozen=True):
    """Give it up, and keep it in the dead set. ``job`` is None if the payload is no job."""

    payload: bytes
    job: Payload | None


class Drop(msgspec.Struct, frozen=True):
    """Give it up without an entry in the dead set. ``job``: for the death handlers, or None if they
    are not called."""

    job: Payload | None


class End(msgspec.Struct, frozen=True):
    """It ends otherwise, by one of its features. ``name``: its class. ``unrun``: it was not run.
    ``jid``: of one that was cancelled. ``is_counted``: the statistics have this end already."""

    outcome: EndOutcome
    name: str
    unrun: bool = False
    jid: str = ""
    is_counted: bool = False


class GoOn(msgspec.Struct, frozen=True):
    """An iterable job has stopped between two items. It goes back to its queue, to its tail or to
    its head, and goes on from where it has come (``reached``; None: as Redis has it)."""

    payload: bytes
    reached: Iteration | None
    at_tail: bool
    jid: str


Decision: TypeAlias = "Retry | Bury | Drop | End"


def decide(
    unit: UnitOfWork, spec: JobSpec | None, error: BaseException, add_problem: AddProblem
) -> Decision:
    """The decision after ``error``. ``spec`` is given if the job's own ``perform`` raised it: then
    its hooks and options count (the inner ring), else the payload alone does (the outer ring)."""
    try:
        job = loads(unit.payload)
    except MalformedPayload as malformed:
        return Bury(wrap_malformed(unit.payload, unit.queue_name, malformed), None)
    marks.clear(job)
    if isinstance(error, Crashed):
        return _after_crashes(job, unit, error, add_problem)
    if isinstance(error, UnknownVersion):
        return _buried(job, unit, error, add_problem, has_run=False)
    if isinstance(error, Dead):
        return _buried(job, unit, error, add_problem, has_run=True)
    if spec is not None and isinstance(error, spec.discard_on):
        return Drop(None)
    limit = _limit(job, spec, add_problem)
    if limit is None:
        return Drop(job)
    count = _record(job, unit, error)
    is_final = spec is not None and spec.retry_on and not isinstance(error, spec.retry_on)
    if is_final or _exhausted(job, count, limit):
        return _give_up(job, unit, spec, error, add_problem)
    return _again(job, unit, spec, error, add_problem)


def _again(
    job: Payload,
    unit: UnitOfWork,
    spec: JobSpec | None,
    error: BaseException,
    add_problem: AddProblem,
) -> Decision:
    """It has attempts left: the hook may say otherwise."""
    count = int(job["retry_count"])
    verdict, delay = _delay(job, spec, count, error, add_problem)
    if verdict == DISCARD:
        return Drop(None)
    if verdict == KILL:
        return _give_up(job, unit, spec, error, add_problem)
    at = now() + delay
    outcome = outcome_at_start(marks.needs_in(job.get(marks.KEY)), at)
    if outcome is not None:  # a retry then would find it over
        return End(outcome, name_of(job))
    return _written(unit, job, lambda payload: Retry(at, payload), add_problem)


def obey(
    unit: UnitOfWork, said: Snooze | Discard | Asleep | Cancelled
) -> Snoozed | End | SnoozedTooLong:
    """The decision for a job that has said what becomes of it, or was cancelled; or its failure, if
    it has done nothing but snooze for a day."""
    job = loads(unit.payload)
    marks.forget_pause(job)
    if isinstance(said, Cancelled):
        return End("cancelled", name_of(job), jid=str(job.get("jid") or ""))
    if isinstance(said, Discard):
        return End("discarded", name_of(job))
    if isinstance(said, Asleep):
        return _fall_asleep(unit, job, said)
    noted = marks.marks_of(job)
    since, at = marks.snooze(noted), now() + said.seconds
    if since < now() - marks.SNOOZED_FOR:
        return SnoozedTooLong(
            f"it has done nothing but snooze for {marks.SNOOZED_FOR / 3600:.0f} hours, "
            f"{noted[marks.SNOOZED]['count']:,} times"
        )
    outcome = outcome_at_start(marks.needs_in(noted), at)
    if outcome is not None:
        return End(outcome, name_of(job))
    wait_no_more(marks.needs_in(noted))
    job["queue"] = unit.queue_name
    job[marks.KEY] = job.pop(marks.KEY)  # scripts look for it at the end
    return Snoozed(at, encoded(unit, job), name_of(job))


def _fall_asleep(unit: UnitOfWork, job: Payload, said: Asleep) -> Sleeps | End:
    """The decision for a job that sleeps, or waits for a signal. That ends a row of snoozes."""
    noted, pause = marks.marks_of(job), cast("Pause", said.pause)
    if outcome_at_start(marks.needs_in(noted), said.until):
        return End("expired", name_of(job))
    noted.pop(marks.SNOOZED, None)
    job["queue"] = unit.queue_name
    noted[marks.NEEDS] = waiting_for(marks.needs_in(noted), pause)
    job[marks.KEY] = job.pop(marks.KEY)  # scripts look for it at the end
    return Sleeps(said.until, encoded(unit, job), name_of(job), pause, jid_of(job))


def go_on(unit: UnitOfWork, stopped: IterationStopped) -> GoOn:
    """The decision for an iterable job that has stopped between two items."""
    job, reached = loads(unit.payload), cast("Iteration | None", stopped.reached)
    jid = jid_of(job)
    if reached is None:
        return GoOn(unit.payload, None, stopped.at_tail, jid)
    if stopped.at_tail:  # from now on it waits like any other job
        job["enqueued_at"] = now()
    return GoOn(encoded(unit, with_cursor(job)), reached, stopped.at_tail, jid)


def postpone(unit: UnitOfWork) -> Postpone:
    """The decision for a job that another child must run: it comes back to the queue that had it,
    and its payload says since when it is postponed."""
    job, payload = loads(unit.payload), unit.payload
    is_noted = marks.postponed_in(job.get(marks.KEY)) is not None
    if not is_noted or job.get("queue") != unit.queue_name:
        noted = marks.marks_of(job)
        noted[marks.POSTPONED] = noted[marks.POSTPONED] if is_noted else now()
        payload = encoded(unit, {**job, "queue": unit.queue_name})
    return Postpone(now() + random.uniform(*_POSTPONED_FOR), payload)


def put_off(unit: UnitOfWork, pause: BatchPause) -> PutOff:
    """The decision for a member of a paused batch: it comes back to the queue that had it, and its
    payload says why it was put off."""
    job, at = loads(unit.payload), now()
    noted = marks.marks_of(job)
    noted[marks.PAUSED] = pause.bid
    wait_no_more(marks.needs_in(noted))
    payload = encoded(unit, {**job, "queue": unit.queue_name})
    return PutOff(at + pause.lasts(at) * random.uniform(*_EARLIER), payload)


def waits_for_code(noted: Any) -> bool:
    """Whether a job with these marks may wait on for a process with newer code: it was not put back
    for that, or not yet for a day."""
    since = marks.postponed_in(noted)
    return since is None or since > now() - marks.POSTPONED_FOR


def postponed_too_long(noted: Any) -> UnknownVersion | None:
    """The error of a job with these marks that was postponed for a day; None before that."""
    if waits_for_code(noted):
        return None
    return UnknownVersion(
        f"it needs version {shown(noted['v'])} of forkq's payloads; no process that fetched it in "
        f"{marks.POSTPONED_FOR / 3600:.0f} hours has known that, and this one knows {marks.VERSION}"
    )


def _after_crashes(
    job: Payload, unit: UnitOfWork, error: BaseException, add_problem: AddProblem
) -> Decision:
    """The decision for a job that has killed too many processes: no retry, even if its ``retry``
    allows one."""
    if job.get("on_crash") == "discard":
        return Drop(None)
    return _buried(job, unit, error, add_problem, has_run=False)


def _buried(
    job: Payload, unit: UnitOfWork, error: BaseException, add_problem: AddProblem, *, has_run: bool
) -> Decision:
    """The decision for a job that no retry can help. One that has run has failed once more."""
    if job.get("dead") is False:
        return Drop(job)
    if has_run:
        _record(job, unit, error)
    else:
        _write_error(job, unit, error)
        stamp_failure(job)
    return _written(unit, job, lambda payload: Bury(payload, job), add_problem)


def _limit(job: Payload, spec: JobSpec | None, add_problem: AddProblem) -> int | None:
    """How often the job may be retried; None: never."""
    if job.get("retry") is None:
        job["retry"] = spec.options.get("retry", True) if spec else True
    retry = job["retry"]
    if retry is False:
        return None
    if retry is True:
        return DEFAULT_RETRIES
    if type(retry) is int:
        return retry
    add_problem(
        InvalidJob(f"retry is {retry!r}"), f"`retry` is no number; taken as {DEFAULT_RETRIES}"
    )
    return DEFAULT_RETRIES


def tries(job: Payload, spec: JobSpec | None) -> int | None:
    """How often a job is tried at most, its first run too; None if time limits it, not a number."""
    if job.get("retry_for"):
        return None
    limit = _limit(job, spec, lambda error, meaning: None)
    return 1 if limit is None else limit + 1


def _record(job: Payload, unit: UnitOfWork, error: BaseException) -> int:
    """Writes the failure into the job; returns its retry count, 0 at the first failure."""
    _write_error(job, unit, error)
    elsewhere = job.get("retry_queue")
    if elsewhere and type(elsewhere) is str:
        job["queue"] = elsewhere
    count = job.get("retry_count")
    job["retry_count"] = max(0, count + 1) if type(count) is int else 0
    stamp_failure(job, again=type(count) is int)
    if job.get("backtrace"):
        job["error_backtrace"] = _backtrace(error, job["backtrace"])
    return int(job["retry_count"])


def _write_error(job: Payload, unit: UnitOfWork, error: BaseException) -> None:
    job["queue"] = unit.queue_name
    job["error_message"] = message(error, _MESSAGE_LIMIT)
    job["error_class"] = class_name(type(error))


def _delay(
    job: Payload, spec: JobSpec | None, count: int, error: BaseException, add_problem: AddProblem
) -> tuple[str, float]:
    """The verdict of the job's hook, DISCARD or KILL; or "" and the seconds to wait."""
    wanted: Any = None
    if spec is not None and spec.retry_in is not None:
        try:
            wanted = call_hook(spec.retry_in, count, error, _copy(job))
        except BaseException as bad:  # noqa: BLE001 - the app's own code, SystemExit too
            add_problem(bad, "retry_in failed; the default delay is used")
    if isinstance(wanted, str) and wanted in (DISCARD, KILL):
        return str(wanted), 0.0
    if isinstance(wanted, timedelta) and wanted > timedelta():
        return "", wanted.total_seconds()
    tries = min(count, _TRIES_CEILING)
    usable = type(wanted) in (int, float) and 0 < wanted <= sys.float_info.max
    if wanted is not None and not usable:
        odd = InvalidJob(f"retry_in returned {_value_text(wanted)}")
        add_problem(odd, "retry_in returned no positive delay; the default delay is used")
    if not usable and "backoff" in job:
        if is_backoff(job["backoff"]):
            spread = SPREAD if job["backoff"] == EXPONENTIAL else 1.0
            return "", delay_of(job["backoff"], tries) * random.uniform(1.0, spread)
        add_problem(
            InvalidJob(f"backoff is {_value_text(job['backoff'])}"), "the default delay is used"
        )
    base = float(wanted) if usable else tries**4 + 15.0
    return "", base + random.uniform(0, 10 * (tries + 1))


def _copy(job: Payload) -> Payload:
    return loads(dumps(job))


def _value_text(value: Any) -> str:
    try:
        return repr(value)[:100]
    except BaseException:  # noqa: BLE001 - the app's own code
        return f"a {type(value).__name__}"


def _exhausted(job: Payload, count: int, limit: int) -> bool:
    window: Any = job.get("retry_for")
    if type(window) not in (int, float) or window <= 0:
        return count >= limit
    failed_at = job.get("failed_at")
    first = seconds(failed_at) if type(failed_at) in (int, float) else now()  # type: ignore[arg-type]
    return bool(first + min(window, _WINDOW_CEILING) < now())


def _give_up(
    job: Payload,
    unit: UnitOfWork,
    spec: JobSpec | None,
    error: BaseException,
    add_problem: AddProblem,
) -> Decision:
    if spec is not None and spec.retries_exhausted is not None:
        try:
            if call_hook(spec.retries_exhausted, _copy(job), error) == DISCARD:
                return Drop(None)
        except BaseException as bad:  # noqa: BLE001 - the app's own code, SystemExit too
            add_problem(bad, "retries_exhausted failed; the job is buried all the same")
    if job.get("dead") is False:
        return Drop(job)
    return _written(unit, job, lambda payload: Bury(payload, job), add_problem)


def _written(
    unit: UnitOfWork, job: Payload, outcome: Callable[[bytes], Decision], add_problem: AddProblem
) -> Decision:
    """The decision ``outcome`` with the job as JSON. A job that cannot be written as JSON is buried
    as it came."""
    try:
        if marks.KEY in job:  # scripts look for it at the end
            job[marks.KEY] = job.pop(marks.KEY)
        return outcome(encoded(unit, job))
    except InvalidJob as bad:
        add_problem(bad, "the job cannot be written again; buried as it came")
        return Bury(unit.payload, job)


def encoded(unit: UnitOfWork, job: Payload) -> bytes:
    """The job as JSON. A large one gets its queue first: of such a job the clock reads the
    beginning only, and buries one whose queue it does not find there."""
    payload = dumps(job)
    return payload if len(payload) <= _LARGE else dumps({"queue": unit.queue_name, **job})


def _backtrace(error: BaseException, wanted: Any) -> str:
    """The lines of the backtrace, innermost first, as Sidekiq's UI reads them: base64(zlib(JSON
    list of lines))."""
    lines = frames(error)[::-1]
    if type(wanted) is int:
        lines = lines[:wanted]
    return base64.b64encode(zlib.compress(msgspec.json.encode(lines))).decode()
