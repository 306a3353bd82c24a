"""The API from asyncio: ``await aio.run(api.stats)``, ``async for page in aio.pages(...)``.

Each call runs in one of a few separate threads, so the loop never waits for Redis, and pushes
never wait for pages. ``import forkq.api.aio`` to use it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from itertools import islice
from typing import Final, ParamSpec, TypeVar

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


_SIZE: Final = 4
_PATIENCE: Final = 5.0
_threads: Final = CallThreads(
    _SIZE,
    patience=_PATIENCE,
    name="forkq api",
    busy=f"{_SIZE} calls have waited for Redis for {_PATIENCE:g} s, and no thread was free for "
    "this one; it did nothing",
)


async def run(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Awaits ``call(*args)``, any function or method of the API. Raises what it raises.

    Raises ServerUnavailable if no thread is free for 5 s. If the coroutine is cancelled, a call
    that has begun goes on in its thread, and one that has not begun is left out.
    """
    return await _threads.run(call, *args, **kwargs)


async def pages(entries: Iterable[T], count: int = 100) -> AsyncIterator[list[T]]:
    """Yields the values of ``entries``, such as ``RetrySet().scan(...)``, in lists of ``count``;
    each is read in a thread when it is asked for."""
    iterator = iter(entries)
    while page := await run(lambda: list(islice(iterator, count))):
        yield page


async def close() -> None:
    """Waits for the calls that have begun, and ends the threads. The next call starts new ones."""
    await _threads.close()
