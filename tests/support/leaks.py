"""What a test left open: descriptors, threads and processes of the test process itself."""

from __future__ import annotations

import gc
import os
import threading
import warnings
from contextlib import suppress
from pathlib import Path

from forkq.child.heartbeat import record

from .waiting import NotInTime, wait_until

SELF = Path("/proc/self")  # where there is none, only threads are seen
PATIENCE = 5.0  # seconds for a thread that ends by itself, or a process that is being reaped


class OpenResources:
    """The open descriptors, threads and processes of this process at one moment."""

    def __init__(self) -> None:
        record.resident()  # opens its descriptor, one for the life of a process
        self._begin = _all_open()

    def left(self, patience: float = PATIENCE) -> list[str]:
        """One line for each descriptor, thread and process that outlives the test."""
        if not self._new():
            return []
        with warnings.catch_warnings(), suppress(NotInTime):
            warnings.simplefilter("ignore", ResourceWarning)
            wait_until(self._nothing_new, deadline=patience, what="the end of what is left")
        return sorted(f"{new}{_title(new)}" for new in self._new())

    def _nothing_new(self) -> bool:
        """Objects in a reference cycle are closed by collect(): a thread may leave some. Most are
        so young that it need not look at all objects."""
        for generation in (1, 2):
            gc.collect(generation)
            if not self._new():
                return True
        return False

    def _new(self) -> set[str]:
        return _all_open() - self._begin


def _all_open() -> set[str]:
    return _descriptors() | _threads() | _processes()


def _descriptors() -> set[str]:
    found = set()
    # Twice for each of five thousand tests: pathlib's glob takes five times as long.
    folder = f"{SELF}/fd"
    for number in os.listdir(folder) if SELF.exists() else ():  # noqa: PTH208
        with suppress(FileNotFoundError):  # listdir's own, closed since
            found.add(f"descriptor {number}: {os.readlink(f'{folder}/{number}')}")  # noqa: PTH115
    return found


def _threads() -> set[str]:
    return {f"thread {thread.ident}: {thread.name}" for thread in threading.enumerate()}


def _processes() -> set[str]:
    found = set()
    folder = f"{SELF}/task"
    for number in os.listdir(folder) if SELF.exists() else ():  # noqa: PTH208 - as above
        # That thread may just have ended.
        with suppress(FileNotFoundError), open(f"{folder}/{number}/children") as file:  # noqa: PTH123
            found |= {f"process {pid}" for pid in file.read().split()}
    return found


def _title(found: str) -> str:
    if not found.startswith("process "):
        return ""
    try:
        words = Path("/proc", found.split()[1], "cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return ": it has ended by now"
    return f": {b' '.join(words).decode(errors='replace').strip() or 'a zombie'}"
