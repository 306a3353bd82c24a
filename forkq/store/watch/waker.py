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
        self._sleeps = 0  # that are over
        self._woken_from = -1  # after how many of them the pipe was written to last
        weakref.finalize(self, _close, self.fd, self._write).atexit = False

    def wake(self) -> None:
        """Wakes the thread that sleeps, or the next one that goes to sleep. A thread that is about
        to wake up costs no further system call: many jobs may end until it has the interpreter.

        Two threads may be here at once, or an exception may strike: then the pipe has one byte too
        many, and a sleep ends at once. It never has one too few."""
        sleeps = self._sleeps
        if self._woken_from == sleeps:
            return
        with suppress(BlockingIOError):  # the pipe is full of wake-ups
            os.write(self._write, b"!")
        self._woken_from = sleeps

    def sleep(self, seconds: float) -> None:
        """Sleeps until another thread calls ``wake``, at most ``seconds``."""
        poller = select.poll()  # select() refuses descriptors from 1024 on
        poller.register(self.fd, select.POLLIN)
        poller.poll(seconds * 1000)
        self.clear()

    def clear(self, *, seen: bool = True) -> None:
        """Forgets the wake-ups so far. Without ``seen``, one that is just coming may stay. Only the
        thread that has slept calls this; after it, that thread looks for what there is to do."""
        if not seen and self._woken_from != self._sleeps:
            return
        with suppress(BlockingIOError):  # the pipe is empty
            while os.read(self.fd, 4096):
                pass
        self._sleeps += 1  # last: who sees the old number has told before the thread looks


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
