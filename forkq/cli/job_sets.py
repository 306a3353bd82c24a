"""``forkq retries``, ``dead`` and ``scheduled``: the jobs that wait in no queue."""

from __future__ import annotations

from typing import Final

from ..api import DeadSet, RetrySet, ScheduledSet
from .job_group import DELETE, KILL, MOVE, RETRY, Place, clear_command, job_group

_RETRYING: Final = Place("retrying", "retrying job", RetrySet)
_DEAD: Final = Place("dead", "dead job", DeadSet, newest_first=True)
_SCHEDULED: Final = Place("scheduled", "scheduled job", ScheduledSet)

retries = job_group(
    "retries", "Failed jobs that wait for their next try.", _RETRYING, (RETRY, KILL, MOVE, DELETE)
)
dead = job_group("dead", "Jobs that were given up.", _DEAD, (RETRY, MOVE, DELETE))
scheduled = job_group("scheduled", "Jobs for later.", _SCHEDULED, (RETRY, KILL, MOVE, DELETE))

retries.add_command(clear_command(_RETRYING.one, RetrySet))
dead.add_command(clear_command(_DEAD.one, DeadSet))
scheduled.add_command(clear_command(_SCHEDULED.one, ScheduledSet))
