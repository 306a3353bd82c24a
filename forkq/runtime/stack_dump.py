"""Logs the stack of every thread: how a child or a clock answers ``DumpStacks``."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from ..wire.lease import UnitOfWork
from ..wire.printable import class_and_jid
from .app_frames import is_apps, is_own

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


_MOST_CALLS: Final = 5
_PROCESSOR: Final = "processor-"


class _Thread(msgspec.Struct, frozen=True):
    """One thread, and its calls, outermost first. ``unit``: the job that it runs."""

    name: str
    unit: UnitOfWork | None
    calls: traceback.StackSummary

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
        log.warning(
            "stack",
            thread=self.name,
            job=class_and_jid(unit.payload) if unit else None,
            stack="".join(traceback.format_list(calls)).rstrip(),
        )


def stack_of(thread: int) -> str:
    """The stack of one thread, as in a traceback; "" if it has ended."""
    frame = sys._current_frames().get(thread)
    return "".join(traceback.format_stack(frame)) if frame else ""


def calls_of(thread: int) -> str:
    """The innermost calls of a thread in one line, the innermost first."""
    frame = sys._current_frames().get(thread)
    return _in_one_line(traceback.extract_stack(frame)) if frame else ""


def dump_stacks(units: Iterable[UnitOfWork], log: FilteringBoundLogger) -> None:
    """Logs what each thread does. First the stacks of the threads that run ``units``, the longest
    run first; then those of the app's other threads; then in one line each how many processors are
    idle, and where forkq's own threads are."""
    threads = sorted(_threads(units), key=lambda one: one.unit.taken if one.unit else float("inf"))
    for thread in threads:
        if thread.is_apps:
            thread.log(log)
    if idle := sum(thread.is_idle_processor and not thread.is_apps for thread in threads):
        log.warning("idle processors", processors=idle)
    own = [one for one in threads if not (one.is_apps or one.is_idle_processor)]
    if own:
        calls = "\n".join(f"{one.name}: {_in_one_line(one.calls)}" for one in own)
        log.warning("forkq's own threads", calls=calls)


def _threads(units: Iterable[UnitOfWork]) -> Iterator[_Thread]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    running = {unit.thread: unit for unit in units}
    for ident, frame in sys._current_frames().items():
        yield _Thread(names.get(ident, "?"), running.get(ident), traceback.extract_stack(frame))


def _in_one_line(calls: traceback.StackSummary) -> str:
    innermost = reversed(calls[-_MOST_CALLS:])
    return " < ".join(f"{call.name} ({call.filename}:{call.lineno})" for call in innermost)
