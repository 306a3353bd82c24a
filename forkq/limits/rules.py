"""The rules of queues as the configuration has them. fetch.lua enforces them.

``config`` makes them. Rules changed at run time are in Redis (``Keys.control``) and win.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from ..values import replace
from .patterns import is_pattern

HIGHEST_LIMIT: Final = 1_000_000


class Rate(msgspec.Struct, frozen=True):
    """``count`` jobs may start in ``seconds``, and up to ``burst`` of them at once.

    In any period no more jobs start than the rate gives for it, plus ``burst``. Without a burst it
    is one job plus what the rate gives in a tenth of a second, so that starts are evenly spaced.
    """

    count: float
    seconds: float
    burst: float | None = None


class Rules(msgspec.Struct, frozen=True):
    """The rules of one queue, or of each queue that matches a pattern. None: no such rule.

    ``limit`` is the highest number of jobs in progress on all hosts, ``process_limit`` in one
    child. While a ``blocking`` queue has jobs in progress, the queues after it in its capsule wait;
    if it names queues or patterns, only those wait. With ``fair`` the queues of a pattern take
    turns, job by job.
    """

    limit: int | None = None
    process_limit: int | None = None
    rate: Rate | None = None
    blocking: bool | tuple[str, ...] | None = None
    fair: bool | None = None


NO_RULES = Rules()


class Rulebook(msgspec.Struct, frozen=True):
    """Rules by queue name or pattern. A queue's own rule comes first, then that of the first
    pattern that matches it."""

    entries: Mapping[str, Rules] = msgspec.field(default_factory=dict)

    def of(self, name: str) -> Rules:
        """The rules of a queue, or of a pattern of a capsule."""
        found = self.entries.get(name, NO_RULES)
        for pattern, rules in self.entries.items():
            if is_pattern(pattern) and pattern != name and fnmatchcase(name, pattern):
                found = _filled(found, rules)
        return found


def _filled(rules: Rules, other: Rules) -> Rules:
    """``rules``, with each rule that is missing taken from ``other``."""
    missing = {
        rule: getattr(other, rule)
        for rule in Rules.__struct_fields__
        if getattr(rules, rule) is None
    }
    return replace(rules, **missing)
