"""The coroutine of one job as a task of an event loop: its steps are noted, it can be interrupted,
and what it raises is a value.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from contextvars import ContextVar
from time import monotonic_ns
from typing import Any, Final, Protocol

from ..current_job import CurrentJob, Reason, note_ending
from ..errors import Cancelled, LeaseLost, Shutdown, TimeLimit, led_to
from ..runtime.assignment import exit_job_fork, is_job_fork
from ..runtime.deadlines import StepCells
from ..runtime.stack_dump import TaskStack, calls_of_coroutine

# Where Python can (from 3.12 on), a job does its first step at once: one that never waits is then
# gone before the next one begins, and the loop has no task to schedule.
_EAGER: Final[Mapping[str, Any]] = {"eager_start": True} if sys.version_info >= (3, 12) else {}
# Where the steps of a coroutine are noted that no loop of a child runs.
_UNREAD: Final[StepCells] = [0, 0]
# What an interruption is outside of the job.
_OUTSIDE: Final[Mapping[Reason, type[BaseException]]] = {
    "shutdown": Shutdown,
    "time_limit": TimeLimit,
    "cancelled": Cancelled,
    "lease_lost": LeaseLost,
}


class TaskHome(Protocol):
    """The loop in which the coroutine of a job runs. ``cells``: where each step is noted."""

    cells: StepCells

    def call(self, function: Callable[[], object]) -> None:
        """Has the loop call ``function``, which must not block."""

    def leave(self, task: JobTask) -> None:
        """Hears, in the loop's thread, that a job has ended."""


class Around(Coroutine[Any, Any, Any]):
    """Stands around a coroutine. What it does not do itself it leaves to that one, so that tools
    see it."""

    __slots__ = ("_coroutine",)

    _coroutine: Coroutine[Any, Any, Any]

    def close(self) -> None:
        """Ends the coroutine. It takes no lock: Python's garbage collector closes what a dead loop
        has left, in a thread that may hold one."""
        self._coroutine.close()

    def __await__(self) -> Any:
        return self._coroutine.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)


