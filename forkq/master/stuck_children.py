"""Kills children that can do no work: their boot takes too long, or their process lives although
it has closed its pipes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from ..runtime.pipe import Unbootable
from .child_handle import ChildHandle
from .children import Children

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Seconds that a process may take to end after its end of the report pipe was closed, or after a
# booting child was told to stop.
_END_LIMIT: Final = 1.0
# Seconds that a child which hangs in its boot has to log its stacks; then, if its interpreter
# hangs, too, to write them from a signal handler.
_STACKS_LIMIT: Final = 1.0


class StuckChildren:
    """Made once by the master, which calls ``kill_overdue`` in each turn of its loop.
    ``boot_timeout`` is in seconds; 0 is no limit."""

    def __init__(self, children: Children, boot_timeout: float, log: FilteringBoundLogger) -> None:
        self._children = children
        self._boot_timeout = boot_timeout
        self._log = log

    @property
    def due(self) -> float | None:
        """When ``kill_overdue`` has something to do (monotonic)."""
        moments = [self._due(child) for child in self._children]
        return min((moment for moment in moments if moment is not None), default=None)

    def kill_overdue(self) -> None:
        """Kills each child that has passed its time limit. One that boots logs its stacks first."""
        for child in self._children:
            due = self._due(child)
            if due is None or time.monotonic() < due:
                continue
            if child.pipe_closed_at is not None:
                self._kill_unreachable(child)
            elif child.stop_ordered_at is not None:
                self._kill_disobedient(child)
            elif child.stacks_requested_at is None:
                child.stacks_requested_at = time.monotonic()
                child.dump_stacks()
            elif not child.stacks_signalled:
                child.signal_stacks()
            else:
                self._kill_booting(child)

    def _due(self, child: ChildHandle) -> float | None:
        if child.killed or child.frozen:
            return None
        if child.pipe_closed_at is not None:
            return child.pipe_closed_at + _END_LIMIT
        if child.beat.state != "booting":
            return None
        if child.stop_ordered_at is not None:
            return child.stop_ordered_at + _END_LIMIT
        if child.stacks_requested_at is not None:
            return child.stacks_requested_at + (1 + child.stacks_signalled) * _STACKS_LIMIT
        return child.born + self._boot_timeout if self._boot_timeout else None

    def _kill_unreachable(self, child: ChildHandle) -> None:
        """The master can no longer reach the process, and its jobs would wait until it ends."""
        self._log.error(
            "a child has closed its pipes, but lives; killing it",
            child=child.name,
            pid=child.pid,
            hint="a job has called exec, or has closed descriptors that it had not opened",
        )
        child.kill()

    def _kill_disobedient(self, child: ChildHandle) -> None:
        """The import of the app keeps every other thread of the child from running, so the child
        cannot read its orders. It holds no lease: there is nothing to wait for."""
        self._log.warning(
            "a child in its boot does not obey; killing it", child=child.name, pid=child.pid
        )
        child.kill()

    def _kill_booting(self, child: ChildHandle) -> None:
        reason = f"it was not ready after {self._boot_timeout:g} s ([forkq] boot_timeout)"
        child.told.unbootable = Unbootable(reason)
        self._log.error(
            "a child hangs in its boot; killing it",
            child=child.name,
            pid=child.pid,
            boot_timeout=self._boot_timeout,
        )
        child.kill()
