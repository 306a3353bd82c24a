"""The region of a processor in which ``Shutdown``, ``TimeLimit`` and ``Cancelled`` may be raised.

While the thread waits for the coroutine of its job, that is cancelled instead: ``divert``.

Python can raise an exception in another thread, but at any bytecode: outside of the app's code it
would leave the fetcher's records half written. So the main thread takes the region's lock before it
raises, and checks that the thread is inside. A thread that leaves takes the same lock, and takes
back an exception that Python has not delivered yet.

From Python 3.14 on, ``with lock:`` can take the lock and then be struck, before its block begins.
So it is an RLock: the thread can take it again, and gives all of it back.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Final, Literal, Protocol, TypeAlias

from ..current_job import Reason
from ..errors import Cancelled, LeaseLost, Shutdown, TimeLimit
from ..runtime.struck_lock import release_all
from ..wire.lease import UnitOfWork
from .job_run import JobRun

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)
_raise_in.restype = ctypes.c_int


class _Left(BaseException):
    """Raised by a thread in itself: it takes the place of an exception that was not delivered.

    To cancel that one with NULL is not enough. Until Python 3.13 the interpreter would go on
    looking for it at each check, in all threads; and in 3.11 a function that is traced, by a
    debugger or for coverage, would look for ever."""


# What may be raised in a region.
RAISED: Final = (Shutdown, TimeLimit, Cancelled)
# Why a job was cut short: by the stop, because it was cancelled, or not at all.
CutShort: TypeAlias = Literal["stop", "cancelled", ""]


class Expiring(Protocol):
    """A job with a time limit. ``raised``: TimeLimit was raised in it, delivered or not."""

    raised: bool


class Interruptible(Protocol):
    """The coroutine of a job, which an interrupt cancels."""

    def interrupt(self, why: Reason) -> None:
        """Cancels it. It must not block."""


class InterruptRegion:
    """One per processor. The processor enters and leaves; the main thread interrupts, and the
    heartbeat's thread cancels. ``run`` is what it has entered with last; ``task`` is the coroutine
    that the thread waits for.

    Two exceptions at most are raised in one job: a TimeLimit or a Cancelled, and a Shutdown after
    it.
    """

    __slots__ = (
        "_cut_short",
        "_inside",
        "_job",
        "_lock",
        "_raised",
        "_struck",
        "_thread",
        "run",
        "task",
    )

    def __init__(self, lock: threading.RLock | None = None) -> None:
        self._lock = threading.RLock() if lock is None else lock
        self._thread = 0
        self._inside = False
        self._cut_short: CutShort = ""
        self._job: Expiring | None = None
        self.run: JobRun | None = None
        self.task: Interruptible | None = None
        self._raised = False  # in the thread, delivered or not
        self._struck: Reason | None = None  # why the job was interrupted, in either way

    def enter(self, job: Expiring | None = None, run: JobRun | None = None) -> None:
        """Lets this thread be interrupted from here on, by ``expire`` only for this very ``job``,
        by ``cancel`` for this ``run``. No lock: the last line is a single step, and others see it
        or come before it."""
        self._thread = threading.get_ident()
        self._job = job
        self.run = run
        self._inside = True

    def leave(self) -> CutShort:
        """Lets this thread not be interrupted any more. Returns why the job was cut short, even if
        it swallowed the exception, or Python had not delivered it."""
        while True:
            try:
                with self._lock:
                    self._inside = False
                    if raised := self._raised:
                        self._take_back()
                    why, self._cut_short, self._struck = self._cut_short, "", None
                if raised:
                    release_all(self._lock)  # what a struck ``with`` still holds
                return why
            except RAISED:
                pass  # delivered before it was taken back: leave again

    def divert(self, task: Interruptible | None) -> None:
        """From here on an interrupt of the job goes to ``task``, and none is raised in this thread,
        which calls this; with None it is raised here again."""
        with self._lock:
            if self._raised:
                self._take_back()
                if task is not None and self._struck is not None:
                    task.interrupt(self._struck)
            self.task = task

    def _take_back(self) -> None:
        """Returns once nothing can be delivered any more. The thread itself calls it."""
        try:
            _raise_in(self._thread, _Left)
            while True:  # until it is delivered, at the next check of the interpreter
                pass
        except _Left:
            self._raised = False

    def interrupt(self) -> bool:
        """Raises Shutdown in the thread if it is inside, once. Returns whether it was inside."""
        with self._lock:
            inside = self._inside  # once: the thread may enter meanwhile
            if inside and self._cut_short != "stop":
                self._cut_short = "stop"
                self._strike(Shutdown, "shutdown")
            return inside

    def expire(self, job: Expiring) -> None:
        """Raises TimeLimit in the thread, once, if it is inside ``job`` and was not interrupted by
        the stop."""
        with self._lock:
            # In this order: a thread that enters sets the job first.
            inside = self._inside and self._job is job
            if inside and not self._cut_short and not job.raised:
                job.raised = True
                self._strike(TimeLimit, "time_limit")

    def cancel(self, run: JobRun) -> bool:
        """Raises Cancelled in the thread, once, if it is inside ``run`` and nothing was raised in
        that. Returns whether it did."""
        with self._lock:
            inside = self._inside and self.run is run
            if not inside or self._struck or self._cut_short:
                return False
            self._cut_short = "cancelled"
            self._strike(Cancelled, "cancelled")
            return True

    def lose(self, unit: UnitOfWork) -> None:
        """Cancels the task of ``unit``, whose lease another host has, if there is one and nothing
        was raised in it. A job without a task asks by itself (``forkq.lease_lost()``)."""
        with self._lock:
            is_it = self._inside and self.run is not None and self.run.unit is unit
            if is_it and self.task is not None and not self._struck:
                self._strike(LeaseLost, "lease_lost")

    def _strike(self, error: type[BaseException], why: Reason) -> None:
        self._struck = why
        if self.task is not None:
            self.task.interrupt(why)
        else:
            self._raised = True
            _raise_in(self._thread, error)

    def while_inside(self, run: JobRun, act: Callable[[], None]) -> None:
        """Calls ``act``, which must be short, if the thread is inside ``run``: it cannot leave
        meanwhile."""
        with self._lock:
            if self._inside and self.run is run:
                act()
