"""Whether the latest job of a periodic entry is queued or runs: for ``overlap = "skip"``.

The entry's note (keys.cron_pending) names that job until the child that ran it removes the note. A
crash of that child leaves the note behind; so the clock looks for the job itself.
"""

from __future__ import annotations

import time
from typing import Final

from ...store.connection import RedisConnection
from ...store.find_job import Location, find
from ...wire.keys import Keys

# Seconds for which a job that was found counts as still there: the clock does not search a deep
# queue at every tick of an entry that ticks every second.
_TRUSTED_FOR: Final = 60.0
_LOCATIONS: Final[tuple[Location, ...]] = ("running", "queued")


class Overlap:
    """Looks for jobs, and remembers for a while which ones it has found."""

    def __init__(self, keys: Keys, connection: RedisConnection) -> None:
        self._keys = keys
        self._connection = connection
        self._found: dict[str, tuple[str, float]] = {}

    def is_unfinished(self, name: str, jid: str, queue: str) -> bool:
        """Whether job ``jid`` of the entry ``name`` runs or is in a queue; most likely in
        ``queue``. A job that failed and waits for its retry does not count."""
        known, until = self._found.get(name, ("", 0.0))
        if known == jid and time.monotonic() < until:
            return True
        unfinished = self._search(jid, queue)
        if unfinished:
            self._found[name] = (jid, time.monotonic() + _TRUSTED_FOR)
        else:
            self._found.pop(name, None)
        return unfinished

    def _search(self, jid: str, queue: str) -> bool:
        found = find(self._connection, self._keys, jid, locations=_LOCATIONS, queues=(queue,))
        if found is None:  # the entry's queue may have changed since
            found = find(self._connection, self._keys, jid, locations=_LOCATIONS)
        return found is not None
