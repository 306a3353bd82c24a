"""Notices that Redis went back in time: a restored backup, a failover that lost writes, a FLUSHALL.

Each beat counts up one field in the note of this child's flushes. Redis has confirmed the last
count, so a smaller one proves that it has lost writes. The count also says whether the note is
there, for which the beat asked before: it costs no further command.
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Final

from ...store.connection import DamagedKey, OutOfMemory, RedisConnection
from ...wire.keys import Keys
from ...wire.times import now

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

NOTE_TTL: Final = 86_400
_RENEW_EVERY: Final = 3600.0
# Seconds in which the other children of the tree do not tell it again.
_TOLD_FOR: Final = 300
_FIELD: Final = "beats"


class BeatCount:
    """Used by the heartbeat's thread. ``note``: the key of the note."""

    def __init__(self, note: str, keys: Keys, log: FilteringBoundLogger) -> None:
        self._note = note
        self._keys = keys
        self._log = log
        self._confirmed = 0
        self._confirmed_at = (
            0.0  # epoch seconds: a machine may sleep for longer than the note lasts
        )
        self._renew_at = time.monotonic() + _RENEW_EVERY

    def count(self, connection: RedisConnection) -> bool:
        """Counts a beat. Returns whether the note is there, as far as that is known. Raises
        ConnectionLost or RedisError."""
        if time.monotonic() >= self._renew_at:
            self._renew_at = time.monotonic() + _RENEW_EVERY
            return self._renew(connection)
        try:
            found = int(connection.call("HINCRBY", self._note, _FIELD, 1))
        except OutOfMemory:
            return self._renew(connection)
        except DamagedKey:
            self._confirmed = 0  # the next flush replaces it
            return False
        known = self._confirmed and now() - self._confirmed_at < NOTE_TTL / 2
        if known and found <= self._confirmed:
            self._tell(connection, self._confirmed - found + 1)
        self._confirmed, self._confirmed_at = found, now()
        return found > 1

    def _renew(self, connection: RedisConnection) -> bool:
        """Writes the count again. A full server allows this, too."""
        return bool(connection.call("EXPIRE", self._note, NOTE_TTL))

    def _tell(self, connection: RedisConnection, beats: int) -> None:
        """Logs that Redis went back in time, unless another child of this tree just has."""
        tree = f"{socket.gethostname()}:{os.getppid()}"
        if connection.call("SET", self._keys.went_back(tree), 1, "NX", "EX", _TOLD_FOR):
            self._log.error(
                "redis went back in time: what it had confirmed is gone",
                lost_beats=beats,
                hint="a restored backup, a failover or a restart that lost writes, or a FLUSHALL: "
                "jobs may be lost, and jobs that were done may run again",
            )
