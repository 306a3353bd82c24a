"""Where the coroutines of jobs run in a test: in the loop of the test, or in one of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..child.event_loop import Loop
    from ..child.job_task import JobTask
    from ..runtime.deadlines import StepCells


class LoopHere:
    """Runs each coroutine to its end in the thread that begins it. All have one loop: they may
    share what belongs to one."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, task: JobTask) -> None:
        """Runs the coroutine. One that pushes another one, which runs at once, waits for it in
        this very thread: the inner one has a loop of its own."""
        if self._loop is not None and self._loop.is_running():
            inner = LoopHere()
            try:
                inner.begin(task)
            finally:
                inner.close()
            return
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(task)

    def close(self) -> None:
        """Cancels the tasks that are left, and ends the loop."""
        loop, self._loop = self._loop, None
        if loop is not None:
            call_without_loop(lambda: _close(loop))


def _close(loop: asyncio.AbstractEventLoop) -> None:
    async def end() -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await loop.shutdown_asyncgens()
        await loop.shutdown_default_executor()

    try:
        loop.run_until_complete(end())
    finally:
        loop.close()


class LoopOfTest:
    """Runs each coroutine as a task of the loop in which the test runs, which waits for it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.cells: StepCells = [0, 0]  # of its steps, which no one reads

    def begin(self, task: JobTask) -> None:
        """Begins the coroutine."""
        self._loop.call_soon_threadsafe(task.begin, self)

    def call(self, function: Callable[[], object]) -> None:
        """Has the loop call ``function``."""
        self._loop.call_soon_threadsafe(function)

    def leave(self, task: JobTask) -> None:
        """Does nothing: the tasks that a job leaves are the test's to find."""


_current: Final[ContextVar[LoopHere | LoopOfTest | None]] = ContextVar(
    "forkq_loop_of_test", default=None
)


@contextmanager
def one_loop() -> Iterator[Loop]:
    """Gives all coroutines of the block one loop. That of a block around this one comes first."""
    if (outer := _current.get()) is not None:
        yield outer
        return
    loop = LoopHere()
    token = _current.set(loop)
    try:
        yield loop
    finally:
        _current.reset(token)
        loop.close()


@contextmanager
def in_loop_of_test() -> Iterator[None]:
    """Lets all coroutines of the block run in the loop that runs now."""
    token = _current.set(LoopOfTest())
    try:
        yield
    finally:
        _current.reset(token)


def is_elsewhere() -> bool:
    """Whether the test runs in a loop, and jobs in another thread."""
    return isinstance(_current.get(), LoopOfTest)


def call_without_loop(call: Callable[[], None]) -> None:
    """Runs ``call`` in a thread without an event loop: a job may use ``asyncio.run``."""
    if not runs_in_loop():
        call()
        return
    helper = threading.Thread(target=call, name="forkq.testing")
    helper.start()
    helper.join()


def runs_in_loop() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
