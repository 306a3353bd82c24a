"""Wakes a sleeping thread from any other thread."""

from __future__ import annotations

import os
import select
import weakref
from contextlib import suppress


class Waker:
    """A pipe to itself: the thread that sleeps can wait for ``fd`` and a socket together.

    The pipe is closed once no thread has the object any more. So a thread that wakes another one
    takes no lock, and never writes into another file that has got the number of the pipe.
    """

    def __init__(self) -> None:
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)
        self._woken = False
        weakref.finalize(self, _close, self.fd, self._write).atexit = False

    def wake(self) -> None:
        """Wakes the thread that sleeps, or the next one that goes to sleep."""
        with suppress(BlockingIOError):  # the pipe is full of wake-ups
            os.write(self._write, b"!")
        self._woken = True

    def sleep(self, seconds: float) -> None:
        """Sleeps until another thread calls ``wake``, at most ``seconds``."""
        poller = select.poll()  # select() refuses descriptors from 1024 on
        poller.register(self.fd, select.POLLIN)
        poller.poll(seconds * 1000)
        self.clear()

    def clear(self, *, seen: bool = True) -> None:
        """Forgets the wake-ups so far. Without ``seen``, one that is just coming may stay."""
        if not seen and not self._woken:
            return
        self._woken = False
        with suppress(BlockingIOError):  # the pipe is empty
            while os.read(self.fd, 4096):
                pass


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
