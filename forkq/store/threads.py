"""Calls that wait for Redis, awaited by a loop of asyncio: in a few threads of their own.

So the loop never waits for Redis, and a coroutine that is cancelled leaves no reply half read: the
thread reads it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

from ..errors import ServerUnavailable

P = ParamSpec("P")
T = TypeVar("T")


class CallThreads:
    """A few threads for calls, at most ``size``. A call waits ``patience`` seconds for a free one.
    ``name`` is that of the threads, ``busy`` the error's text if none is free in time."""

    def __init__(self, size: int, *, patience: float, name: str, busy: str) -> None:
        self._size = size
        self._patience = patience
        self._name = name
        self._busy = busy
        self._threads: ThreadPoolExecutor | None = None
        if hasattr(os, "register_at_fork"):  # Windows has no fork
            os.register_at_fork(after_in_child=self._after_fork_in_child)

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Awaits the call. Raises what it raises, and ServerUnavailable if no thread is free. If
        the coroutine is cancelled, a call that has begun goes on, and another one is left out."""
        begun = self._pool().submit(copy_context().run, partial(call, *args, **kwargs))
        waiting = asyncio.wrap_future(begun)
        try:
            await asyncio.wait({waiting}, timeout=self._patience)
            if begun.cancel():
                raise ServerUnavailable(self._busy)
            return await waiting
        finally:
            waiting.cancel()  # and ``begun``, if no thread has it yet; nothing if it is done

    async def close(self) -> None:
        """Waits for the calls that have begun, and ends the threads. The next call starts new
        ones."""
        ended, self._threads = self._threads, None
        if ended is not None:
            await asyncio.to_thread(ended.shutdown, cancel_futures=True)

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._size, thread_name_prefix=self._name)
        return self._threads

    def _after_fork_in_child(self) -> None:
        self._threads = None  # the parent's threads do not exist here
