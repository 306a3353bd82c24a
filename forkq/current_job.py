"""The job that a thread or a task performs: its data, its progress, and whether its lease is lost.

The processor sets it; the job's own code reads it. No Redis: the heartbeat sends the progress.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeAlias, cast

from .errors import ForkqError, shown
from .wire.lease import Progress, UnitOfWork
from .wire.payload import Payload
from .wire.times import now

_LONGEST_NOTE: Final = 200
_CEILING: Final = 1e18

# How much of its work a job has done, and of how much; None: that is unknown.
Place: TypeAlias = "tuple[float, float | None]"
# Why forkq cancels the task of a job.
Reason: TypeAlias = Literal["shutdown", "time_limit", "cancelled", "lease_lost"]


class PerformedRun(Protocol):
    """What a child knows of the run of a job. ``step_store``: where its steps are remembered."""

    unit: UnitOfWork

    def step_store(self) -> Any: ...


class CurrentJob:
    """The job that this thread or task performs: what ``forkq.current_job()`` returns.

    It may be handed to the job's own threads, which have no current job themselves. Tasks that a
    job starts, and ``asyncio.to_thread``, have that of the job.
    """

    __slots__ = ("_ending", "_run", "cursors", "log_minute", "payload", "steps")
    _ending: Reason  # set when the job is interrupted: other jobs pay nothing
    cursors: object  # the processor sets it for an iterable job
    steps: object  # set when the job comes to its first step: other jobs pay nothing
    log_minute: object  # runtime/job_lines.py sets it when the job logs: other jobs pay nothing

    def __init__(self, payload: Payload, run: PerformedRun | None = None) -> None:
        self.payload = payload
        self._run = run

    def __repr__(self) -> str:
        return f"<forkq job {self.payload.get('class')} {self.jid}>"

    @property
    def jid(self) -> str:
        """The id of the job."""
        return cast("str", self.payload.get("jid", ""))

    @property
    def queue(self) -> str:
        """The queue that the job came from."""
        return cast("str", self.payload.get("queue", ""))

    @property
    def retry_count(self) -> int | None:
        """How many retries have failed: None at the first run, 0 at the first retry."""
        return cast("int | None", self.payload.get("retry_count"))

    @property
    def lease_lost(self) -> bool:
        """Whether another host got this job, because this host seemed lost: see
        ``forkq.lease_lost()``."""
        return self._run is not None and self._run.unit.lost

    @property
    def ending(self) -> Reason | None:
        """Why forkq has cancelled the task of this ``async def`` job: "shutdown" (the stop's
        deadline; it runs again), "time_limit", "cancelled" (``forkq.cancel``) or "lease_lost"
        (another host has the job). None if forkq has not."""
        return getattr(self, "_ending", None)

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Reports the progress of this job: ``done`` of ``total``, and a note.

        A call takes about a microsecond. The latest report is in Redis within a second, and at most
        once a second; ``forkq.api.progress``, ``forkq running`` and ``forkq stuck`` show it. A
        wrong value never fails the job: what is no finite number counts as not given (``done``
        stays as it was), and a long note is cut. Each call shows that the job is not stuck.
        """
        if self._run is None:
            return
        unit = self._run.unit
        if not (_is_number(done) and (total is None or _is_number(total))):
            before = unit.progress.done if unit.progress is not None else 0
            given = _number(done)
            done, total = before if given is None else given, _number(total)
        if type(note) is not str or note:
            note = _text(note)
        known = unit.progress
        walked = (None, 0.0) if known is None else (known.items, known.before)
        unit.progress = Progress(done, total, note, now(), *walked)
        for tell in _listeners:
            tell()


class _CountedProgress(Progress):
    """The progress that forkq counts for an iterable job, until that reports its own."""

    __slots__ = ()


def note_items(view: CurrentJob, items: int, before: float, place: Place) -> None:
    """Reports that an iterable job has done ``items``, and ran for ``before`` seconds before this
    run. ``place`` is its progress, unless the job reports its own."""
    if view._run is None:
        return
    unit = view._run.unit
    known = unit.progress
    if known is None or type(known) is _CountedProgress:
        unit.progress = _CountedProgress(*place, "", now(), items, before)
    else:
        unit.progress = Progress(known.done, known.total, known.note, now(), items, before)
    for tell in _listeners:
        tell()


