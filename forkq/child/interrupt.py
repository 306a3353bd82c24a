"""The one stretch of a processor in which ``Shutdown`` may be raised.

Python can raise an exception in another thread, but at any bytecode: outside of user code that
would tear our own books. So whoever raises takes the region's lock and makes sure that the thread
is still inside; and a thread that leaves takes the same lock and takes back what has not been
delivered yet.
"""

from __future__ import annotations

import ctypes
import threading

from ..errors import Shutdown

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)
_raise_in.restype = ctypes.c_int
_take_back = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)


class InterruptRegion:
    """One per processor, who enters and leaves; ``interrupt`` is the manager's."""

    __slots__ = ("_inside", "_interrupted", "_lock", "_thread")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread = 0
        self._inside = False
        self._interrupted = False

    def enter(self) -> None:
        """From here on this thread may be interrupted."""
        self._thread = threading.get_ident()
        with self._lock:
            self._inside = True

    def leave(self) -> bool:
        """From here on it may not. Returns whether it was, even if the exception was swallowed,
        or had not been delivered yet."""
        while True:
            try:
                with self._lock:
                    self._inside = False
                    interrupted, self._interrupted = self._interrupted, False
                    if interrupted:
                        _take_back(self._thread, None)
                return interrupted
            except Shutdown:
                self._interrupted = True  # delivered on our way out: once more, with feeling

    def interrupt(self) -> bool:
        """Raises Shutdown in the thread if it is inside. Returns whether it was."""
        with self._lock:
            if self._inside and not self._interrupted:
                self._interrupted = True
                _raise_in(self._thread, Shutdown)
            return self._inside