class JobTask(Around):
    """The coroutine of one job, as the loop's task sees it. It notes each step, and keeps what the
    job raises: a task that raises SystemExit would end its loop.

    ``ended`` is called in the loop's thread once it has ended: ``error`` is what it raised, and
    ``result`` what it returned. ``sequence``: that of the unit; 0 once the job has ended.
    ``task`` drives it while it runs. ``children``: the tasks that the job has started and that go
    on.
    """

    __slots__ = (
        "_cells",
        "_ended",
        "_has_begun",
        "_home",
        "_told",
        "_why",
        "children",
        "error",
        "result",
        "sequence",
        "task",
        "view",
    )

    def __init__(
        self,
        coroutine: Awaitable[Any],
        view: CurrentJob,
        sequence: int,
        ended: Callable[[JobTask], None],
    ) -> None:
        self.view = view
        self.sequence = sequence
        self.error: BaseException | None = None
        self.result: Any = None
        self._coroutine: Any = coroutine if hasattr(coroutine, "send") else _awaited(coroutine)
        self._ended = ended
        self._has_begun = False
        self._home: TaskHome | None = None
        self._cells: StepCells = _UNREAD
        self.task: asyncio.Task[None] | None = None
        self._told: Reason | None = None
        self._why: Reason | None = None
        self.children: Collection[asyncio.Task[Any]] = ()

    def interrupt(self, why: Reason) -> None:
        """Cancels the task; ``current_job().ending`` says why. Any thread may call."""
        note_ending(self.view, why)
        self._why = why
        if self._home is not None:
            self._home.call(self._cancel)

    @property
    def name(self) -> tuple[str, str]:
        """The class and the jid of the job."""
        return str(self.view.payload.get("class")), str(self.view.jid)

    @property
    def was_interrupted(self) -> bool:
        """Whether the coroutine was told of an interruption."""
        return self._told is not None or not self._has_begun

    def stacks(self) -> list[TaskStack]:
        """Where the coroutine waits, and where the tasks wait that it has started."""
        own = TaskStack("", calls_of_coroutine(self._coroutine))
        children = ((one.get_name(), one.get_coro()) for one in tuple(self.children))
        return [own, *(TaskStack(name, calls_of_coroutine(each)) for name, each in children)]

    def note_child(self, task: asyncio.Task[Any]) -> None:
        """Notes a task that the job has started."""
        if not isinstance(self.children, set):
            self.children = set()
        self.children.add(task)
        task.add_done_callback(self.children.discard)

    def begin(self, home: TaskHome) -> None:
        """Begins the task in the loop of this thread, in the context of the job. The loop's task
        factory is not asked: that is for the tasks which jobs start."""
        running_task.set(self)
        self._home, self._cells, job = home, home.cells, self.view.payload
        name = f"{job.get('class')} {job.get('jid', '')}"
        task = asyncio.Task(self, loop=asyncio.get_running_loop(), name=name, **_EAGER)
        if self.sequence:  # else that was all of it
            self.task = task

    # What the task does with the coroutine

    def send(self, value: Any, /) -> Any:
        """Does a step. Each step of each job comes through here: it is ``_step`` in one call."""
        if not self._has_begun:
            self._note_begin()
        cells = self._cells
        before = cells[0]  # not 0 where one step begins a task eagerly
        cells[1] = monotonic_ns()
        cells[0] = self.sequence
        try:
            return self._coroutine.send(value)
        except StopIteration as end:
            self.result = end.value
            self.end(None)
        except BaseException as error:  # noqa: BLE001 - a value from here on
            self.end(error)
        finally:
            cells[0] = before
            if is_job_fork():
                exit_job_fork(self.error)
        raise StopIteration

    def throw(self, *error: Any) -> Any:
        """Does a step that begins with an exception, such as a CancelledError."""
        self.end_before_it_began()
        return self._step(self._coroutine.throw, *error)

    def _note_begin(self) -> None:
        if self._why is not None:  # it was interrupted before
            self.end_before_it_began()
            raise StopIteration
        self._has_begun = True

    def _step(self, advance: Callable[..., Any], *value: Any) -> Any:
        cells = self._cells
        before = cells[0]  # not 0 where one step begins a task eagerly
        cells[1] = monotonic_ns()
        cells[0] = self.sequence
        try:
            return advance(*value)
        except StopIteration as end:
            self.result = end.value
            self.end(None)
        except BaseException as error:  # noqa: BLE001 - a value from here on
            self.end(error)
        finally:
            cells[0] = before
            if is_job_fork():
                exit_job_fork(self.error)
        raise StopIteration

    @property
    def outcome(self) -> BaseException | None:
        """What the end of the job means outside of it, where an interruption is no CancelledError
        any more."""
        return None if self.error is None else outside_of_job(self.error, self.view.ending)

    def end(self, error: BaseException | None) -> None:
        """Ends the job with ``error``, or well. Does nothing if its end was told before."""
        if self.sequence:
            self.error = error
            self._tell()

    def end_before_it_began(self) -> None:
        """Ends the job: its task is cancelled before its first step. Later it changes nothing."""
        if not self._has_begun:
            self.end(CancelledError())

    def _cancel(self) -> None:
        if self._has_begun and self.task is not None and self._told != self._why:
            self._told = self._why
            self.task.cancel()

    def _tell(self) -> None:
        """Tells of the end, and lets go of what refers to this: a circle would be left to Python's
        garbage collector, which has many objects to look at while many jobs run."""
        self.sequence = 0
        if not self._has_begun:
            self._coroutine.close()
        if self._home is not None:
            self._home.leave(self)
        ended, self._ended, self.task = self._ended, _ignore, None
        ended(self)


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def outside_of_job(error: BaseException, why: Reason | None) -> BaseException:
    """What ``error`` of a job's coroutine means outside of it, if the job was interrupted for that
    reason."""
    if why is None:
        return error
    was_cut_short = any(isinstance(link, CancelledError) for link in led_to(error))
    if isinstance(error, CancelledError) or (why == "cancelled" and was_cut_short):
        return _OUTSIDE[why]().with_traceback(error.__traceback__)
    return error


def _ignore(_: JobTask) -> None:
    """Instead of what is told of the end, once it is told."""


running_task: Final[ContextVar[JobTask | None]] = ContextVar("forkq_task", default=None)
