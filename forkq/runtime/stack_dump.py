"""Logs the stack of every thread: how a child or a clock answers ``DumpStacks``."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from ..wire.lease import UnitOfWork
from ..wire.printable import class_and_jid
from .app_frames import is_apps, is_own

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


_MOST_CALLS: Final = 5
# How many jobs a line names that wait at the same place.
_MOST_JOBS: Final = 10
_PROCESSOR: Final = "processor-"


class TaskStack(NamedTuple):
    """Where a task of a job is: its ``calls``, outermost first. ``name``: that of a task that the
    job has started; "" for its own."""

    name: str
    calls: traceback.StackSummary


# The stacks of the tasks of each job, by the sequence number of its lease.
TaskStacks: TypeAlias = Mapping[int, Sequence[TaskStack]]


class _Thread(msgspec.Struct, frozen=True):
    """One thread, and its calls, outermost first. ``unit``: the job that it runs; ``waits``: for
    the task of that job."""

    name: str
    unit: UnitOfWork | None
    calls: traceback.StackSummary
    waits: bool = False

    @property
    def is_idle_processor(self) -> bool:
        return self.unit is None and self.name.startswith(_PROCESSOR)

    @property
    def is_apps(self) -> bool:
        """Whether the thread runs a job or code of the app that forkq has called, or is one that
        the app has started."""
        return self.unit is not None or self._first_of_app is not None

    @property
    def _first_of_app(self) -> int | None:
        """The number of the first call of the app. In the main thread the calls before forkq's are
        of the program that has started forkq."""
        own = [number for number, call in enumerate(self.calls) if is_own(call.filename)]
        app = [number for number, call in enumerate(self.calls) if is_apps(call.filename)]
        if not own:
            return app[0] if app else None
        before = [] if self.name == "MainThread" else [n for n in app if n < own[0]]
        after = app if self.unit is not None else [n for n in app if n > own[-1]]
        return next(iter([*before, *after]), None)

    def log(self, log: FilteringBoundLogger) -> None:
        """Logs the calls from the first call of the app on: what forkq calls before that is always
        the same."""
        calls, unit = self.calls[self._first_of_app or 0 :], self.unit
        job = class_and_jid(unit.payload) if unit else None
        log.warning("stack", thread=self.name, job=job, stack=_text(calls))


def calls_in(thread: int) -> traceback.StackSummary:
    """The calls of one thread, outermost first; none if it has ended."""
    frame = sys._current_frames().get(thread)
    return traceback.extract_stack(frame) if frame else traceback.StackSummary()


def calls_of_coroutine(coroutine: object) -> traceback.StackSummary:
    """Where a coroutine waits, which does no step now: its calls, outermost first."""
    frames: list[tuple[FrameType, int]] = []
    step: Any = coroutine
    while step is not None:
        frame = getattr(step, "cr_frame", None) or getattr(step, "gi_frame", None)
        if frame is not None:
            frames.append((frame, frame.f_lineno))
        step = getattr(step, "cr_await", None) or getattr(step, "gi_yieldfrom", None)
    return traceback.StackSummary.extract(iter(frames))


def in_app(calls: traceback.StackSummary) -> str:
    """The text of ``calls`` from the first one of the app on; of all if there is none."""
    own = [number for number, call in enumerate(calls) if is_apps(call.filename)]
    return _text(calls[own[0] if own else 0 :])


def dump_stacks(
    units: Iterable[UnitOfWork], log: FilteringBoundLogger, tasks: TaskStacks | None = None
) -> None:
    """Logs what each thread does. First the stacks of the threads that run ``units``, the longest
    run first, and of the ``tasks`` of their coroutines; then those of the app's other threads; then
    in one line each how many processors are idle, and where forkq's own threads are."""
    known, running = tasks or {}, list(units)
    threads = sorted(
        _threads(running, known), key=lambda one: one.unit.taken if one.unit else float("inf")
    )
    shown = [thread for thread in threads if thread.is_apps and not thread.waits]
    for thread in shown:
        if thread.unit is not None:
            thread.log(log)
    _log_tasks(running, known, log)
    for thread in shown:
        if thread.unit is None:
            thread.log(log)
    _log_own(threads, log)


def _log_own(threads: Sequence[_Thread], log: FilteringBoundLogger) -> None:
    """Logs how many processors are idle, and where forkq's own threads are."""
    if idle := sum(thread.is_idle_processor and not thread.is_apps for thread in threads):
        log.warning("idle processors", processors=idle)
    own = [one for one in threads if not (one.is_apps or one.is_idle_processor or one.waits)]
    if own:
        calls = "\n".join(f"{one.name}: {innermost(one.calls)}" for one in own)
        log.warning("forkq's own threads", calls=calls)


def _log_tasks(units: Iterable[UnitOfWork], tasks: TaskStacks, log: FilteringBoundLogger) -> None:
    """Logs where the coroutines of these jobs are, the longest run first: a line for each place,
    with the first of the jobs that are there."""
    jobs: dict[str, list[str]] = {}
    for unit in sorted(units, key=lambda unit: unit.taken):
        for task in tasks.get(unit.sequence, ()):
            of_task = f" (its task {task.name})" if task.name else ""
            jobs.setdefault(in_app(task.calls), []).append(class_and_jid(unit.payload) + of_task)
    for stack, names in jobs.items():
        more = len(names) - _MOST_JOBS
        shown = ", ".join(names[:_MOST_JOBS]) + (f" and {more} more" if more > 0 else "")
        log.warning("stack", tasks=len(names), job=shown, stack=stack)


def _threads(units: Iterable[UnitOfWork], tasks: TaskStacks) -> Iterator[_Thread]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    running = {unit.thread: unit for unit in units}
    for ident, frame in sys._current_frames().items():
        unit, name = running.get(ident), names.get(ident, "?")
        waits = unit is not None and unit.sequence in tasks
        yield _Thread(name, unit, traceback.extract_stack(frame), waits)


def _text(calls: Iterable[traceback.FrameSummary]) -> str:
    return "".join(traceback.format_list(list(calls))).rstrip()


def innermost(calls: traceback.StackSummary) -> str:
    """The innermost calls in one line, the innermost first."""
    last = reversed(calls[-_MOST_CALLS:])
    return " < ".join(map(place_of, last))


def place_of(call: traceback.FrameSummary) -> str:
    """The function of a call, and the line at which it is."""
    return f"{call.name} ({call.filename}:{call.lineno})"
