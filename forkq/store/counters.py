"""The counters of processed and failed jobs: their names by day, and the last word of the dead."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from ..wire.keys import Keys
from .connection import Call
from .scripts import COUNTERS_ADD_MISSING

HISTORY_TTL: Final = 5 * 365 * 86_400


def day(moment: datetime) -> str:
    """The UTC day of an aware ``moment``, as it stands in the names of counters."""
    return moment.strftime("%Y-%m-%d")


def add_missing(keys: Keys, identity: str, processed: int, failed: int, moment: datetime) -> Call:
    """The call that adds what a dead child had told its master and not flushed. It may be made
    again. It returns how many processed jobs were missing.

    For the master's rescue, with the child's last Beat, before what is flushed is forgotten.
    """
    names = [keys.flushed(identity)]
    for name in ("processed", "failed"):
        names += (keys.stat(name), keys.stat_of_day(name, day(moment)))
    return Call(COUNTERS_ADD_MISSING, names, (processed, failed, HISTORY_TTL))
