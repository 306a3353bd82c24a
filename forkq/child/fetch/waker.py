"""A bell: one thread sleeps on it, any other rings."""

from __future__ import annotations

import os
import select
import weakref
from contextlib import suppress


class Waker:
    """A pipe to itself, so that its sleeper can wait for a socket, too."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)
        weakref.finalize(self, _close, self.fd, self._write).atexit = False

    def ring(self) -> None:
        """Wakes the sleeper, or whoever sleeps next."""
        with suppress(BlockingIOError):  # the pipe is full of rings already
            os.write(self._write, b"!")

    def sleep(self, seconds: float) -> None:
        """Sleeps until somebody rings, at most ``seconds``."""
        poller = select.poll()  # select() cannot look at descriptors from 1024 on
        poller.register(self.fd, select.POLLIN)
        poller.poll(seconds * 1000)
        self.hush()

    def hush(self) -> None:
        """Forgets the rings so far."""
        with suppress(BlockingIOError):  # that was all of them
            while os.read(self.fd, 4096):
                pass


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
