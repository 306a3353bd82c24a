"""The dead set: every burial of a job by a process goes through this module, and trims the set.

The clocks note in Redis by which bounds. So people who move jobs there, which trims nothing, are
told what the next burial will delete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from ..features.effects import Effect, packed
from ..wire.keys import Keys
from ..wire.times import now
from .scripts import BURY, RECOVER, Call

if TYPE_CHECKING:
    from .connection import RedisConnection
    from .crash_record import Move

_DAY: Final = 86_400.0
# Each clock renews its note about every 15 s. A note that is older than the latest one by more than
# this, in seconds, was of a configuration that was changed, or of a tree that had ended.
_SAME_TIME: Final = 120.0


class Bounds(NamedTuple):
    """The dead set keeps ``size`` jobs at most, and each for ``days`` days."""

    size: int
    days: float


class DeadSetLimits(msgspec.Struct, frozen=True):
    """The dead set and its limits: at most ``size`` entries, none older than ``days``."""

    keys: Keys
    size: int = 10_000
    days: float = 180.0

    def burial(
        self, queue: str, lease: str, payload: bytes, effects: Sequence[Effect] = ()
    ) -> Call:
        """The call of bury.lua that moves one leased job here, now, and does what its features ask;
        it returns 0 if the lease is no longer there."""
        at = now()
        keys = [self.keys.inflight(queue), self.keys.dead, self.keys.awaited(queue)]
        limits = (at - self.days * _DAY, self.size)
        asked = packed(effects, keys, self.keys.totals("ends"))
        return Call(BURY, keys, (lease, at, payload, *limits, *([asked] if asked else ())))

    def recover(
        self, queues: Sequence[str], identity: str, moves: Sequence[Move], note_for: int
    ) -> Call:
        """The call of recover.lua that gives back, schedules or buries the jobs of a dead owner; it
        returns how many. The owner finds a note of its lost leases for ``note_for`` seconds."""
        at, keys = now(), self.keys
        limits = (at, at - self.days * _DAY, self.size)
        shared = (keys.dead, keys.lost(identity), keys.queues, keys.schedule, keys.suspected)
        lists = (part for q in queues for part in (*keys.of_returns([q]), keys.suspects(q)))
        names = [*shared, *lists]
        arguments: list[object] = [*limits, note_for]
        for move in moves:
            arguments += (*move.arguments(keys, names), move.name if note_for else "")
        return Call(RECOVER, names, arguments)

    def note_bounds(self, connection: RedisConnection) -> list[Any]:
        """Notes the limits of this process in Redis, and removes notes of more than a day ago. A
        refusal is among the replies."""
        at, key = now(), self.keys.dead_bounds
        return connection.pipeline(
            [
                ("ZADD", key, at, f"{self.size} {self.days:.12g}"),
                ("ZREMRANGEBYSCORE", key, "-inf", at - _DAY),
            ]
        )


def noted_bounds(notes: Sequence[tuple[bytes, float]]) -> Bounds | None:
    """The smallest bounds of the processes that have noted theirs, ``notes`` being in order of
    time: any of these processes may bury the next job. None if there is no note."""
    last = notes[-1][1] if notes else 0.0
    found = list(_bounds(note for note, at in notes if at >= last - _SAME_TIME))
    if not found:
        return None
    return Bounds(min(each.size for each in found), min(each.days for each in found))


def _bounds(notes: Iterator[bytes]) -> Iterator[Bounds]:
    """The bounds in each note. A note that another program wrote, and that cannot be read, is left
    out."""
    for note in notes:
        with suppress(ValueError):  # also for a UnicodeDecodeError
            size, days = note.decode().split()
            yield Bounds(int(size), float(days))
