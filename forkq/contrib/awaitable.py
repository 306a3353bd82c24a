"""Pushing from asyncio: ``jid = await push(mail.perform_async, 7)``.

The push itself is the synchronous one, in a few threads of its own. So the loop never waits for
Redis, and a coroutine that is cancelled leaves no reply half read: the thread reads it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Final, ParamSpec, TypeVar

from forkq.errors import ServerUnavailable

P = ParamSpec("P")
R = TypeVar("R")

# How many pushes may wait for Redis at a time; a client keeps as many connections (`[redis] pool`).
_THREADS: Final = 10
# Seconds that a push waits for a free thread: as long as, by default, Redis may take to answer.
_PATIENCE: Final = 5.0

_threads: ThreadPoolExecutor | None = None


async def push(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Awaits ``call(*args)``, a ``perform_async`` or another call that talks to Redis, and never
    blocks the loop. Raises what ``call`` raises.

    Raises ServerUnavailable if no thread is free for 5 s, since Redis does not answer the pushes
    before this one; then nothing was pushed. If the coroutine is cancelled, a push that has begun
    goes on in its thread, and a push that has not begun is left out.
    """
    begun = _pool().submit(copy_context().run, partial(call, *args, **kwargs))
    waiting = asyncio.wrap_future(begun)
    try:
        await asyncio.wait({waiting}, timeout=_PATIENCE)
        if begun.cancel():
            raise ServerUnavailable(_no_thread_free())
        return await waiting
    finally:
        waiting.cancel()  # and ``begun``, if no thread has it yet; if it is done, this does nothing


async def close() -> None:
    """Waits for the pushes that have begun, and ends the threads. The next push starts new ones."""
    global _threads
    ended, _threads = _threads, None
    if ended is not None:
        await asyncio.to_thread(ended.shutdown, cancel_futures=True)


def _pool() -> ThreadPoolExecutor:
    global _threads  # noqa: PLW0603 - the threads of a process, whatever loops it runs
    if _threads is None:
        _threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="forkq push")
    return _threads


def _no_thread_free() -> str:
    return (
        f"{_THREADS} pushes have waited for Redis for {_PATIENCE:g} s, and no thread was free for "
        "this one; nothing was pushed"
    )


def _after_fork_in_child() -> None:
    global _threads  # noqa: PLW0603 - the parent's threads do not exist here
    _threads = None


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
