"""Watches the jobs that are leased ahead: those that do not start in time go back.

The watch is a thread, since each processor may be busy. It begins with the first job that a child
leases ahead, and sleeps while there is nothing to look for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

_LONGEST_PAUSE: Final = 60.0


class LateJobs:
    """The fetcher's. ``look`` returns late jobs, and the seconds until it must look again; None if
    there is nothing to look for until ``watch`` is called."""

    def __init__(self, look: Callable[[], float | None]) -> None:
        self._look = look
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self._thread: Thread | None = None
        self._sleeps = False
        self._ended = False

    @property
    def runs(self) -> bool:
        """Whether the thread does."""
        return self._thread is not None and self._thread.is_alive()

    def starts(self) -> bool:
        """Starts the thread if none runs: an exception may have ended it. False if the system has
        none left, or at the end: then nothing may be leased ahead. One thread at a time calls
        this."""
        if not self.runs and not self._ended:
            self._sleeps = False
            thread = Thread(target=self._run, name="late-jobs", daemon=True)
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread
        return self.runs and not self._ended

    def watch(self) -> None:
        """There may be something to look for. One thread at a time calls this."""
        if self._sleeps and self.runs:
            self._wake.put(True)
        else:
            self.starts()

    def hurry(self) -> None:
        """The next look is due now."""
        self._wake.put(True)

    def end(self) -> None:
        """No processor runs any more."""
        self._ended = True
        self._wake.put(True)

    def _run(self) -> None:
        pause: float | None = 0.0
        while not self._ended:
            with suppress(Empty):
                self._wake.get(timeout=_LONGEST_PAUSE if pause is None else pause)
            self._sleeps = False
            pause = self._look()
            if pause is None:
                self._sleeps = True
                pause = self._look()  # for what came before it slept
