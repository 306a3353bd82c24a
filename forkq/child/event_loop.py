"""The one event loop of a child, in a thread of its own. It starts when a coroutine first needs it.

A job's coroutine is a task of the loop. A processor waits for its end; the consumer of an async
capsule hears of it by a callback. Both interrupt it through ``JobTask``. Fetching and the heartbeat
have other threads, so a coroutine that blocks the loop stops no lease.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from traceback import StackSummary
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..runtime.deadlines import DeadlineTable, StepCells
from ..runtime.log import LogOnce
from ..runtime.stack_dump import TaskStack, calls_in
from .job_task import JobTask, running_task
from .loop_watch import Blocks, LoopWatch, Step, Steps, name_of, step_in

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_GOES_ON: Final = (
    "a job has ended, and a task that it has started goes on: no one waits for it, and its errors "
    "fail no job; await it, or start it in a handler of startup"
)
_ENDED: Final = "the event loop was ended by an exception; it goes on"
# A loop that ends so often in a row, each time within so many seconds, will not run again.
_MOST_ENDS: Final = 10
_AT_ONCE: Final = 0.001
# Seconds for which the end of the loop waits for the tasks that it has cancelled.
_CLOSE_LIMIT: Final = 1.0


class LoopDied(Exception):
    """The event loop of the child has ended while the job ran in it."""


class Loop(Protocol):
    """Where a processor runs the coroutine of its job."""

    def begin(self, task: JobTask) -> None:
        """Begins it in a copy of the caller's context. Raises RuntimeError if there is no loop."""


class EventLoop:
    """Starts at the first call. ``cells``: the sequence of the unit whose step the loop does now
    (0: none), and when that has begun. ``blocks``: which steps have blocked the loop.
    ``watched``: a thread looks for them. Thread-safe."""

    def __init__(self, log: FilteringBoundLogger, *, watched: bool = True) -> None:
        self.cells: StepCells = [0, 0]
        self._note_thread: Callable[[int], None] = lambda thread: None
        self._log = log
        self._log_once = LogOnce(log)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closing = False
        self._tasks: set[JobTask] = set()
        self._calls: dict[object, Callable[[], object]] = {}  # that must not get lost
        self._has_jobs = threading.Event()
        self._is_watched = watched
        self._watch: LoopWatch | None = None
        self.blocks = Blocks()

    def note_in(self, table: DeadlineTable) -> None:
        """Has the loop, which has not started yet, note its steps where the master reads them."""
        self.cells, self._note_thread = table.step_cells, table.note_loop

    @property
    def thread(self) -> threading.Thread | None:
        """The thread of the loop; None while there is no loop."""
        return self._thread

    @property
    def tasks(self) -> tuple[JobTask, ...]:
        """The jobs that run in the loop."""
        return tuple(self._tasks.copy())

    def begin(self, task: JobTask) -> None:
        """Begins a job's coroutine, in a copy of the caller's context. Raises RuntimeError if the
        loop cannot be started."""
        with self._lock:
            self._add(task)
            self._started().call_soon_threadsafe(task.begin, self)

    def call(self, function: Callable[[], object]) -> None:
        """Has the loop call ``function``, which must not block. Does nothing if there is no
        loop."""
        with self._lock, suppress(RuntimeError):  # it was closed
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function)

    def call_started(self, function: Callable[[], object]) -> None:
        """Has the loop call ``function``, which must not block. If the loop dies before that, the
        next one calls it. Raises RuntimeError if the loop cannot be started."""
        key = object()
        with self._lock:
            loop = self._started()
            self._calls[key] = function
            self._has_jobs.set()  # perhaps: if the loop is blocked, the watch is to see it
            loop.call_soon_threadsafe(self._call, key)

    def start(self, function: Callable[[], Awaitable[object]]) -> Future[BaseException | None]:
        """Awaits ``function()`` in the loop. The result of the future is what it raised. Raises
        RuntimeError if the loop cannot be started."""

        async def call() -> BaseException | None:
            try:
                await function()
            except BaseException as error:  # noqa: BLE001 - a value from here on
                return error
            return None

        with self._lock:
            return asyncio.run_coroutine_threadsafe(call(), self._started())

    def run(self, function: Callable[[], Awaitable[object]]) -> None:
        """Awaits ``function()`` in the loop while this thread waits. Raises what it raises."""
        if (error := self.start(function).result()) is not None:
            raise error

    def close(self, limit: float = _CLOSE_LIMIT) -> None:
        """Cancels the tasks that are left, and ends the loop. It waits for at most ``limit``
        seconds."""
        self._closing = True
        with self._lock:
            loop, thread, watch = self._loop, self._thread, self._watch
        if loop is None or thread is None:
            return
        with suppress(RuntimeError):
            asyncio.run_coroutine_threadsafe(self._cancel_all(limit), loop)
        thread.join(2 * limit)
        if watch is not None:
            watch.join(limit)

    # In the loop's thread

    def begin_here(self, task: JobTask) -> None:
        """Begins a job's coroutine in this context."""
        self._add(task)
        task.begin(self)

    def _call(self, key: object) -> None:
        if (function := self._calls.pop(key, None)) is not None:
            function()

    def _add(self, task: JobTask) -> None:
        self._tasks.add(task)
        if not self._has_jobs.is_set():
            self._has_jobs.set()

    def leave(self, task: JobTask) -> None:
        """Forgets a job that has ended, and logs the tasks that it has left running, once for each
        place in the code."""
        self._tasks.discard(task)
        for child in task.children:
            if not child.done():
                name = getattr(child.get_coro(), "__qualname__", "?")
                known = {"class": task.view.payload.get("class"), "jid": task.view.jid}
                self._log_once.warning(name, _GOES_ON, **known, task=name)

    async def _cancel_all(self, limit: float) -> None:
        loop = asyncio.get_running_loop()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=limit)
        await loop.shutdown_asyncgens()
        loop.stop()

    def _started(self) -> asyncio.AbstractEventLoop:
        """The loop, which runs. The caller holds the lock."""
        if self._loop is None or self._loop.is_closed():
            loop = _new_loop()
            loop.set_task_factory(self._make_task)
            thread = threading.Thread(target=self._run, args=(loop,), name="loop", daemon=True)
            thread.start()
            self._loop, self._thread = loop, thread
            for key in tuple(self._calls):  # an earlier loop has left them
                loop.call_soon_threadsafe(self._call, key)
        return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        self._note_thread(threading.get_ident())
        self._begin_watch()
        at_once = 0  # how often it has ended as soon as it ran: one that is broken does
        try:
            while at_once < _MOST_ENDS and not loop.is_closed():
                began = time.monotonic()
                try:
                    loop.run_forever()
                except BaseException as error:  # noqa: BLE001 - a task has raised SystemExit, say
                    self._log_once.error(type(error).__name__, _ENDED, exc_info=error)
                else:
                    if self._closing:
                        return
                    self._log_once.error("stop", "the app has stopped the event loop; it goes on")
                at_once = at_once + 1 if time.monotonic() - began < _AT_ONCE else 0
        finally:
            self._abandon(loop)

    def _begin_watch(self) -> None:
        """Starts the watch for steps that block. Without a thread for it the loop goes on."""
        if not self._is_watched:
            return
        thread = threading.get_ident()
        of_loop = (self.cells, thread, self._has_jobs, self._tasks)
        watch = LoopWatch(*of_loop, self._log, self.blocks, self.call)
        try:
            watch.start()
        except RuntimeError as error:
            self._log.warning("no thread is left to watch the event loop", error=str(error))
        else:
            self._watch = watch

    def _abandon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends the jobs of a loop that runs no more. The next job starts another loop."""
        with self._lock:
            with suppress(Exception):  # it may be broken
                loop.close()  # before another one can have its descriptors
            self._loop = self._thread = None
            left, self._tasks = self._tasks, set()
            watch, self._watch = self._watch, None
            self._has_jobs = threading.Event()
        self._tell_end(watch)
        for task in left:
            task.end(LoopDied("the event loop of this child has ended"))
        with self._lock, suppress(RuntimeError):  # no thread is left: the next job tries again
            if self._calls and not self._closing:
                self._started()

    def _tell_end(self, watch: LoopWatch | None) -> None:
        if watch is not None:
            watch.end()
        self.blocks.end(time.monotonic())
        if not self._closing:
            self._log.error("the event loop runs no more; the next async job starts another one")

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> asyncio.Task[Any]:
        """The loop's task factory."""
        context = options.get("context")
        job = running_task.get() if context is None else context.get(running_task)
        if job is None or not job.sequence or type(coroutine) is Steps:
            return asyncio.Task(coroutine, loop=loop, **options)
        task = asyncio.Task(Steps(coroutine, job, self.cells), loop=loop, **options)
        job.note_child(task)
        return task


