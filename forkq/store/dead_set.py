"""The dead set: every burial of a job goes through this module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..wire.keys import Keys
from ..wire.times import now
from .connection import Call, RedisConnection
from .scripts import BURY, RECOVER

_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class DeadSet:
    """The dead set and its limits: at most ``size`` entries, none older than ``days``."""

    keys: Keys
    size: int = 10_000
    days: float = 180.0

    def bury(self, connection: RedisConnection, queue: str, lease: str, payload: bytes) -> bool:
        """Moves one leased job here. False if the lease is no longer there."""
        at = now()
        keys = (self.keys.inflight(queue), self.keys.dead)
        limits = (at - self.days * _DAY, self.size)
        return bool(connection.script(BURY, keys, (lease, at, payload, *limits)))

    def recover(
        self, queues: Sequence[str], identity: str, moves: Sequence[object], note_for: int
    ) -> Call:
        """The call of recover.lua that gives back, schedules or buries the jobs of a dead owner; it
        returns how many. The owner finds a note of its lost leases for ``note_for`` seconds."""
        at, keys = now(), self.keys
        lists = keys.lists_leases_and_suspects(queues)
        limits = (at, at - self.days * _DAY, self.size)
        shared = (keys.dead, keys.lost(identity), keys.queues, keys.schedule, keys.suspected)
        names = (*shared, *lists)
        return Call(RECOVER, names, (*limits, note_for, *moves))
