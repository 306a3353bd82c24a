"""The stop of the whole tree: one deadline for all children, and what the master does after it."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from ..runtime.pipe import Stop
from .children import Children
from .replacement import Removals
from .rescue import Rescue

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Seconds after the deadline in which interrupted jobs may clean up.
GRACE: Final = 3.0
# Seconds that the children have to report which jobs they still run.
_ANSWER_LIMIT: Final = 0.5
# Seconds from the deadline to the last process gone: what docs/internals.md promises.
_TOTAL_LIMIT: Final = 5.0
# Seconds after the deadline when frozen children are killed, however few jobs Redis has taken back.
_KILL_AFTER: Final = 4.0


# What an interrupt says of the next ones, by its number. One without a hint kills.
HINTS: Final = {
    1: "jobs that still run then go back to their queues; the third Ctrl-C kills at once",
    2: "one more Ctrl-C kills at once",
}


class Phase(Enum):
    """Where a stop is. The table in ``StopSequence`` has the transitions."""

    NOT_BEGUN = auto()
    ANSWERS = auto()
    JOBS = auto()
    CLEANUP = auto()
    REMOVAL = auto()


class StopSequence:
    """Begun once and never taken back. The loop ends when the last child has been reaped, in any
    phase.

    =========  =============================================  ==================================
    phase      ends when                                      the master then
    =========  =============================================  ==================================
    NOT_BEGUN  ``begin`` is called                            sends every child ``Stop``
    ANSWERS    all children have answered, or at a limit      logs how many jobs run
    JOBS       the deadline: the children raise Shutdown      connects to Redis
    CLEANUP    the time for ``finally`` blocks is over        removes the children by force
    REMOVAL    never                                          waits for their deaths
    =========  =============================================  ==================================

    ``advance`` ends one phase at most (ANSWERS and JOBS may end together), so that the loop's other
    work goes on between the steps.
    """

    def __init__(
        self,
        children: Children,
        removals: Removals,
        rescue: Rescue,
        log: FilteringBoundLogger,
    ) -> None:
        self._phase = Phase.NOT_BEGUN
        self._children = children
        self._removals = removals
        self._rescue = rescue
        self._log = log
        self._deadline = 0.0
        self._answers_due = 0.0
        self._hint: dict[str, str] = {}

    @property
    def begun(self) -> bool:
        """Whether the tree stops."""
        return self._phase is not Phase.NOT_BEGUN

    @property
    def due(self) -> float | None:
        """When ``advance`` has something to do (monotonic)."""
        if self._phase in (Phase.NOT_BEGUN, Phase.REMOVAL):
            return None
        return self._deadline + (GRACE if self._phase is Phase.CLEANUP else 0.0)

    @property
    def latest(self) -> float:
        """When the last process must be gone, even if Redis does not answer (monotonic)."""
        return self._deadline + _TOTAL_LIMIT

    def begin(self, timeout: float) -> None:
        """Tells every child to end within ``timeout`` seconds."""
        now = time.monotonic()
        self._deadline = now + timeout
        self._answers_due = now + _ANSWER_LIMIT
        self._log.info("stopping", waiting_at_most=timeout)
        self._children.send_all(Stop(self._deadline))
        self._phase = Phase.ANSWERS

    def advance(self) -> None:
        """Goes on to the next phase, if the present one has ended."""
        step = _STEPS.get(self._phase)
        if step is not None:
            self._phase = step(self)

    def interrupted(self, number: int) -> None:
        """Notes the ``number``th Ctrl-C, which does not kill. What the stop waits for is logged as
        soon as it is known."""
        self._hint = {"hint": HINTS[number]}
        if self._phase is not Phase.ANSWERS:
            self._log_waiting()

    def _log_waiting(self) -> None:
        """Logs what the stop waits for, and how long it still does at most."""
        left = max(0.0, self._deadline - time.monotonic())
        self._log.info(
            "waiting for running jobs",
            jobs=self._running(),
            children=[child.name for child in self._children if child.running],
            at_most=round(left, 1),
            **self._hint,
        )

    def _running(self) -> int:
        """How many jobs run, also those that keep their children from telling."""
        return sum(child.running for child in self._children)

    # One method for each phase; it returns the phase that comes next, or its own.

    def _await_answers(self) -> Phase:
        now = time.monotonic()
        answered = all(child.beat.state == "stopping" for child in self._children)
        if not answered and now < min(self._answers_due, self._deadline):
            return Phase.ANSWERS
        if self._running():
            self._log_waiting()
        return self._await_jobs()

    def _await_jobs(self) -> Phase:
        if time.monotonic() < self._deadline:
            return Phase.JOBS
        if self._children.by_pid:
            self._rescue.connect()  # the jobs clean up meanwhile
        return Phase.CLEANUP

    def _await_cleanup(self) -> Phase:
        if time.monotonic() < self._deadline + GRACE:
            return Phase.CLEANUP
        self._remove()
        return Phase.REMOVAL

    def _remove(self) -> None:
        """Removes the children that are left. Their jobs get no crash record: to ignore the stop is
        no crash."""
        if self._children.by_pid:
            jobs = self._running()
            problem = "jobs ignore the stop" if jobs else "children do not end"
            states = {child.name: child.beat.state for child in self._children}
            self._log.warning(f"{problem}; freezing", children=states, jobs=jobs)
        self._rescue.limit_waits(self._deadline + _KILL_AFTER)
        for child in self._children:
            self._removals.freeze(child, None, self._deadline + _KILL_AFTER)


_STEPS: Final[dict[Phase, Callable[[StopSequence], Phase]]] = {
    Phase.ANSWERS: StopSequence._await_answers,
    Phase.JOBS: StopSequence._await_jobs,
    Phase.CLEANUP: StopSequence._await_cleanup,
}
