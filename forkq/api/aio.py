"""The API from asyncio: ``await aio.run(api.stats)``, ``async for page in aio.pages(...)``.

Each call runs in one of a few threads of its own, so the loop never waits for Redis, and pushes
never wait for pages. ``import forkq.api.aio`` to use it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def run(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Awaits ``call(*args)``, any function or method of the API. Raises what it raises.

    Raises ServerUnavailable if no thread is free for 5 s. If the coroutine is cancelled, a call
    that has begun goes on in its thread, and one that has not begun is left out.
    """
    raise NotImplementedError


def pages(entries: Iterable[T], count: int = 100) -> AsyncIterator[list[T]]:
    """What ``entries`` yields, such as ``RetrySet().scan(...)``, in lists of ``count``; each is
    read in a thread when it is asked for."""
    raise NotImplementedError


async def close() -> None:
    """Waits for the calls that have begun, and ends the threads. The next call starts new ones."""
    raise NotImplementedError
