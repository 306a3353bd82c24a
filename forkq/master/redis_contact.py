"""Finds children that do not reach Redis although other processes of the tree do.

The master has no connection of its own while nothing has died. Each child and the clock report when
Redis last answered them (``Beat.redis_at``). A child is cut off if others have been answered all
the time since then, by the same Redis: such a child has perhaps no descriptor left, or a thread
that hangs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .child_handle import ChildHandle

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Seconds that a child which is well may let pass between two answers: twice its heartbeat's pause.
_BETWEEN_ANSWERS: Final = 20.0
# After so many seconds without an answer to any of them, Redis was away.
_OUTAGE: Final = 30.0


@dataclass(slots=True)
class _Answers:
    """Of one Redis, monotonic: it has answered some process from ``up_since`` until ``last``."""

    last: float = 0.0
    up_since: float = 0.0

    def note(self, answer: float) -> None:
        if answer - self.last > _OUTAGE:
            self.up_since = answer
        self.last = max(answer, self.last)


class RedisContact:
    """Sets ``ChildHandle.cut_off_for``, and logs each child once that is cut off for ``limit``
    seconds, and once that is back."""

    def __init__(
        self, by_pid: Mapping[int, ChildHandle], limit: float, log: FilteringBoundLogger
    ) -> None:
        self._by_pid = by_pid
        self._limit = limit
        self._log = log
        self._of_shard: dict[str, _Answers] = {}

    def check(self) -> None:
        """Checks every child. Called by the loop, after it has read the facts."""
        for shard in {child.shard for child in self._by_pid.values()}:
            children = [child for child in self._by_pid.values() if child.shard == shard]
            answers = self._of_shard.setdefault(shard, _Answers())
            answers.note(max(child.beat.redis_at for child in children))
            for child in children:
                if child.was_ready and not child.frozen and child.silent_since is None:
                    self._check(child, answers)

    def _check(self, child: ChildHandle, answers: _Answers) -> None:
        last = max(child.beat.redis_at, child.told.ready_at or 0.0, answers.up_since)
        seconds = answers.last - last - _BETWEEN_ANSWERS
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
