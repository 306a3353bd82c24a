"""The region of a processor in which ``Shutdown`` may be raised.

Python can raise an exception in another thread, but at any bytecode: outside of the app's code it
would leave the fetcher's records half written. So the manager takes the region's lock before it
raises, and checks that the thread is inside. A thread that leaves takes the same lock, and cancels
an exception that Python has not delivered yet.
"""

from __future__ import annotations

import ctypes
import threading

from ..errors import Shutdown

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)
_raise_in.restype = ctypes.c_int
_cancel = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)


class InterruptRegion:
    """One per processor. The processor enters and leaves; the manager interrupts."""

    __slots__ = ("_inside", "_interrupted", "_lock", "_thread")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread = 0
        self._inside = False
        self._interrupted = False

    def enter(self) -> None:
        """From here on this thread may be interrupted. No lock: this is a single step, and
        ``interrupt`` sees it or comes before it."""
        self._thread = threading.get_ident()
        self._inside = True

    def leave(self) -> bool:
        """From here on this thread may not be interrupted. Returns whether it was, even if the job
        swallowed the exception, or Python had not delivered it."""
        while True:
            try:
                with self._lock:
                    self._inside = False
                    interrupted, self._interrupted = self._interrupted, False
                    if interrupted:
                        _cancel(self._thread, None)
                return interrupted
            except Shutdown:
                self._interrupted = True  # delivered before the lock was taken: leave again

    def interrupt(self) -> bool:
        """Raises Shutdown in the thread if it is inside, once. Returns whether it was inside."""
        with self._lock:
            inside = self._inside  # once: the thread may enter meanwhile
            if inside and not self._interrupted:
                self._interrupted = True
                _raise_in(self._thread, Shutdown)
            return inside
