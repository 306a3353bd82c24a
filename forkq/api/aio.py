"""The API from asyncio: ``await aio.run(api.stats)``, ``async for page in aio.pages(...)``.

Each call runs in one of a few separate threads, so the loop never waits for Redis, and pushes
never wait for pages. ``import forkq.api.aio`` to use it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from itertools import islice
from typing import Final, ParamSpec, TypeVar

from ..store.threads import CallThreads

P = ParamSpec("P")
T = TypeVar("T")

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
