"""The sweep: finds leases whose owner is dead and whose master does not rescue them.

If this clock can see the owner's process, the process decides: the owner is dead when its process
is gone, and alive while its process lives, however old its last heartbeat is. If this clock cannot
see the process, the owner is dead when its record was missing in two looks, and no clock that can
see the process watches over it. A record expires when its owner sends no heartbeat.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from ..limits.patterns import decoded_names
from ..runtime.liveness import liveness_of, pid_scope, pid_scope_of
from ..runtime.log import LogOnce
from ..store.connection import (
    ConnectionLost,
    DamagedKey,
    OutOfMemory,
    RedisConnection,
    RedisError,
)
from ..store.crash_record import ProcessDeath
from ..store.recovery import Recovery
from ..store.steps import carry_out
from ..wire.keys import Keys
from ..wire.times import now

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_HOST_LOST: Final = "host lost"
_MASTER_GONE: Final = "its host's master was gone too"

# All in seconds.
_PERIOD: Final = 15.0
# Longer than the interval of a heartbeat, so that an owner that reaches Redis renews its record in
# between. Shorter than the period, so that a lost host is found soon after its record expired.
_SECOND_LOOK: Final = 12.0
_SHORTEST_PAUSE: Final = 0.1
# A host that is back later than this, and fetches, notes its queues again.
_FORGET_QUEUES_AFTER: Final = 86_400.0
# The master of a child that died tries to rescue it once a second, and knows how it died: how long
# the sweep leaves the child to it if nothing is known of the master, and if the master lives.
_RESCUE_TIME: Final = 3.0
_MASTERS_TIME: Final = 30.0
# The note of a host outlives two sweeps of a clock that has lost Redis for a moment. It expires
# earlier than the record of a child that sends heartbeats: see HostWatch.
_WATCH_TTL: Final = 45
# A clock that did not sweep for longer than this cannot tell which records expired meanwhile.
_LONGEST_GAP: Final = 30.0
# After a failure, children send a heartbeat and clocks sweep again within this time.
_SETTLING: Final = 20.0

_MOST_FORGOTTEN: Final = 1000  # names of queues that one sweep forgets

Monotonic: TypeAlias = "Callable[[], float]"


class Owner(msgspec.Struct, frozen=True):
    """A process that holds leases in ``queues``. ``process_ref`` and ``master_ref`` say where it
    and its master run ("" if it has not said so), ``expires`` in how many seconds its record
    expires (None: it is missing)."""

    identity: str
    queues: Sequence[str]
    process_ref: str
    master_ref: str
    expires: float | None


class Sweep:
    """Remembers since when each owner is missing or dead, and which problems it has logged.

    ``on_step`` is called before each owner is checked: a sweep may be long.
    """

    def __init__(
        self,
        keys: Keys,
        connection: RedisConnection,
        recovery: Recovery,
        log: FilteringBoundLogger,
        monotonic: Monotonic = time.monotonic,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        self._keys = keys
        self._connection = connection
        self._recovery = recovery
        self._on_step = on_step
        self._log = log
        self._log_once = LogOnce(log)
        self._monotonic = monotonic
        self._host_watch = HostWatch(keys, connection, monotonic)
        self._missing_since: dict[str, float] = {}
        self._dead_since: dict[str, float] = {}
        self._first_sweep = True  # after a restart of the tree, no master will rescue the dead

    def run(self) -> float:
        """Checks every owner once. Returns in how many seconds the next sweep is due."""
        self._host_watch.renew()
        owners = self._with_state(self._queues_by_owner())
        self._remember(owners)
        pauses = [self._check(owner) for owner in owners]
        self._first_sweep = False
        return max(_SHORTEST_PAUSE, min([_PERIOD, *pauses]))

    def _remember(self, owners: Sequence[Owner]) -> None:
        now = self._monotonic()
        missing = {owner.identity for owner in owners if owner.expires is None}
        for identity in self._missing_since.keys() - missing:
            self._log_once.over(("no heartbeat", identity))
        self._missing_since = {who: self._missing_since.get(who, now) for who in missing}
        holding = {owner.identity for owner in owners}
        self._dead_since = {who: at for who, at in self._dead_since.items() if who in holding}

    def _check(self, owner: Owner) -> float:
        """Recovers the jobs of one owner if it is dead. Returns in how many seconds to check it
        again. What Redis refuses for one owner does not keep the others from their check."""
        self._on_step()
        try:
            return self._recover_if_dead(owner)
        except ConnectionLost:
            raise
        except RedisError as error:
            self._log_problem("jobs of a dead process cannot be moved", owner.identity, error)
            return _PERIOD

    def _recover_if_dead(self, owner: Owner) -> float:
        liveness = liveness_of(owner.process_ref)
        if liveness == "dead":
            return self._check_dead(owner)
        if liveness == "unknown":
            return self._check_missing(owner) if owner.expires is None else owner.expires
        return _PERIOD

    def _check_dead(self, owner: Owner) -> float:
        """Recovers the jobs of an owner whose process is gone, once its master, if there is one,
        has had time to rescue them."""
        since = self._dead_since.setdefault(owner.identity, self._monotonic())
        has_master = liveness_of(owner.master_ref) == "alive"
        left = since + (_MASTERS_TIME if has_master else _RESCUE_TIME) - self._monotonic()
        if left > 0 and (has_master or not self._first_sweep):
            return min(left, _RESCUE_TIME)  # the master may die meanwhile
        self._recover_dead(owner, has_master=has_master)
        del self._dead_since[owner.identity]
        return _PERIOD

    def _check_missing(self, owner: Owner) -> float:
        """Recovers the jobs of an owner whose record was missing in two looks, and whose process
        this clock cannot see."""
        second_look = self._missing_since[owner.identity] + _SECOND_LOOK
        left = max(second_look, self._host_watch.trusted_from) - self._monotonic()
        if left > 0:
            return left
        if watched := self._watched_for(owner):
            return watched
        self._recover_lost(owner)
        return _PERIOD

    def _watched_for(self, owner: Owner) -> float:
        """For how many more seconds the note stands that a clock which can see the owner's process
        watches over it; 0 without a note. Such a process is alive, though a call into C may keep it
        from sending a heartbeat for minutes."""
        scope = pid_scope_of(owner.process_ref)
        if scope in ("", pid_scope()):
            return 0.0
        left = self._connection.call("PTTL", self._keys.host(scope))
        if left <= 0:
            return 0.0
        self._log_once.warning(
            ("no heartbeat", owner.identity),
            "no heartbeat, but its host is there",
            owner=owner.identity,
        )
        return float(left / 1000)

    def _recover_dead(self, owner: Owner, *, has_master: bool) -> None:
        why = "its master could not return its jobs" if has_master else _MASTER_GONE
        crash = ProcessDeath(reason=why, of_tree=not has_master)
        steps = self._recovery.recover(owner.queues, owner.identity, crash)
        recovered = carry_out(self._connection, steps)
        carry_out(self._connection, self._recovery.forget(owner.identity))
        recovered.tell(self._log, "jobs of a dead process recovered", owner=owner.identity)

    def _recover_lost(self, owner: Owner) -> None:
        crash = ProcessDeath(reason=_HOST_LOST, of_tree=True)
        steps = self._recovery.recover(owner.queues, owner.identity, crash, may_return=True)
        recovered = carry_out(self._connection, steps)
        self._recovery.remove_from_processes(self._connection, owner.identity)
        recovered.tell(self._log, "jobs of a lost host recovered", owner=owner.identity)

    def _queues_by_owner(self) -> dict[str, list[str]]:
        """The identities that hold leases, each with the queues that the leases belong to."""
        queues, old = self._queue_names()
        owners: dict[str, list[str]] = {}
        for queue, leases in self._leases(queues):
            identities = {lease.decode("utf-8", "replace").rpartition("/")[0] for lease in leases}
            for identity in identities - {""}:
                owners.setdefault(identity, []).append(queue)
        if forgotten := old.difference(*owners.values()):
            self._connection.call("ZREM", self._keys.fetched, *sorted(forgotten))
        return owners

    def _leases(self, queues: Sequence[str]) -> Iterator[tuple[str, Sequence[bytes]]]:
        """The leases of each queue. A queue whose leases cannot be read is left out."""
        commands = [("HKEYS", self._keys.inflight(queue)) for queue in queues]
        replies = self._connection.pipeline(commands) if commands else []
        for queue, leases in zip(queues, replies, strict=True):
            if isinstance(leases, Exception):
                self._log_problem("queue left out of the sweep", queue, leases)
            else:
                yield queue, leases

    def _queue_names(self) -> tuple[list[str], set[str]]:
        """All queues; then those of them from which children have fetched last long ago.

        A queue that was deleted while a job of it was in flight is only among the queues from which
        children have fetched.
        """
        key, until = self._keys.fetched, now() - _FORGET_QUEUES_AFTER
        pushed, fetched, old = self._connection.pipeline(
            [
                ("SMEMBERS", self._keys.queues),
                ("ZRANGE", key, 0, -1),
                ("ZRANGE", key, "-inf", until, "BYSCORE", "LIMIT", 0, _MOST_FORGOTTEN),
            ]
        )
        if isinstance(fetched, Exception):
            self._log_problem("deleted queues are left out of the sweep", key, fetched)
            fetched = old = ()
        names = decoded_names({*self._pushed(pushed), *fetched}, self._log_unreadable)
        return sorted(names), decoded_names(old, self._log_unreadable)

    def _pushed(self, reply: Any) -> Collection[bytes]:
        """The names in the set of all queues; none if its key holds another type."""
        if isinstance(reply, DamagedKey):
            event = "queues from which no child takes are left out of the sweep"
            self._log_problem(event, self._keys.queues, reply)
            return ()
        if isinstance(reply, Exception):
            raise reply
        names: Collection[bytes] = reply
        return names

    def _with_state(self, owners: Mapping[str, list[str]]) -> list[Owner]:
        """The owners with the state of each; one round trip for all."""
        commands = [
            command
            for identity in owners
            for command in (
                ("GET", self._keys.process_ref(identity)),
                ("PTTL", self._keys.process(identity)),
            )
        ]
        replies = self._connection.pipeline(commands) if commands else []
        pairs = zip(owners.items(), replies[::2], replies[1::2], strict=True)
        return [
            Owner(identity, queues, *_refs_in(found), _seconds_left(pttl))
            for (identity, queues), found, pttl in pairs
        ]

    def _log_unreadable(self, name: bytes, error: UnicodeDecodeError) -> None:
        self._log_problem("queue left out of the sweep", repr(name), error)

    def _log_problem(self, event: str, which: str, error: Exception) -> None:
        """Logs a problem with ``which`` once; every sweep tries again."""
        self._log_once.error(which, event, which=which, error=str(error))


def _refs_in(found: Any) -> tuple[str, str]:
    """The references of a process and of its master, as Redis returns them; "" if they are missing,
    or an error (a key of another type)."""
    text = found.decode("utf-8", "replace") if isinstance(found, bytes) else ""
    own, _, master = text.partition(" ")
    return own, master


def _seconds_left(pttl: int | Exception) -> float | None:
    """The reply to PTTL in seconds: -2 stands for a missing key, -1 for a key without expiry."""
    if isinstance(pttl, Exception):
        raise pttl
    if pttl == -2:
        return None
    return pttl / 1000 if pttl >= 0 else _PERIOD


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
