"""Hard time limits: ends a job that goes on beyond its ``hard_timeout``, together with its child.

The child's other jobs come first: a new child takes the slot, and the old one ends what else it
runs. Then the master removes it. The overdue job goes back with a mark that it has failed, so the
next child that fetches it settles it by the job's own rules, and does not run it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ..runtime.deadlines import Overdue
from .child_handle import ChildHandle
from .children import Children
from .removal import Removals
from .replacement import Replacement, Replacements

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Seconds after a hard limit in which the child's main thread logs the stack of the job. If it does
# not, a job holds the interpreter's lock, and no other job of that child can go on.
_ANSWER_LIMIT: Final = 0.7
_ANSWER_CHECK: Final = 0.05
# Seconds that such a child has to write its stacks.
_STACKS_LIMIT: Final = 0.5
# A child that is told to interrupt its jobs at a time is removed so many seconds before.
_BEFORE_INTERRUPTION: Final = 0.5


class _Case:
    """A child with an overdue job that is drained. Monotonic: ``replace_by``, how long its
    replacement may boot; ``remove_by``, set when it has been told to fetch no more."""

    def __init__(
        self, child: ChildHandle, replacement: Replacement | None, replace_by: float
    ) -> None:
        self.child = child
        self.replacement = replacement
        self.replace_by = replace_by
        self.remove_by: float | None = None


class HardLimits:
    """``drain_limit``: seconds that the replacement of such a child has to boot, and then its other
    jobs to end."""

    def __init__(
        self,
        children: Children,
        replacements: Replacements,
        removals: Removals,
        drain_limit: float,
        log: FilteringBoundLogger,
    ) -> None:
        self._children = children
        self._replacements = replacements
        self._removals = removals
        self._drain_limit = drain_limit
        self._log = log
        self._cases: dict[ChildHandle, _Case] = {}

    @property
    def due(self) -> float | None:
        """When ``enforce`` has something to do (monotonic), if nothing happens before."""
        moments = [self._due(child) for child in self._children]
        return min((moment for moment in moments if moment is not None), default=None)

    def enforce(self) -> None:
        """Takes the next step for every child with an overdue job."""
        now, children = time.monotonic(), list(self._children)
        self._cases = {one: self._cases[one] for one in children if one in self._cases}
        for child in children:
            overdue = child.overdue(now)
            if overdue:
                self._enforce(child, overdue, now)
            elif self._cases.pop(child, None) is not None and not child.frozen:
                self._log.info(
                    "an overdue job has ended by itself", child=child.name, pid=child.pid
                )

    def _due(self, child: ChildHandle) -> float | None:
        deadline, case = child.next_deadline, self._cases.get(child)
        if deadline is not None and case is not None:
            return case.remove_by
        return None if deadline is None else max(deadline, time.monotonic() + _ANSWER_CHECK)

    def _enforce(self, child: ChildHandle, overdue: Sequence[Overdue], now: float) -> None:
        case = self._cases.get(child)
        if case is not None:
            self._drain(case, overdue, now)
        elif all(job.told for job in overdue):
            self._begin(child, overdue)
        elif now >= min(job.deadline for job in overdue if not job.told) + _ANSWER_LIMIT:
            self._handle_silence(child, now)

    def _handle_silence(self, child: ChildHandle, now: float) -> None:
        """The child writes its stacks from a signal handler in C, and is removed."""
        if child.stacks_requested_at is None:
            child.stacks_requested_at = now
            child.signal_stacks()
        elif now >= child.stacks_requested_at + _STACKS_LIMIT:
            self._remove(child, "a job holds the interpreter beyond its hard_timeout")

    def _begin(self, child: ChildHandle, overdue: Sequence[Overdue]) -> None:
        """Unless every processor is overdue, the other jobs get their time. Nothing runs beside a
        suspect."""
        suspects = any(job.suspect for job in overdue)
        places = (
            child.beat.busy if suspects else child.slot.capsule and child.slot.capsule.concurrency
        )
        if places and len(overdue) >= places:
            self._remove(child, "its jobs go on beyond their hard_timeout")
            return
        replacement = self._replacements.begin(child, "hard_timeout")
        self._cases[child] = _Case(child, replacement, time.monotonic() + self._drain_limit)

    def _drain(self, case: _Case, overdue: Sequence[Overdue], now: float) -> None:
        child, replacement = case.child, case.replacement
        booting = replacement is not None and replacement.outcome == "under way"
        if booting and now < case.replace_by:
            return
        if case.remove_by is None:
            self._retire(case, now)
        elif now >= case.remove_by or (
            child.beat.state == "retiring" and child.beat.busy <= len(overdue)
        ):
            self._remove(child, "a job goes on beyond its hard_timeout")

    def _retire(self, case: _Case, now: float) -> None:
        """The replacement has taken over, or there is none: the child fetches no more."""
        child = case.child
        if child.beat.state != "retiring" and child.stop_ordered_at is None:
            child.retire()
        limits = [now + self._drain_limit]
        if child.drain_by is not None:
            limits.append(child.drain_by - _BEFORE_INTERRUPTION)
        case.remove_by = min(limits)

    def _remove(self, child: ChildHandle, why: str) -> None:
        child.fail_overdue = True
        self._removals.begin(child, None, why)
