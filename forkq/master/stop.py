"""The stop: one deadline for the whole tree, and what comes after it.

quiet -> wait -> deadline (the children interrupt their jobs) -> mercy -> freeze -> requeue -> kill.
The kill has a deadline of its own: however slow Redis is, it comes in time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from ..runtime.pipe import Stop
from .children import Children
from .rescue import Rescue

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# After the deadline, jobs that were interrupted may still clean up for this long.
GRACE: Final = 3.0
# A child that has not said by then what it runs is too busy to say it.
_ANSWER: Final = 0.5
# From the deadline to the last process gone: invariant 4 of docs/internals.md.
_AT_MOST: Final = 5.0
# A frozen child that has not come to a halt by then is stuck in the kernel, and runs nothing.
_HALT: Final = 0.25
_HALT_CHECK: Final = 0.01
# After the deadline: by then the frozen are killed, whatever Redis has taken back.
_KILL: Final = 4.0


class StopSequence:
    """Begun once, for good; every phase writes one line that says what it waits for."""

    def __init__(self, family: Children, rescue: Rescue, log: FilteringBoundLogger) -> None:
        self.begun = False
        self._children = family
        self._rescue = rescue
        self._log = log
        self._deadline = 0.0
        self._answers_due = 0.0
        self._prepared = False
        self._frozen_at: float | None = None
        self._taken_back = False
        self._told = False
        self._done = False

    def begin(self, timeout: float) -> None:
        """Tells every child to end within ``timeout`` seconds."""
        self.begun = True
        self._deadline = time.monotonic() + timeout
        self._answers_due = time.monotonic() + _ANSWER
        self._log.info("stopping", waiting_at_most=timeout)
        self._children.order(Stop(self._deadline))

    @property
    def due(self) -> float | None:
        """When ``enforce`` has something to do (monotonic)."""
        if not self.begun or self._done:
            return None
        if self._frozen_at is None:
            return self._deadline + (GRACE if self._prepared else 0.0)
        return time.monotonic() + _HALT_CHECK

    @property
    def latest(self) -> float:
        """When the last process must be gone, whatever Redis does (monotonic)."""
        return self._deadline + _AT_MOST

    def enforce(self) -> None:
        """After the deadline and its mercy: freezes what is left, takes its jobs back, kills it."""
        if self.begun and not self._told:
            self._tell()
        now = time.monotonic()
        if self.due is None or now < self._deadline:
            return
        if not self._prepared:
            self._prepare()
        elif self._frozen_at is None:
            if now >= self._deadline + GRACE:
                self._freeze()
        elif not self._taken_back:
            if now >= self._frozen_at + _HALT or self._all_halted():
                self._take_back()
        elif now >= self._deadline + _KILL or not self._rescue.under_way:
            self._kill_frozen()

    def _prepare(self) -> None:
        """While the jobs clean up, we have the time to connect."""
        self._prepared = True
        if self._children.children:
            self._rescue.prepare()

    def _tell(self) -> None:
        """Says what we wait for, once the children have said what they still run."""
        children = self._children.children.values()
        answered = all(child.state == "stopping" for child in children)
        if answered or time.monotonic() >= self._answers_due:
            self._told = True
            if self._children.busy:
                self._log.info("waiting for running jobs", jobs=self._children.busy)

    def _freeze(self) -> None:
        self._frozen_at = time.monotonic()
        if self._children.children:
            said = "jobs ignore the stop" if self._children.busy else "children do not end"
            states = {child.name: child.state for child in self._children.children.values()}
            self._log.warning(f"{said}; freezing", children=states, jobs=self._children.busy)
        for child in self._children.children.values():
            child.freeze()

    def _all_halted(self) -> bool:
        return all(child.has_halted() for child in self._children.children.values())

    def _take_back(self) -> None:
        """Frozen, a job can neither finish after it went back, nor run in two places. The loop's
        next turns go on with it."""
        self._taken_back = True
        self._rescue.hurry(self._deadline + _KILL)
        for child in self._children.children.values():
            self._children.rescue(child, None)
        self._rescue.work()

    def _kill_frozen(self) -> None:
        self._done = True
        if self._children.children:
            self._log.warning("killing", children=self._children.names)
        self._children.kill()
