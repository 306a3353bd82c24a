"""Watches the jobs that are leased ahead: those that do not start in time go back.

The watch is a thread, since each processor may be busy. It runs only while jobs are leased ahead,
and ends when none has been for a while.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

# Looks in a row that find nothing leased ahead, before the thread ends.
_IDLE_LOOKS: Final = 100


class LateJobs:
    """The fetcher's. ``look`` returns late jobs, and the seconds until it must look again; None if
    no job is leased ahead. ``runs``: whether the thread does."""

    def __init__(self, look: Callable[[], float | None], every: float) -> None:
        self._look = look
        self._every = every
        self.runs = False
        self._quiet = False
        self._ended = threading.Event()

    def watch(self) -> None:
        """Jobs are leased ahead from now on. Called by the thread that sends the fetch."""
        if self.runs or self._ended.is_set():
            return
        self.runs = True
        with suppress(RuntimeError):  # no thread left: the next fetch tries again
            threading.Thread(target=self._run, name="late-jobs", daemon=True).start()
            return
        self.runs = False

    def quiet(self) -> None:
        """No more jobs are fetched: the watch ends with the last that is leased ahead."""
        self._quiet = True

    def end(self) -> None:
        """No job is leased ahead any more."""
        self._ended.set()

    def _run(self) -> None:
        idle, pause = 0, self._every
        while idle < (1 if self._quiet else _IDLE_LOOKS) and not self._ended.wait(pause):
            found = self._look()
            idle, pause = (idle + 1, self._every) if found is None else (0, found)
        self.runs = False
