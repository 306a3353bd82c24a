"""Ends children that cannot do their work: their boot takes too long, or their process lives but
has closed its pipes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from .child_handle import ChildHandle
from .children import Children

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Seconds that a process may take to end after its end of the report pipe is closed, or after a
# child in its boot was told to stop.
_END: Final = 1.0
# Seconds that a child which hangs in its boot has to log its stacks.
_STACKS: Final = 0.5


class Inspection:
    """Made once by the master, which calls ``enforce`` in each turn of its loop. ``boot_timeout``
    is in seconds; 0 is no limit."""

    def __init__(self, family: Children, boot_timeout: float, log: FilteringBoundLogger) -> None:
        self._children = family
        self._boot_timeout = boot_timeout
        self._log = log

    @property
    def due(self) -> float | None:
        """When ``enforce`` has something to do (monotonic)."""
        moments = [self._due(child) for child in self._children.children.values()]
        return min((moment for moment in moments if moment is not None), default=None)

    def enforce(self) -> None:
        """Kills the children whose time is up."""
        for child in self._children.children.values():
            due = self._due(child)
            if due is None or time.monotonic() < due:
                continue
            if child.left_at is not None:
                self._end_unreachable(child)
            elif child.stop_told_at is not None:
                self._end_deaf(child)
            elif not child.stacks_asked:
                self._ask_for_stacks(child)
            else:
                self._end_boot(child)

    def _due(self, child: ChildHandle) -> float | None:
        if child.killed or child.frozen:
            return None
        if child.left_at is not None:
            return child.left_at + _END
        if child.state != "booting":
            return None
        if child.stop_told_at is not None:
            return child.stop_told_at + _END
        if self._boot_timeout:
            pause = _STACKS if child.stacks_asked else 0.0
            return child.born + self._boot_timeout + pause
        return None

    def _end_unreachable(self, child: ChildHandle) -> None:
        """The process lives, but it is no child of ours any more: its jobs would wait as long as
        it lives."""
        self._log.error(
            "a child has closed its pipes, but lives; killing it",
            child=child.name,
            pid=child.pid,
            hint="a job has called exec, or has closed descriptors that it had not opened",
        )
        child.kill()

    def _end_deaf(self, child: ChildHandle) -> None:
        """The app's import lets nothing else in its process run. The child holds no lease: there is
        nothing to wait for."""
        self._log.warning(
            "a child in its boot does not obey; killing it", child=child.name, pid=child.pid
        )
        child.kill()

    def _ask_for_stacks(self, child: ChildHandle) -> None:
        child.stacks_asked = True
        child.dump_stacks()

    def _end_boot(self, child: ChildHandle) -> None:
        child.reason = f"it was not ready after {self._boot_timeout:g} s ([forkq] boot_timeout)"
        self._log.error(
            "a child hangs in its boot; killing it",
            child=child.name,
            pid=child.pid,
            boot_timeout=self._boot_timeout,
        )
        child.kill()
