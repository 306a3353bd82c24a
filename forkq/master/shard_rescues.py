"""Rescue over several Redis: one Rescue for each shard, with a connection of its own."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from ..config.shards import DEFAULT_SHARD
from .rescue import DeadChild, Rescue

# Seconds after which the other shards wait for the next turn of the master's loop.
_TURN_LIMIT: Final = 0.05


class ShardRescues(Rescue):
    """Stands where a Rescue stands. A shard that is down keeps no other one from its rescues: a
    turn of the loop waits for one slow shard at most, and the next turn begins behind it."""

    def __init__(self, rescues: Mapping[str, Rescue]) -> None:
        self._of = dict(rescues)
        self._order = deque(self._of.values())

    @property
    def due(self) -> float | None:
        moments = (rescue.due for rescue in self._order)
        return min((moment for moment in moments if moment is not None), default=None)

    @property
    def leases(self) -> int:
        return sum(rescue.leases for rescue in self._order)

    def holds(self, identity: str) -> bool:
        return any(rescue.holds(identity) for rescue in self._order)

    def descriptors(self) -> Sequence[int]:
        return [fd for rescue in self._order for fd in rescue.descriptors()]

    def add(self, child: DeadChild) -> None:
        # A child from before a rolling restart that has brought the shards has none.
        self._of.get(child.shard, self._of[DEFAULT_SHARD]).add(child)

    def abandon(self) -> None:
        for rescue in self._order:
            rescue.abandon()

    def limit_waits(self, until: float) -> None:
        for rescue in self._order:
            rescue.limit_waits(until)

    def connect(self) -> None:
        for rescue in self._order:
            rescue.connect()

    def advance(self) -> bool:
        end = time.monotonic() + _TURN_LIMIT
        for _ in range(len(self._order)):
            rescue = self._order[0]
            self._order.rotate(-1)
            rescue.advance()
            if time.monotonic() >= end:
                break
        return self.due is None
