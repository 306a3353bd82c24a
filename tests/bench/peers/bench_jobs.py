"""The jobs that every peer runs, and how they count themselves. Standard library only: each peer
imports this in an environment of its own.

All processes of a worker map one file of 64-bit numbers. The first number says how many of the
others are taken. A process takes one with its first job, and writes its count of jobs there. So the
bench reads how many jobs have run without asking Redis, in the same way for every peer.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

URL = os.environ.get("BENCH_URL", "redis://127.0.0.1:6379/0")
CONCURRENCY = int(os.environ.get("BENCH_CONCURRENCY", "10"))
NAP = 0.01  # seconds that the other job sleeps


class Counter:
    """This process's place in the file."""

    def __init__(self) -> None:
        with Path(os.environ["BENCH_COUNTS"]).open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            self._cells = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
            self._cells[0] += 1
            self._place = self._cells[0]
        self._numbers = itertools.count(1)  # atomic in every thread

    def add(self) -> None:
        """Count a job. Of two threads the later writer may have the smaller number: one job."""
        self._cells[self._place] = next(self._numbers)


_counter: Counter | None = None


def _forget() -> None:
    global _counter  # noqa: PLW0603
    _counter = None


os.register_at_fork(after_in_child=_forget)


def count() -> None:
    """Count a job of this process."""
    global _counter  # noqa: PLW0603
    if _counter is None:
        _counter = Counter()
    _counter.add()


def nap() -> None:
    """The job that waits."""
    time.sleep(NAP)
    count()


async def async_nap() -> None:
    """The job that waits, where jobs are coroutines."""
    await asyncio.sleep(NAP)
    count()


def main(fill: Callable[[str, int], None]) -> None:
    """Pushes: `python bench_PEER.py noop|nap COUNT`."""
    fill(sys.argv[1], int(sys.argv[2]))
