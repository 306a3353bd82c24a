"""Whether descriptors can be read without waiting. Any process that talks to Redis."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable
from functools import partial


def readable(descriptors: Iterable[int], seconds: float) -> list[int]:
    """Waits up to ``seconds``. Returns the descriptors that can be read without waiting."""
    if not hasattr(select, "poll"):  # Windows
        return select.select(list(descriptors), [], [], max(0.0, seconds))[0]
    poller = select.poll()  # select() cannot watch descriptors from 1024 on
    for fd in descriptors:
        poller.register(fd, select.POLLIN)
    return [fd for fd, _ in poller.poll(max(0.0, seconds) * 1000)]


def input_check(fd: int) -> Callable[[], object]:
    """A function whose result is true if ``fd`` can be read without waiting: for one that is asked
    often. Not thread-safe."""
    if not hasattr(select, "poll"):  # Windows
        return partial(readable, [fd], 0)
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return partial(poller.poll, 0)
