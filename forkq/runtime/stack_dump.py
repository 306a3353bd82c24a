"""Logs the stack of every thread: how a child or a clock answers ``DumpStacks``."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ..wire.lease import UnitOfWork
from ..wire.printable import class_and_jid

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


_MOST_CALLS: Final = 5


def stack_of(thread: int) -> str:
    """The stack of one thread, as in a traceback; "" if it has ended."""
    frame = sys._current_frames().get(thread)
    return "".join(traceback.format_stack(frame)) if frame else ""


def calls_of(thread: int) -> str:
    """The innermost calls of a thread in one line, the innermost first."""
    frame = sys._current_frames().get(thread)
    stack = traceback.extract_stack(frame)[-_MOST_CALLS:] if frame else []
    return " < ".join(f"{call.name} ({call.filename}:{call.lineno})" for call in reversed(stack))


def dump_stacks(units: Iterable[UnitOfWork], log: FilteringBoundLogger) -> None:
    """Logs the stack of each thread, and the job of ``units`` that it runs."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    running = {unit.thread: unit for unit in units}
    for ident, frame in sys._current_frames().items():
        unit = running.get(ident)
        log.warning(
            "stack",
            thread=names.get(ident, "?"),
            job=class_and_jid(unit.payload) if unit else None,
            stack="".join(traceback.format_stack(frame)),
        )
