"""Pushing from asyncio: ``jid = await push(mail.perform_async, 7)``.

The push itself is the synchronous one, in a few separate threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from forkq.store.threads import CallThreads

P = ParamSpec("P")
R = TypeVar("R")

# How many pushes may wait for Redis at a time; a client keeps as many connections (`[redis] pool`).
_THREADS: Final = 10
# Seconds that a push waits for a free thread: as long as, by default, Redis may take to answer.
_PATIENCE: Final = 5.0

_threads: Final = CallThreads(
    _THREADS,
    patience=_PATIENCE,
    name="forkq push",
    busy=f"{_THREADS} pushes have waited for Redis for {_PATIENCE:g} s, and no thread was free for "
    "this one; nothing was pushed",
)


async def push(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Awaits ``call(*args)``, a ``perform_async`` or another call that talks to Redis, and never
    blocks the loop. Raises what ``call`` raises.

    Raises ServerUnavailable if no thread is free for 5 s, since Redis does not answer the pushes
    before this one; then nothing was pushed. If the coroutine is cancelled, a push that has begun
    goes on in its thread, and a push that has not begun is left out.
    """
    return await _threads.run(call, *args, **kwargs)


async def close() -> None:
    """Waits for the pushes that have begun, and ends the threads. The next push starts new ones."""
    await _threads.close()
