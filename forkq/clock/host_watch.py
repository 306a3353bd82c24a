"""The note in Redis that a clock watches over the processes of its pid scope."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from ..runtime.liveness import pid_scope
from ..store.connection import OutOfMemory, RedisConnection
from ..wire.keys import Keys

# All in seconds. The note outlives two sweeps of a clock that has lost Redis for a moment. It
# expires earlier than the record of a child that sends heartbeats: see HostWatch.
_WATCH_TTL: Final = 45
# A clock that did not sweep for longer than this cannot tell which records expired meanwhile.
_LONGEST_GAP: Final = 30.0
# After a failure, children send a heartbeat and clocks sweep again within this time.
_SETTLING: Final = 20.0

Monotonic = Callable[[], float]


class HostWatch:
    """Keeps the note of this clock's pid scope, and tells from when on a missing record means that
    its owner is gone.

    The note holds a random mark. Every clock of the same pid scope renews the note and keeps its
    mark. The note expires sooner than the record of a child that sends heartbeats. So if the note
    is missing or has another mark, such records may be missing as well: the server came back with
    old data, or its wall clock jumped. If this clock itself did not look for a while, other
    processes may not have reached Redis either. In both cases records are not trusted for a time.
    """

    def __init__(self, keys: Keys, connection: RedisConnection, monotonic: Monotonic) -> None:
        self.trusted_from = 0.0  # monotonic
        self._key = keys.host(pid_scope())
        self._connection = connection
        self._monotonic = monotonic
        self._mark: bytes | None = None
        self._renewed_at = float("-inf")

    def renew(self) -> None:
        """Renews the note, and sets ``trusted_from``. Raises ConnectionLost or RedisError."""
        mark = self._connection.call("GETEX", self._key, "EX", _WATCH_TTL) or self._write_note()
        now = self._monotonic()
        if mark != self._mark or now > self._renewed_at + _LONGEST_GAP:
            self.trusted_from = now + _SETTLING
        self._mark, self._renewed_at = mark, now

    def _write_note(self) -> bytes | None:
        mark = secrets.token_hex(6)
        try:
            self._connection.call("SET", self._key, mark, "EX", _WATCH_TTL)
        except OutOfMemory:
            return self._mark  # a full server must not keep the clock from recovering jobs
        return mark.encode()
