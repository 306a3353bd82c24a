"""Whether a debugger's prompt is open in a job, so that no log line is written into it.

One byte of memory that the processes of a tree share: the child with the job sets it, and each
process keeps its lines meanwhile.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

_shared: mmap.mmap | None = None


def share() -> None:
    """In the master, before it forks: from now on a prompt can be open."""
    global _shared  # noqa: PLW0603 - one for the tree
    _shared = mmap.mmap(-1, 1)


def is_open() -> bool:
    """Whether a prompt is open in any process of this tree."""
    return _shared is not None and _shared[0] != 0


@contextmanager
def opened() -> Iterator[None]:
    """The prompt is open while its block runs."""
    if _shared is None:
        yield
        return
    _shared[0] = 1
    try:
        yield
    finally:
        _shared[0] = 0
