"""The steps of the coroutines of jobs: each notes whose it is and when it begins. A thread names
the job whose step blocks the event loop, or the callback of no job, while all coroutines wait.

The thread reads what is noted, so steps cost nothing more. It sleeps while no job runs in the loop.
"""

from __future__ import annotations

import asyncio.base_events
import asyncio.events
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from time import monotonic_ns
from traceback import StackSummary
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ..runtime.app_frames import is_apps, is_own
from ..runtime.assignment import exit_job_fork, is_job_fork
from ..runtime.deadlines import StepCells
from ..runtime.stack_dump import calls_in, in_app, place_of
from ..wire.lease import Blocking
from ..wire.times import now as epoch
from .job_task import Around

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# In seconds. A step that takes so long blocks the loop. It is looked at so soon after it has begun.
TOO_LONG: Final = 0.2
_LATER: Final = 0.002
# How often a place in the code is logged.
_LOG_EVERY: Final = 60.0
_MOST_PLACES: Final = 1000
_BLOCKS: Final = "a job blocks the event loop: the other coroutines of this child wait"
_CALLBACK_BLOCKS: Final = (
    "a callback of no job blocks the event loop: the coroutines of this child wait"
)
# Where asyncio waits, and calls callbacks; uvloop does so without a frame of Python.
_DRIVING: Final = (asyncio.base_events.__file__, asyncio.events.__file__, selectors.__file__)
# What blocks the loop for so many seconds is told at once, with a heartbeat of its own.
_TELL_AFTER: Final = 1.0
# How many steps that have blocked the loop are remembered.
_MOST_BLOCKS: Final = 1000


class Step(NamedTuple):
    """A step of a coroutine that the loop does now: the ``sequence`` of its unit (0: a callback of
    no job), and when it has ``begun`` (monotonic)."""

    sequence: int
    begun: float

    def took(self, now: float) -> float:
        """For how many seconds it lasts."""
        return now - self.begun


def step_in(cells: StepCells) -> Step | None:
    """The step that the loop does now; None if it does none of a job."""
    while sequence := cells[0]:
        begun = cells[1]
        if cells[0] == sequence and cells[1] == begun:
            return Step(sequence, begun / 1e9)
    return None


class StepsOf(Protocol):
    """The job whose steps are noted. ``sequence``: that of its unit; 0 once it has ended."""

    @property
    def sequence(self) -> int: ...

    @property
    def name(self) -> tuple[str, str]:
        """The class and the jid of the job."""


class Steps(Around):
    """The coroutine of a task that a job has started. Each step notes in ``cells`` whose it is, and
    when it begins."""

    __slots__ = ("_cells", "_job")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], job: StepsOf, cells: StepCells) -> None:
        self._coroutine = coroutine
        self._job = job
        self._cells = cells

    def send(self, value: Any, /) -> Any:
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._coroutine.throw, *error)

    def _step(self, advance: Callable[..., Any], *value: Any) -> Any:
        cells = self._cells
        before = cells[0]  # not 0 where one step begins a task eagerly
        cells[1] = monotonic_ns()
        cells[0] = self._job.sequence
        error: BaseException | None = None
        try:
            return advance(*value)
        except BaseException as raised:
            error = raised
            raise
        finally:
            cells[0] = before
            if is_job_fork():
                _end_fork(error)
            del error


def _end_fork(error: BaseException | None) -> None:
    """Ends this process, which is a copy that the job has forked: it must run no step of another
    job."""
    exit_job_fork(None if isinstance(error, StopIteration) else error)


def _in_callback(calls: StackSummary) -> StackSummary:
    """The calls of a callback, which comes first, among all ``calls`` of the loop's thread; none if
    the loop waits."""
    files = [call.filename for call in calls]
    own = [number for number, file in enumerate(files) if is_own(file)]
    first = own[0] if own else len(files)  # where the thread of the loop has it run
    while first < len(files) and (first == own[0] or files[first] in _DRIVING):
        first += 1
    return StackSummary.from_list(calls[first:])


def name_of(sequence: int, jobs: Iterable[StepsOf]) -> tuple[str, str]:
    """The class and the jid of the job with that number; "?" if it has just ended."""
    return next((job.name for job in jobs if job.sequence == sequence), ("?", "?"))


class Blocks:
    """The steps that have blocked the loop, as the watch has seen them. ``now``: the job, or the
    callback, that blocks it, and ``step``, what it does. ``listeners`` are called once that has
    lasted for a second, and when it has ended then. Thread-safe: the watch notes, others ask."""

    def __init__(self) -> None:
        self.now: Blocking | None = None
        self.step: Step | None = None
        self.listeners: list[Callable[[], object]] = []
        self._is_told = False
        self._steps: deque[tuple[Step, float]] = deque(maxlen=_MOST_BLOCKS)

    def see(self, step: Step, job: str, jid: str, place: str, now: float) -> None:
        """Notes what blocks the loop now (monotonic)."""
        if self.step is None:
            self.now = Blocking(step.sequence, job, jid, place, epoch() - step.took(now))
            self.step = step
        self.note(step, now)
        if not self._is_told and step.took(now) >= _TELL_AFTER:
            self._is_told = True
            self._tell()

    def end(self, now: float) -> None:
        """Notes that nothing blocks the loop any more."""
        # The loop's own thread and the watch may both see the end.
        step, self.step = self.step, None
        if step is not None:
            self.note(step, now)
        self.now = None
        if self._is_told:
            self._is_told = False
            self._tell()

    def _tell(self) -> None:
        for tell in self.listeners:
            tell()

    def note(self, step: Step, until: float) -> None:
        """Notes that ``step`` has lasted until then (monotonic), at least."""
        if self._steps and self._steps[-1][0] == step:
            self._steps[-1] = (step, until)
        else:
            self._steps.append((step, until))

    def kept(self, sequence: int, since: float) -> float:
        """For how many seconds since then others than the job with that number blocked the
        loop."""
        ends = ((step, until) for step, until in self._steps.copy() if step.sequence != sequence)
        return sum(max(0.0, until - max(step.begun, since)) for step, until in ends)


