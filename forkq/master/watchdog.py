"""The master's watchdog: notices a child or a clock that sends nothing any more."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import psutil

from .child_handle import ChildHandle

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_STOPPED: Final = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


class Watchdog:
    """Calls a child silent after ``limit`` seconds without a fact from it, and says so once.

    A child that has not been ready yet loads the app, and sends nothing meanwhile.
    """

    def __init__(
        self, children: Mapping[int, ChildHandle], limit: float, log: FilteringBoundLogger
    ) -> None:
        self._children = children
        self._limit = limit
        self._log = log
        self._looked_at = time.monotonic()

    def look(self) -> None:
        """Judges every child. Called by the loop, after it has heard them."""
        now = time.monotonic()
        # The master was stopped itself, perhaps with all its children: they get time to speak.
        unjust = now - self._looked_at > self._limit / 2
        self._looked_at = now
        for child in self._children.values():
            if child.silent_since is not None:
                self._look_for_return(child)
            elif unjust:
                child.heard_at = now
            elif child.was_ready and not child.frozen and now - child.heard_at >= self._limit:
                self._call_silent(child, now)

    def _look_for_return(self, child: ChildHandle) -> None:
        since = child.silent_since
        if since is not None and child.heard_at > since:
            child.silent_since = None
            seconds = round(child.heard_at - since)
            self._log.warning("child is back", child=child.name, pid=child.pid, silent_for=seconds)

    def _call_silent(self, child: ChildHandle, now: float) -> None:
        child.silent_since = child.heard_at
        state = child.process_state()
        stopped = state in _STOPPED
        self._log.warning(
            "child is silent",
            child=child.name,
            pid=child.pid,
            silent_for=round(now - child.heard_at),
            process=state,
            hint=f"kill -CONT {child.pid} lets it go on" if stopped else "its stacks follow",
        )
        if not stopped:  # it would write them when it goes on
            child.signal_stacks()