def reported_place(view: CurrentJob) -> Place | None:
    """The progress of a job as it was reported last; None if there is none."""
    found = None if view._run is None else view._run.unit.progress
    return None if found is None else (found.done, found.total)


_listeners: tuple[Callable[[], None], ...] = ()  # the heartbeats of this child


def tell_of_progress(call: Callable[[], None]) -> None:
    """From now on each report of progress in this process calls ``call``, too. A child has a second
    heartbeat where it runs suspects."""
    global _listeners  # noqa: PLW0603 - a property of the process
    _listeners += (call,)


_running: ContextVar[CurrentJob | None] = ContextVar("forkq_running", default=None)


def enter_job(payload: Payload, run: PerformedRun | None = None) -> CurrentJob:
    """Makes ``payload`` the current job of this context. Only the processor calls it.

    The unit of ``run`` keeps the progress, and knows whether the lease is lost. Without one
    progress is dropped.
    """
    view = CurrentJob(payload, run)
    _running.set(view)
    return view


def note_ending(view: CurrentJob, why: Reason) -> None:
    """Notes why forkq cancels the task of this job. Only the child calls it."""
    view._ending = why


def run_of(view: CurrentJob) -> PerformedRun | None:
    """What the child knows of the run of this job; None where no child runs it."""
    return view._run


# Leaves this context without a current job; only the processor calls it. Not a function of Python:
# each job calls it.
leave_job: Final = partial(_running.set, None)


def running_job() -> CurrentJob | None:
    """The job that this thread or task performs; None outside of one."""
    return _running.get()


def current_job() -> CurrentJob:
    """The job that this thread or task performs. Raises ForkqError outside of one."""
    return job_for("current_job()")


def job_for(call: str) -> CurrentJob:
    """``current_job``, for another ``call`` of the app that needs one."""
    found = _running.get()
    if found is None:
        raise ForkqError(
            f"{call} was called outside of a running job (a test runs one with "
            "forkq.testing.inline() or drain())"
        )
    return found


def idempotency_key(name: str) -> str:
    """A key that is the same in each run of the job that this thread or task performs, after a
    retry or a crash, too, and another one for each ``name`` and job. It has the form of a jid: a
    job that is pushed with it and with ``once`` is pushed once, however often its pusher runs::

        load.set({"jid": forkq.idempotency_key("load 7")}, once=True).perform_async(7)

    Raises ForkqError outside of a job, and for a name that is no text."""
    if type(name) is not str or not name:
        raise ForkqError(f"idempotency_key takes a name, which is text, and not {shown(name)}")
    from hashlib import sha256  # noqa: PLC0415 - what only pushes needs none of it

    return sha256(f"{job_for('idempotency_key()').jid}\0{name}".encode()).hexdigest()[:24]


def lease_lost() -> bool:
    """Whether another host got the job that this thread or task performs, because this host seemed
    lost.

    The job runs, or has run, on that host. A job that sees this should stop before it does harm;
    its result changes nothing any more. May be called anywhere, like ``forkq.stopping()``: outside
    of a job, and in the threads that a job has started, it is False.
    """
    found = _running.get()
    return found is not None and found.lease_lost


def _is_number(value: Any) -> bool:
    """Whether ``value`` is a number that every JSON parser can read."""
    return (type(value) is int or type(value) is float) and -_CEILING < value < _CEILING


def _number(value: Any) -> float | None:
    """``value`` (a Decimal, a number of numpy, True) as a number; None if it is none."""
    if _is_number(value):
        return cast("float", value)
    try:
        number = float(value)
    except Exception:  # noqa: BLE001 - a value must not fail the job that reports it
        return None
    return number if _is_number(number) else None


def _text(note: Any) -> str:
    """``note`` as text that UTF-8 can carry, not too long."""
    try:
        text = "" if note is None else str(note)[:_LONGEST_NOTE]
    except Exception:  # noqa: BLE001 - a broken __str__ must not fail the job
        return ""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
