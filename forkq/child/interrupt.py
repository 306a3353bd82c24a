"""The region of a processor in which ``Shutdown`` and ``TimeLimit`` may be raised.

Python can raise an exception in another thread, but at any bytecode: outside of the app's code it
would leave the fetcher's records half written. So the main thread takes the region's lock before it
raises, and checks that the thread is inside. A thread that leaves takes the same lock, and cancels
an exception that Python has not delivered yet.

From Python 3.14 on, ``with lock:`` can take the lock and then be struck, before its block begins.
So it is an RLock: the thread can take it again, and gives all of it back.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Protocol

from ..errors import Shutdown, TimeLimit
from ..runtime.struck_lock import release_all

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)
_raise_in.restype = ctypes.c_int
_cancel = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)


class Expiring(Protocol):
    """A job with a time limit. ``raised``: TimeLimit was raised in it, delivered or not."""

    raised: bool


class InterruptRegion:
    """One per processor. The processor enters and leaves; the main thread interrupts.

    Two exceptions at most are raised in one job: a TimeLimit, and a Shutdown after it.
    """

    __slots__ = ("_inside", "_interrupted", "_job", "_lock", "_raised", "_thread")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._thread = 0
        self._inside = False
        self._interrupted = False
        self._job: Expiring | None = None
        self._raised = False

    def enter(self, job: Expiring | None = None) -> None:
        """Lets this thread be interrupted from here on, by ``expire`` only for this very ``job``.
        No lock: the last line is a single step, and the main thread sees it or comes before it."""
        self._thread = threading.get_ident()
        self._job = job
        self._inside = True

    def leave(self) -> bool:
        """Lets this thread not be interrupted any more. Returns whether the stop did, even if the
        job swallowed the exception, or Python had not delivered it."""
        while True:
            try:
                with self._lock:
                    self._inside = False
                    if raised := self._raised:
                        _cancel(self._thread, None)
                        self._raised = False  # nothing can be delivered any more
                    interrupted, self._interrupted = self._interrupted, False
                if raised:
                    release_all(self._lock)  # what a struck ``with`` still holds
                return interrupted
            except (Shutdown, TimeLimit):
                pass  # delivered before it was cancelled: leave again

    def interrupt(self) -> bool:
        """Raises Shutdown in the thread if it is inside, once. Returns whether it was inside."""
        with self._lock:
            inside = self._inside  # once: the thread may enter meanwhile
            if inside and not self._interrupted:
                self._interrupted = self._raised = True
                _raise_in(self._thread, Shutdown)
            return inside

    def expire(self, job: Expiring) -> None:
        """Raises TimeLimit in the thread, once, if it is inside ``job`` and was not interrupted by
        the stop."""
        with self._lock:
            # In this order: a thread that enters sets the job first.
            inside = self._inside and self._job is job
            if inside and not self._interrupted and not job.raised:
                job.raised = self._raised = True
                _raise_in(self._thread, TimeLimit)
