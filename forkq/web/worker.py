"""Threads in which pages are made: a slow Redis holds up a few threads, never the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")

# Below the connections of the default pool, so that no thread waits for a connection.
THREADS: Final = 8
PATIENCE: Final = 15.0  # seconds for a page, its wait for a thread included


class TooBusy(Exception):
    """No page was made in time."""


class Worker:
    """Makes at most ``THREADS`` calls at once, each with a time-out."""

    def __init__(self) -> None:
        self._limiter: anyio.CapacityLimiter | None = None

    async def run(self, call: Callable[[], T], patience: float = PATIENCE) -> T:
        """Runs ``call`` in a thread, and returns its result. Raises TooBusy after ``patience``
        seconds; a call that has begun goes on then."""
        if self._limiter is None:  # made inside of the event loop
            self._limiter = anyio.CapacityLimiter(THREADS)
        try:
            with anyio.fail_after(patience):
                return await anyio.to_thread.run_sync(
                    call, limiter=self._limiter, abandon_on_cancel=True
                )
        except TimeoutError:
            raise TooBusy("it took too long") from None
