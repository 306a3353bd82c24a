"""The master's watchdog: finds children, and a clock, that send no facts any more."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..runtime.liveness import STOPPED, kernel_state
from .child_handle import ChildHandle

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class Watchdog:
    """A child is silent when no fact has come from it for ``limit`` seconds; that is logged once.

    A child that is not ready yet loads the app, and sends no facts meanwhile.
    """

    def __init__(
        self, by_pid: Mapping[int, ChildHandle], limit: float, log: FilteringBoundLogger
    ) -> None:
        self._by_pid = by_pid
        self._limit = limit
        self._log = log
        self._checked_at = time.monotonic()

    def check(self) -> None:
        """Checks every child. Called by the loop, after it has read the facts."""
        now = time.monotonic()
        # The master itself was stopped, perhaps with all its children: they get time to report.
        master_was_stopped = now - self._checked_at > self._limit / 2
        self._checked_at = now
        for child in self._by_pid.values():
            if child.silent_since is not None:
                self._check_return(child, child.silent_since)
            elif master_was_stopped:
                child.told.heard_at = now
            elif child.was_ready and not child.frozen and now - child.told.heard_at >= self._limit:
                self._handle_silence(child, now)

    def _check_return(self, child: ChildHandle, since: float) -> None:
        if child.told.heard_at > since:
            child.silent_since = None
            seconds = round(child.told.heard_at - since)
            self._log.warning("child is back", child=child.name, pid=child.pid, silent_for=seconds)

    def _handle_silence(self, child: ChildHandle, now: float) -> None:
        child.silent_since = child.told.heard_at
        state = kernel_state(child.pid)
        stopped = state in STOPPED
        self._log.warning(
            "child is silent",
            child=child.name,
            pid=child.pid,
            silent_for=round(now - child.told.heard_at),
            process=state,
            hint=f"kill -CONT {child.pid} lets it go on" if stopped else "its stacks follow",
        )
        if not stopped:  # a stopped child would write them only when it goes on
            child.signal_stacks()
