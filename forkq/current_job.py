"""The job that a thread performs: what it may know and tell of itself while it runs.

The processor sets it, the job's own code asks it. Nothing here talks to Redis.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final, cast

from .errors import ForkqError
from .wire.lease import Progress, UnitOfWork
from .wire.payload import Payload
from .wire.times import now

_LONGEST_NOTE: Final = 200
_CEILING: Final = 1e18


class Running:
    """The job that this thread performs: what ``forkq.current_job()`` returns.

    It may be handed to the job's own threads, which have no current job themselves.
    """

    __slots__ = ("_unit", "payload")

    def __init__(self, payload: Payload, unit: UnitOfWork | None = None) -> None:
        self.payload = payload
        self._unit = unit

    def __repr__(self) -> str:
        return f"<forkq job {self.payload.get('class')} {self.jid}>"

    @property
    def jid(self) -> str:
        """Its id."""
        return cast("str", self.payload.get("jid", ""))

    @property
    def queue(self) -> str:
        """The queue it came from."""
        return cast("str", self.payload.get("queue", ""))

    @property
    def retry_count(self) -> int | None:
        """How many retries have failed: None at the first run, 0 at the first retry."""
        return cast("int | None", self.payload.get("retry_count"))

    @property
    def lease_lost(self) -> bool:
        """Whether this job was given to others, because this host seemed lost: see
        ``forkq.lease_lost()``."""
        return self._unit is not None and self._unit.lost

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Tells how far this job is: ``done`` of ``total``, and a word on it.

        Costs about a microsecond, so call it as often as you like: the next heartbeat (10 s)
        carries what was told last, and ``forkq running`` and ``forkq stuck`` show it. It never
        fails a running job: what is no finite number counts as not given (and ``done`` stays what
        it was), and a note is cut to 200 characters. Any call is a sign of life.
        """
        unit = self._unit
        if unit is None:
            return
        if not (_is_number(done) and (total is None or _is_number(total))):
            before = unit.progress.done if unit.progress is not None else 0
            told = _number(done)
            done, total = before if told is None else told, _number(total)
        if type(note) is not str or note:
            note = _text(note)
        unit.progress = Progress(done, total, note, now())


_running: ContextVar[Running | None] = ContextVar("forkq_running", default=None)


def begin(payload: Payload, unit: UnitOfWork | None = None) -> Running:
    """Makes ``payload`` this thread's current job; called by the processor, and by it alone.

    ``unit`` is where its progress is kept and its lease is known to be lost; without one, as in
    tests, progress goes nowhere.
    """
    view = Running(payload, unit)
    _running.set(view)
    return view


def end() -> None:
    """This thread performs no job any more."""
    _running.set(None)


def current_job() -> Running:
    """The job that this thread performs. Raises ForkqError outside of one."""
    found = _running.get()
    if found is None:
        raise ForkqError("current_job() was called outside of a running job")
    return found


def lease_lost() -> bool:
    """Whether the job that this thread performs was given to others, because this host seemed lost.

    It runs, or has run, elsewhere: a job that sees this should stop before it does harm; what it
    returns changes nothing any more. Like ``forkq.stopping()`` it may be asked anywhere: outside of
    a job, and in the threads that a job has started, it is False.
    """
    found = _running.get()
    return found is not None and found.lease_lost


def _is_number(value: Any) -> bool:
    """Whether ``value`` is a number that every reader of JSON can hold."""
    return (type(value) is int or type(value) is float) and -_CEILING < value < _CEILING


def _number(value: Any) -> float | None:
    """The number in ``value`` (a Decimal, numpy's, True), or None if there is none to show."""
    if _is_number(value):
        return cast("float", value)
    try:
        number = float(value)
    except Exception:  # noqa: BLE001 - nothing that a value does must fail the job that tells of it
        return None
    return number if _is_number(number) else None


def _text(note: Any) -> str:
    """``note`` as text that UTF-8 can carry, cut."""
    try:
        text = "" if note is None else str(note)[:_LONGEST_NOTE]
    except Exception:  # noqa: BLE001 - a broken __str__ must not fail the job for a note's sake
        return ""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
