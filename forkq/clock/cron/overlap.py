"""Whether the latest job of a periodic entry is still there: what ``overlap = "skip"`` asks.

The entry's note (keys.cron_pending) names that job until the child that ran it takes the note away.
A crash leaves the note behind; so the job itself is looked for.
"""

from __future__ import annotations

import time
from typing import Final

from ...store.connection import RedisConnection
from ...store.find_job import Location, find
from ...wire.keys import Keys

# Seconds for which a job that was found is taken to be still there: a deep queue is not searched
# at every tick of an entry that ticks every second.
_TRUSTED: Final = 60.0
_PLACES: Final[tuple[Location, ...]] = ("running", "queued")


class Overlap:
    """Looks for jobs, and remembers for a while which ones it has found."""

    def __init__(self, keys: Keys, connection: RedisConnection) -> None:
        self._keys = keys
        self._connection = connection
        self._found: dict[str, tuple[str, float]] = {}

    def alive(self, name: str, jid: str, queue: str) -> bool:
        """Whether job ``jid`` of the entry ``name`` runs or waits in a queue; most likely in
        ``queue``. A job that failed and waits for its retry does not count."""
        known, until = self._found.get(name, ("", 0.0))
        if known == jid and time.monotonic() < until:
            return True
        alive = self._search(jid, queue)
        if alive:
            self._found[name] = (jid, time.monotonic() + _TRUSTED)
        else:
            self._found.pop(name, None)
        return alive

    def _search(self, jid: str, queue: str) -> bool:
        found = find(self._connection, self._keys, jid, places=_PLACES, queues=(queue,))
        if found is None:  # its entry may have named another queue then
            found = find(self._connection, self._keys, jid, places=_PLACES)
        return found is not None