class LoopWatch:
    """``cells``: where the loop notes its steps; ``thread``: that of the loop; ``jobs``: those that
    run in it. The loop sets ``has_jobs`` when one begins. ``call`` has the loop call a function,
    which shows that no callback blocks it. What blocks it is noted in ``blocks``."""

    def __init__(
        self,
        cells: StepCells,
        thread: int,
        has_jobs: threading.Event,
        jobs: Collection[StepsOf],
        log: FilteringBoundLogger,
        blocks: Blocks,
        call: Callable[[Callable[[], object]], object],
    ) -> None:
        self._blocks = blocks
        self._call = call
        self._question = self._answered = 0  # the number of the last one
        self._asked_at = 0.0
        self._steps_then = 0  # what the cells said of the last step
        self._cells = cells
        self._loop_thread = thread
        self._has_jobs = has_jobs
        self._jobs = jobs
        self._log = log
        self._is_over = threading.Event()
        self._logged: dict[tuple[str, str], float] = {}  # when, by place
        self._thread = threading.Thread(target=self._run, name="loop-watch", daemon=True)

    def start(self) -> None:
        """Starts the thread. Raises RuntimeError if the system has none left."""
        self._thread.start()

    def end(self) -> None:
        """Ends the thread soon."""
        self._is_over.set()
        self._has_jobs.set()

    def join(self, timeout: float) -> None:
        """Waits for the end of the thread."""
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._is_over.wait(self._pause()):
            if not self._jobs and self._blocks.step is None and self._question == self._answered:
                self._has_jobs.clear()
                if self._jobs or self._is_over.is_set():  # since then
                    self._has_jobs.set()
            self._has_jobs.wait()

    def _pause(self) -> float:
        """Looks. A look that fails, since the log cannot be written for example, ends no watch."""
        try:
            return self.look()
        except Exception as error:  # noqa: BLE001 - the next look may do better
            with suppress(Exception):
                self._log.error("a look at the event loop has failed", error=repr(error))
            return _LOG_EVERY

    def look(self) -> float:
        """Logs what blocks the loop, if anything does. Returns after how many seconds to look
        again: when the step that it sees will have lasted for too long."""
        now, step = time.monotonic(), step_in(self._cells)
        told = self._blocks.step
        if told is not None and (step or self._callback()) != told:
            self._blocks.end(now)
        if step is None:
            self._look_at_callbacks(now)
            return TOO_LONG
        if step.took(now) < TOO_LONG:
            return TOO_LONG + _LATER - step.took(now)
        self._tell_of_job(step, now)
        return TOO_LONG

    def _tell_of_job(self, step: Step, now: float) -> None:
        calls, name = calls_in(self._loop_thread), name_of(step.sequence, tuple(self._jobs))
        if not calls or step_in(self._cells) != step:
            return  # it has just ended: the stack may be that of another one
        last = next((call for call in reversed(calls) if is_apps(call.filename)), calls[-1])
        self._blocks.see(step, *name, place_of(last), now)
        if self._may_log((last.filename, last.name), now):
            known = {"class": name[0], "jid": name[1], "seconds": round(step.took(now), 3)}
            self._log.warning(_BLOCKS, **known, stack=in_app(calls))

    def _look_at_callbacks(self, now: float) -> None:
        """Logs what the loop calls, if it has answered no question for too long, and no job has
        done a step since that."""
        if self._question == self._answered:
            self._question += 1
            self._asked_at, self._steps_then = now, self._cells[1]
            self._call(partial(self._answer, self._question))
        elif (callback := self._callback()) is None:  # it goes on, with very many tasks
            self._asked_at, self._steps_then = now, self._cells[1]
        elif callback.took(now) >= TOO_LONG:
            self._tell_of_callback(callback, now)

    def _callback(self) -> Step | None:
        """What the loop does since it was asked, if it has not answered, nor done a step."""
        is_asked = self._question != self._answered and self._steps_then == self._cells[1]
        return Step(0, self._asked_at) if is_asked else None

    def _answer(self, question: int) -> None:
        self._answered = question

    def _tell_of_callback(self, callback: Step, now: float) -> None:
        calls = _in_callback(calls_in(self._loop_thread))
        if not calls or is_own(calls[0].filename) or self._question == self._answered:
            return
        called = calls[0]
        self._blocks.see(callback, "", "", place_of(called), now)
        if self._may_log((called.filename, called.name), now):
            known = {"function": place_of(called), "seconds": round(callback.took(now), 3)}
            self._log.warning(_CALLBACK_BLOCKS, **known, stack=in_app(calls))

    def _may_log(self, place: tuple[str, str], now: float) -> bool:
        """Notes that the place is logged now, unless it was within a minute."""
        if now - self._logged.get(place, -_LOG_EVERY) < _LOG_EVERY:
            return False
        if len(self._logged) >= _MOST_PLACES:
            self._logged.clear()
        self._logged[place] = now
        return True
