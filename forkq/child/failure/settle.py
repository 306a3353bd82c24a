"""Settling a failed job in Redis: its lease goes and its new place is taken, or neither."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ...store.connection import (
    ConnectionLost,
    RedisConnection,
    RedisError,
    ResponseError,
)
from ...store.dead_set import DeadSet
from ...store.outage import Backoff, Outage
from ...store.pool import RedisPool
from ...store.scripts import RETRY
from ...wire import lease
from ...wire.keys import Keys
from ...wire.lease import UnitOfWork
from ..fetch.fetcher import Fetcher
from .retry import Bury, Decision, Drop, Retry


@dataclass(slots=True)
class PendingMove:
    """A unit and what was decided of it. ``sent``: a script whose answer was lost may have done it
    already."""

    unit: UnitOfWork
    decision: Decision
    sent: bool = False


class Settler:
    """Used by all processors. What Redis does not take is kept, leased, and tried again; then
    ``on_parked`` is called, so that somebody does."""

    def __init__(
        self,
        identity: str,
        keys: Keys,
        pool: RedisPool,
        fetcher: Fetcher,
        dead_set: DeadSet,
        outage: Outage,
        on_parked: Callable[[], None],
    ) -> None:
        self._identity = identity
        self._keys = keys
        self._pool = pool
        self._fetcher = fetcher
        self._dead_set = dead_set
        self._reach = outage.part(
            "redis does not take failed jobs; they are kept and tried again",
            "redis takes failed jobs again",
        )
        self._backoff = Backoff()
        self._due = 0.0
        self._on_parked = on_parked
        self._lock = threading.Lock()
        self._parked: list[PendingMove] = []

    def settle(self, unit: UnitOfWork, decision: Decision) -> None:
        """Does what was decided. If Redis refuses, the lease stays and ``again`` will do it."""
        case = PendingMove(unit, decision)
        if not self._settled(case):
            with self._lock:
                first = not self._parked
                self._parked.append(case)
            self._fetcher.park(unit)
            if first:
                self._on_parked()

    def again_in_time(self) -> bool:
        """As ``again``, but with growing pauses as long as Redis goes on refusing."""
        if not self._parked or time.monotonic() < self._due:
            return bool(self._parked)
        left = self.again()
        if left:
            self._due = time.monotonic() + self._backoff.pause()
        else:
            self._backoff.reset()
        return left

    def again(self) -> bool:
        """Tries what Redis did not take before; of what goes to the same set, no more once one is
        refused. Returns whether something is left."""
        with self._lock:
            waiting, self._parked = self._parked, []
        left: list[PendingMove] = []
        refused: dict[type[Decision], PendingMove] = {}
        for case in waiting:
            kind = type(case.decision)
            if kind in refused:
                left.append(case)
            elif not self._settled(case):
                refused[kind] = case  # to the end: another one comes first the next time
        with self._lock:
            self._parked += (*left, *refused.values())
        if waiting and not refused:
            self._reach.end()
        return bool(refused)

    def _settled(self, case: PendingMove) -> bool:
        if isinstance(case.decision, Drop):
            self._fetcher.acknowledge(case.unit)
            return True
        moved = self._moved(case, case.decision)
        if moved:
            self._fetcher.forget(case.unit)
        return moved

    def _moved(self, case: PendingMove, decision: Retry | Bury) -> bool:
        """Twice, for a connection that was cut: the second try does it, or finds it done."""
        for last in (False, True):
            try:
                with self._pool.connection() as connection:
                    self._move_once(connection, case, decision)
                    return True
            except ConnectionLost as error:
                if last:
                    self._reach.begin(error)
            except RedisError as error:
                self._reach.begin(error)
                break
        return False

    def _move_once(
        self, connection: RedisConnection, case: PendingMove, decision: Retry | Bury
    ) -> None:
        """If the lease is gone and it was not us, the job has been given to others."""
        sent, case.sent = case.sent, True
        try:
            moved = self._move(connection, case.unit, decision)
        except ResponseError:
            case.sent = sent  # refused: nothing was done
            raise
        if not moved and not sent:
            case.unit.lost = True

    def _move(self, connection: RedisConnection, unit: UnitOfWork, decision: Retry | Bury) -> bool:
        name = lease.lease(self._identity, unit.sequence)
        if isinstance(decision, Bury):
            return self._dead_set.bury(connection, unit.queue_name, name, decision.payload)
        keys = (self._keys.inflight(unit.queue_name), self._keys.retry)
        return bool(connection.script(RETRY, keys, (name, decision.at, decision.payload)))
