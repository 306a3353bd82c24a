"""The counters of processed and failed jobs: their days, and the counts of a dead child; how
children have ended."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from ..wire.keys import Keys
from .connection import Call
from .scripts import CHILD_ENDED, COUNTERS_ADD_MISSING

HISTORY_TTL: Final = 5 * 365 * 86_400
# How many ends of children the totals have a name for.
MOST_REASONS: Final = 100
_NOTE_TTL: Final = 3600  # seconds; who counts an end again does so before that


def day(moment: datetime) -> str:
    """The UTC day of an aware ``moment``, as the names of counters have it."""
    return moment.strftime("%Y-%m-%d")


def add_missing(keys: Keys, identity: str, processed: int, failed: int, moment: datetime) -> Call:
    """The call that adds the counts that a dead child reported to its master but did not flush. The
    call may be repeated. It returns how many processed jobs were missing.

    The master's rescue makes it with the child's last Beat, before Redis forgets what was flushed.
    """
    names = [keys.flushed(identity)]
    for name in ("processed", "failed"):
        names += (keys.stat(name), keys.stat_of_day(name, day(moment)))
    return Call(COUNTERS_ADD_MISSING, names, (processed, failed, HISTORY_TTL))


def child_ended(keys: Keys, identity: str, how: str) -> Call:
    """The call that counts how the child has ended: ``crash|REASON``. It may be repeated."""
    names = (keys.flushed(identity), keys.totals("children"))
    return Call(CHILD_ENDED, names, (how, MOST_REASONS, _NOTE_TTL))
