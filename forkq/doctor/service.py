"""Checks of the running service: those of the line on top of every page, in the same words.

They are never worse than a warning: the doctor also runs before a start, which mends most of what
they tell, and no start should depend on them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from .. import api
from ..config.config import Config
from ..errors import ForkqError
from ..limits.patterns import matches_any
from ..screens import checks
from ..screens.checks import CHECKS, Check
from ..screens.facts import Facts, Observer
from ..screens.problems import Problem, found_by, unserved
from ..values import replace
from .finding import Finding, unchecked

# The doctor has other checks for these; crashes are known only after a while of looking.
_ELSEWHERE: Final = {checks.REDIS_MEMORY, checks.REPLICA, checks.LATENCY, checks.CRASHES}
SERVICE: Final = tuple(check for check in CHECKS if check not in _ELSEWHERE)
# A start of this tree mends these, so without jobs that wait there is nothing to warn of.
_BEFORE_A_START: Final = {checks.FLEET, checks.LEADER}
# These need a right that a child does not.
_COUNTED: Final = {checks.DUE, checks.DEAD}
# Seconds between two looks: each process sends a heartbeat in between.
_SECOND_LOOK: Final = 12.0
_STILL: Final = 10.0


def service(config: Config) -> Iterator[Finding]:
    """One finding for each check, by the API's connection."""
    try:
        facts = _looked()
    except ForkqError as error:
        yield from (unchecked(check.name, str(error)) for check in SERVICE)
        return
    found = found_by(facts, _STILL)
    for check in SERVICE:
        if check is checks.UNSERVED:
            yield _queues(facts, config)
        elif check in _COUNTED and facts.overdue is None:
            yield unchecked(check.name, "this user has no permissions for ZCOUNT", "grant +zcount")
        else:
            yield _finding(check, found.get(check))


def _looked() -> Facts:
    """Looks at the facts, and once more after a while if threads are free beside jobs that have
    waited."""
    observer = Observer(api.server)
    facts = observer.facts()
    if found_by(facts, patience=0.0).get(checks.IDLE) is not None:
        time.sleep(_SECOND_LOOK)
        facts = observer.facts()
    return facts


def _finding(check: Check, problem: Problem | None) -> Finding:
    if problem is None or (check in _BEFORE_A_START and not problem.jobs):
        return Finding("ok", check.name, check.well if problem is None else problem.says)
    return Finding("warn", check.name, problem.says, check.why, check.remedy)


def _queues(facts: Facts, config: Config) -> Finding:
    """The queues of this configuration, which a tree that is about to start serves: such a queue is
    told of, and is no warning."""
    idle = unserved(facts)
    states = (one for one in facts.states if not matches_any(one.name, config.queue_names))
    lost = unserved(replace(facts, states=tuple(states)))
    if idle is None or lost is not None:
        return _finding(checks.UNSERVED, lost)
    what = f"{idle.says}; a capsule of this configuration has each of these queues"
    return Finding("ok", checks.UNSERVED.name, what)
