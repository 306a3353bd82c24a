"""Settles a failed job in Redis: one script drops its lease and adds it to a set, or neither."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ...errors import MalformedPayload
from ...store.connection import (
    ConnectionLost,
    RedisConnection,
    RedisError,
    ResponseError,
)
from ...store.dead_set import DeadSet
from ...store.outage import Backoff, Outage
from ...store.pool import RedisPool
from ...store.scripts import ISOLATE, RETRY
from ...wire import lease
from ...wire.keys import Keys
from ...wire.lease import UnitOfWork
from ...wire.payload import LARGEST
from ..fetch.fetcher import Fetcher
from .retry import Bury, Postpone, Retry

# What hiredis says when a reply does not fit into the memory of this process.
_NO_MEMORY: Final = "Out of memory"
# What isolate.lua says if the class is held no more: the job is in its queue again.
_RELEASED: Final = 2


class NotRun(Exception):
    """The outcome of a job that is not performed in the child that has fetched it."""


class MustRunAlone(NotRun):
    """It may have killed a process, and this child runs other jobs, too. ``held``: its class, if
    that has killed too many."""

    def __init__(self, held: str = "") -> None:
        super().__init__(held)
        self.held = held


class MustRunSole(NotRun):
    """It may have killed a whole tree, and other suspects of this tree may run now."""


class NeedsNewer(NotRun):
    """Only a newer forkq can run it."""


class Unread(NotRun):
    """Redis did not give its payload."""


@dataclass(frozen=True, slots=True)
class Isolate:
    """It runs alone: it goes to the list of suspects. ``held``: its class, if that is held; "" for
    a suspect. ``last``: to the tail of that list."""

    held: str = ""
    last: bool = False


@dataclass(slots=True)
class PendingMove:
    """A unit and what was decided. ``sent``: a script whose reply was lost may have moved it."""

    unit: UnitOfWork
    decision: Retry | Bury | Isolate
    sent: bool = False


class Settler:
    """Shared by all processors. What Redis refuses is parked: its lease stays, and ``again`` tries
    it later. ``on_parked`` is called when the first is parked; the heartbeat then calls
    ``again``. ``held``: the classes that are held; one that is found released leaves it."""

    def __init__(
        self,
        identity: str,
        keys: Keys,
        pool: RedisPool,
        fetcher: Fetcher,
        dead_set: DeadSet,
        outage: Outage,
        on_parked: Callable[[], None],
        held: set[str] | None = None,
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
        self._held = set() if held is None else held
        self._lock = threading.Lock()
        self._parked: list[PendingMove] = []

    def retry(self, unit: UnitOfWork, decision: Retry) -> None:
        """Drops the lease and schedules the retry. If Redis refuses, the lease stays, and ``again``
        does both."""
        self._move_or_park(PendingMove(unit, decision))

    def bury(self, unit: UnitOfWork, decision: Bury) -> None:
        """Drops the lease and adds the job to the dead set. If Redis refuses: as ``retry``."""
        self._move_or_park(PendingMove(unit, decision))

    def isolate(self, unit: UnitOfWork, held: str = "", *, last: bool = False) -> None:
        """Moves the job to its queue's list of suspects: it is one, or its class is ``held``. If
        Redis refuses: as ``retry``. ``last``: a suspect goes to the tail."""
        self._move_or_park(PendingMove(unit, Isolate(held, last)))

    def read(self, unit: UnitOfWork) -> bytes:
        """The payload of ``unit``, which the fetch has left in Redis because of its size. Raises
        Unread if Redis does not give it, MalformedPayload if no process would decode it, and
        MemoryError."""
        if unit.left_bytes > LARGEST:
            raise MalformedPayload(f"it has {unit.left_bytes:,} bytes, and the most is {LARGEST:,}")
        try:
            found = self._payload_of(unit)
        except (*ConnectionLost, RedisError) as error:
            if _NO_MEMORY in str(error):
                raise MemoryError(str(error)) from error
            raise Unread(str(error)) from error
        if found is None:  # another process has the job
            unit.lost = True
            raise Unread("its lease is gone")
        unit.payload = found
        return unit.payload

    def _payload_of(self, unit: UnitOfWork) -> bytes | None:
        """None if the lease is gone. A cut connection costs a second try."""
        name = lease.lease(self._identity, unit.sequence)
        command = ("HGET", self._keys.inflight(unit.queue_name), name)
        with suppress(*ConnectionLost), self._pool.connection() as connection:
            first: bytes | None = connection.call(*command)
            return first
        with self._pool.connection() as connection:
            second: bytes | None = connection.call(*command)
            return second

    def _move_or_park(self, move: PendingMove) -> None:
        if self._moved(move):
            return
        self._fetcher.park(move.unit)  # first: ``again`` forgets the unit in another thread
        with self._lock:
            first = not self._parked
            self._parked.append(move)
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
        """Tries each parked move again; after one is refused, no other to the same set. Returns
        whether any is left."""
        with self._lock:
            parked, self._parked = self._parked, []
        left: list[PendingMove] = []
        refused: dict[type[Retry | Bury | Isolate], PendingMove] = {}
        for move in parked:
            kind = type(move.decision)
            if kind in refused:
                left.append(move)
            elif not self._moved(move):
                refused[kind] = move  # to the end: another one comes first the next time
        with self._lock:
            self._parked += (*left, *refused.values())
        if parked and not refused:
            self._reach.end()
        return bool(refused)

    def _moved(self, move: PendingMove) -> bool:
        """Whether Redis has the move. A cut connection costs a second try, which moves the job, or
        finds it moved."""
        for last in (False, True):
            try:
                with self._pool.connection() as connection:
                    self._move_once(connection, move)
            except ConnectionLost as error:
                if last:
                    self._reach.begin(error)
            except RedisError as error:
                self._reach.begin(error)
                return False
            else:
                self._reach.answered()
                self._fetcher.forget(move.unit)
                return True
        return False

    def _move_once(self, connection: RedisConnection, move: PendingMove) -> None:
        """A lease that is gone, though this child has not sent the move before, was taken by
        another process: the job runs elsewhere."""
        sent, move.sent = move.sent, True
        try:
            moved = self._move(connection, move.unit, move.decision)
        except ResponseError:
            move.sent = sent  # refused: nothing was done
            raise
        if not moved and not sent:
            move.unit.lost = True

    def _move(
        self, connection: RedisConnection, unit: UnitOfWork, decision: Retry | Bury | Isolate
    ) -> bool:
        name, keys = lease.lease(self._identity, unit.sequence), self._keys
        inflight = keys.inflight(unit.queue_name)
        if isinstance(decision, Bury):
            return self._dead_set.bury(connection, unit.queue_name, name, decision.payload)
        if isinstance(decision, Isolate):
            return self._isolate(connection, unit, decision)
        is_unrun = isinstance(decision, Postpone)
        later = keys.schedule if is_unrun else keys.retry
        arguments = (name, decision.at, decision.payload, int(is_unrun))
        return bool(connection.script(RETRY, (inflight, later), arguments))

    def _isolate(self, connection: RedisConnection, unit: UnitOfWork, decision: Isolate) -> bool:
        name, keys, queue = lease.lease(self._identity, unit.sequence), self._keys, unit.queue_name
        lists = (keys.inflight(queue), keys.suspects(queue), keys.suspected, keys.queue(queue))
        arguments = (name, queue, decision.held, int(decision.last))
        moved = connection.script(ISOLATE, (*lists, keys.held_classes), arguments)
        if moved == _RELEASED:  # this child has not heard of it yet
            self._held.discard(decision.held)
        return bool(moved)
