"""The rule of health about hard time limits: a job that goes on beyond its ``hard_timeout`` is
ended, together with its child.

The child's other jobs come first: a new child takes the slot, and the old one ends what else it
runs. Then the master removes it. The overdue job goes back with a mark that it has failed, so the
next child that fetches it settles it by the job's own rules, and does not run it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import msgspec

from ..runtime.deadlines import Overdue
from .child_handle import ChildHandle
from .health import ChildVerdict, Rule, line
from .replacement import Replacements

# Seconds after a hard limit in which the child's main thread logs the stack of the job. If it does
# not, a job holds the interpreter's lock, and no other job of that child can go on.
_ANSWER_LIMIT: Final = 0.7
_ANSWER_CHECK: Final = 0.05
# Seconds that such a child has to write its stacks.
_STACKS_LIMIT: Final = 0.5
# A job that is cancelled by force has such a limit, too.
_BEYOND: Final = ("beyond its hard_timeout", "beyond its cancellation")
_BEYOND_EITHER: Final = "beyond its hard_timeout or its cancellation"
# A child that is told to interrupt its jobs at a time is removed so many seconds before.
_BEFORE_INTERRUPTION: Final = 0.5


class _Case(msgspec.Struct):
    """A child with an overdue job, from the first step that was taken because of it. Monotonic:
    ``stacks_at``, when it was told to write its stacks, because it does not answer;
    ``replace_by``, how long its replacement may boot, if it is drained; ``remove_by``, set when
    it has been told to fetch no more."""

    stacks_at: float | None = None
    replace_by: float | None = None
    remove_by: float | None = None


class HardLimits(Rule):
    """``drain_limit``: seconds that the replacement of such a child has to boot, and then its other
    jobs to end."""

    def __init__(self, drain_limit: float, replacements: Replacements) -> None:
        self._drain_limit = drain_limit
        self._replacements = replacements
        self._cases: dict[ChildHandle, _Case] = {}

    def due(self, child: ChildHandle) -> float | None:
        deadline = None if child.killed else child.files.next_deadline
        if deadline is None:
            return None
        case = self._cases.get(child)
        if case is not None and case.replace_by is not None:
            return _remove_by(child, case)
        return max(deadline, time.monotonic() + _ANSWER_CHECK)

    def verdict(self, child: ChildHandle, now: float) -> ChildVerdict | None:
        if child.killed:
            return None
        overdue, case = child.files.overdue(now), self._cases.get(child)
        if not overdue:
            return self._end_by_itself(child)
        if case is not None and case.replace_by is not None:
            return self._drain(child, case, overdue, now)
        if all(job.told for job in overdue):
            return self._begin(child, overdue, now)
        if now >= min(job.deadline for job in overdue if not job.told) + _ANSWER_LIMIT:
            return self._handle_silence(child, now)
        return None

    def forget(self, child: ChildHandle) -> None:
        self._cases.pop(child, None)

    def _end_by_itself(self, child: ChildHandle) -> ChildVerdict | None:
        case = self._cases.pop(child, None)
        if case is None or case.replace_by is None:
            return None
        return ChildVerdict("log", (line("info", "an overdue job has ended by itself", child),))

    def _handle_silence(self, child: ChildHandle, now: float) -> ChildVerdict | None:
        """Has a child that does not answer write its stacks, and be removed."""
        case = self._cases.setdefault(child, _Case())
        if case.stacks_at is None:
            case.stacks_at = now
            return ChildVerdict("signal stacks")
        if now >= case.stacks_at + _STACKS_LIMIT:
            return _removal(f"a job holds the interpreter {_BEYOND_EITHER}")
        return None

    def _begin(
        self, child: ChildHandle, overdue: Sequence[Overdue], now: float
    ) -> ChildVerdict | None:
        """Begins the case of a child. Its other jobs get their time, unless each processor is
        overdue, the child runs a suspect, beside which nothing runs, or no coroutine of an async
        capsule can go on."""
        capsule, suspects = child.slot.capsule, any(job.suspect for job in overdue)
        places = child.beat.busy if suspects else capsule and capsule.concurrency
        blocks = capsule and capsule.is_async and any(job.blocks for job in overdue)
        if blocks or (places and len(overdue) >= places):
            what = "its event loop is blocked" if blocks else "each of its jobs goes on"
            return _removal(f"{what} {_beyond(overdue)}")
        self._cases[child] = _Case(replace_by=now + self._drain_limit)
        may_begin = self._replacements.may_begin(child)
        return ChildVerdict("replace", why="hard_timeout") if may_begin else None

    def _drain(
        self, child: ChildHandle, case: _Case, overdue: Sequence[Overdue], now: float
    ) -> ChildVerdict | None:
        if case.remove_by is None:
            booting = self._replacements.of(child) is not None
            if booting and case.replace_by is not None and now < case.replace_by:
                return None
            case.remove_by = now + self._drain_limit
            # The replacement has taken over, or there is none: the child fetches no more.
            obeys = child.beat.state == "retiring" or child.ordered.stop_at is not None
            return None if obeys else ChildVerdict("retire")
        remove_by = _remove_by(child, case)
        have_others_ended = child.beat.state == "retiring" and child.beat.busy <= len(overdue)
        if have_others_ended or (remove_by is not None and now >= remove_by):
            return _removal(f"a job goes on {_beyond(overdue)}")
        return None


def _beyond(overdue: Sequence[Overdue]) -> str:
    """Beyond which limit these jobs go on. A job that has told nothing may have either."""
    kinds = {job.cancelled for job in overdue if job.told}
    return _BEYOND[kinds.pop()] if len(kinds) == 1 else _BEYOND_EITHER


def _remove_by(child: ChildHandle, case: _Case) -> float | None:
    """How long the other jobs of a child that fetches no more have: not as long as it has itself
    before it interrupts them."""
    if case.remove_by is None or child.ordered.drain_by is None:
        return case.remove_by
    return min(case.remove_by, child.ordered.drain_by - _BEFORE_INTERRUPTION)


def _removal(why: str) -> ChildVerdict:
    return ChildVerdict("remove", why=why, overdue=True)
