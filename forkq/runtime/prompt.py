"""Whether a debugger's prompt is open in a job, so that no log line is written into it.

A word of memory that the processes of a tree share: the child with the job puts its pid there, and
each process keeps its lines meanwhile. A child that is killed at its prompt leaves its pid there.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

_shared: memoryview[int] | None = None


def share() -> None:
    """Makes the shared word, in the master before it forks: from now on a prompt can be open."""
    global _shared  # noqa: PLW0603 - one for the tree
    _shared = memoryview(mmap.mmap(-1, 8)).cast("q")


def is_open() -> bool:
    """Whether a prompt is open in any process of this tree."""
    return _shared is not None and _shared[0] != 0 and _lives(_shared[0])


@contextmanager
def opened() -> Iterator[None]:
    """Notes that the prompt is open while its block runs."""
    if _shared is None:
        yield
        return
    _shared[0] = os.getpid()
    try:
        yield
    finally:
        _shared[0] = 0


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