class LoopState:
    """What the jobs of a loop do now, for other threads that ask."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop

    @property
    def step(self) -> Step | None:
        """The step of a job that the loop does now."""
        return step_in(self._loop.cells)

    def callback(self, since: float) -> str:
        """The place of the callback of no job that has blocked the loop since then (monotonic), or
        for longer; "" if none has."""
        now, step = self._loop.blocks.now, self._loop.blocks.step
        if now is None or step is None or step.sequence or step.begun > since:
            return ""
        return now.place

    def name_of(self, sequence: int) -> tuple[str, str]:
        """The class and the jid of the job with that number."""
        return name_of(sequence, self._loop.tasks)

    def kept(self, sequence: int, since: float) -> float:
        """For how many seconds since then other jobs, or callbacks, have kept the job with that
        number from going on. 0 if it does not run in the loop."""
        kept = self._loop.blocks.kept(sequence, since)
        return kept if kept and self.runs(sequence) else 0.0

    def runs(self, sequence: int) -> bool:
        """Whether the job with that number runs in the loop."""
        return any(task.sequence == sequence for task in self._loop.tasks)

    def stacks(self) -> dict[int, list[TaskStack]]:
        """Where the tasks of each job are, by the sequence number of its unit."""
        found = {task.sequence: task.stacks() for task in self._loop.tasks}
        step, thread = self.step, self._loop.thread
        if step is not None and thread is not None:
            calls = calls_in(thread.ident or 0)
            if step == self.step:
                found[step.sequence] = [TaskStack("", calls)]
        return found

    def calls_of(self, sequence: int) -> StackSummary:
        """Where the job with that number is, outermost call first; empty if it does not run
        here."""
        stacks = self.stacks().get(sequence)
        return stacks[0].calls if stacks else StackSummary()


def _new_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop where that is installed."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.new_event_loop()
    made: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return made
