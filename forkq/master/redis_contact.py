"""Finds children that do not reach Redis although other processes of the tree do.

The master has no connection of its own while nothing has died. Each child and the clock report when
Redis last answered them (``Beat.redis_at``). A child is cut off if others have been answered all
the time since then: such a child has perhaps no descriptor left, or a thread that hangs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from .child_handle import ChildHandle

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Seconds that a child which is well may let pass between two answers: twice its heartbeat's pause.
_BETWEEN_ANSWERS: Final = 20.0
# After so many seconds without an answer to any of them, Redis was away.
_OUTAGE: Final = 30.0


class RedisContact:
    """Sets ``ChildHandle.cut_off_for``, and logs each child once that is cut off for ``limit``
    seconds, and once that is back."""

    def __init__(
        self, by_pid: Mapping[int, ChildHandle], limit: float, log: FilteringBoundLogger
    ) -> None:
        self._by_pid = by_pid
        self._limit = limit
        self._log = log
        self._last_answer = 0.0
        self._up_since = 0.0  # others were answered from then until ``_last_answer``

    def check(self) -> None:
        """Checks every child. Called by the loop, after it has read the facts."""
        answer = max((child.redis_at for child in self._by_pid.values()), default=0.0)
        if answer - self._last_answer > _OUTAGE:
            self._up_since = answer
        self._last_answer = max(answer, self._last_answer)
        for child in self._by_pid.values():
            if child.was_ready and not child.frozen and child.silent_since is None:
                self._check(child)

    def _check(self, child: ChildHandle) -> None:
        last = max(child.redis_at, child.ready_at, self._up_since)
        seconds = self._last_answer - last - _BETWEEN_ANSWERS
        if child.cut_off_for:
            if seconds <= 0:
                self._log.warning("child reaches redis again", child=child.name, pid=child.pid)
            child.cut_off_for = max(0.0, seconds)
        elif seconds >= self._limit:
            child.cut_off_for = seconds
            self._log.warning(
                "child does not reach redis, but others do",
                child=child.name,
                pid=child.pid,
                for_seconds=round(seconds),
                hint="its stacks follow",
            )
            child.dump_stacks()
