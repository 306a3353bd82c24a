"""A call that may block, awaited by a loop: it runs in a thread of its own.

What has to do with a push and may block is an import, a look-up of a name, a login: seldom, so the
thread is made for it. The threads of ``asyncio.to_thread`` are the app's, and may all be busy.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

T = TypeVar("T")

# The calls of ``once_in_thread`` that are under way.
_under_way: Final[dict[Callable[[], Any], Future[Any]]] = {}


def in_thread(
    call: Callable[[], T], drop: Callable[[T], object] | None = None
) -> asyncio.Future[T]:
    """Starts the call. What awaits the future gets its result, or its error. If the future was
    cancelled, or its loop is closed by then, ``drop`` gets the result."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(done: Future[T]) -> None:
        try:
            loop.call_soon_threadsafe(_settle, future, done, drop)
        except RuntimeError:  # the loop is closed
            _drop(done, drop)

    done: Future[T] = Future()
    done.add_done_callback(tell)  # which does not hold ``done``: the loop would be in a circle
    _start(call, done)
    return future


async def once_in_thread(call: Callable[[], T]) -> T:
    """Awaits the call. However many coroutines, of any loop, await the same one at a time, it is
    called once. If one is cancelled, the call goes on for the others."""
    done: Future[T] | None = _under_way.get(call)
    if done is None:
        done = _under_way[call] = Future()
        done.add_done_callback(lambda _done: _under_way.pop(call, None))
        _start(call, done)
    return await asyncio.wrap_future(done)


def _start(call: Callable[[], T], done: Future[T]) -> None:
    done.set_running_or_notify_cancel()  # nothing that awaits it can cancel it

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - what awaits the future raises it
            done.set_exception(error)
        else:
            done.set_result(result)

    threading.Thread(target=run, name="forkq loop", daemon=True).start()


def _settle(future: asyncio.Future[T], done: Future[T], drop: Callable[[T], object] | None) -> None:
    error = done.exception()
    if future.cancelled():
        _drop(done, drop)
    elif error is None:
        future.set_result(done.result())
    else:
        future.set_exception(error)


def _drop(done: Future[T], drop: Callable[[T], object] | None) -> None:
    if drop is not None and done.exception() is None:
        drop(done.result())


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_under_way.clear)  # those threads are the parent's
