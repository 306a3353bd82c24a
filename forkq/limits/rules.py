"""What may be taken from a queue, and when. Configuration only; fetch.lua keeps to it.

Made by ``config``. What somebody changed at run time stands in Redis (``Keys.control``) and wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Final

from .patterns import is_pattern

MOST: Final = 1_000_000  # the highest limit


@dataclass(frozen=True, slots=True)
class Rate:
    """So many jobs may start in so many seconds, and up to ``burst`` of them at once.

    Over any stretch of time no more start than the rate gives for it, and ``burst`` more. Without
    one it is a single job, and what the rate gives in a tenth of a second: evenly spaced.
    """

    count: float
    seconds: float
    burst: float | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one queue, or of each queue that matches a pattern. None: no such rule.

    ``limit`` jobs in progress on all hosts, ``process_limit`` in one child. While a ``blocking``
    queue has jobs in progress, the queues after it in its capsule wait, or only those named
    (patterns too). ``fair`` makes the queues of a pattern take turns, job by job.
    """

    limit: int | None = None
    process_limit: int | None = None
    rate: Rate | None = None
    blocking: bool | tuple[str, ...] | None = None
    fair: bool | None = None


NO_RULES = Rules()


@dataclass(frozen=True, slots=True)
class Rulebook:
    """Rules by queue name or pattern. Each rule of a queue is the one under its own name, else that
    of the first pattern which stands for it."""

    entries: Mapping[str, Rules] = field(default_factory=dict)

    def of(self, name: str) -> Rules:
        """The rules of the queue ``name``, or of a pattern as it stands in a capsule."""
        found = self.entries.get(name, NO_RULES)
        for pattern, rules in self.entries.items():
            if is_pattern(pattern) and pattern != name and fnmatchcase(name, pattern):
                found = _filled(found, rules)
        return found


def _filled(rules: Rules, other: Rules) -> Rules:
    """``rules``, with what they leave open from ``other``."""
    missing = {
        rule.name: getattr(other, rule.name)
        for rule in fields(Rules)
        if getattr(rules, rule.name) is None
    }
    return replace(rules, **missing)
