"""The sweep: finds leases whose owner is dead and whose master is not there to rescue them.

Where we can see its process, an owner is dead when that is gone, and alive as long as it is not,
however long it has not beaten. Elsewhere it is dead when its record, which expires after a minute
without a beat, was missing twice in a row, and no clock that does see the process vouches for it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..runtime.liveness import liveness_of, pid_scope, pid_scope_of
from ..store.connection import ConnectionLost, DamagedKey, OutOfMemory, RedisConnection, RedisError
from ..store.crash_record import Crash
from ..store.recovery import Recovery
from ..store.steps import carry_out
from ..wire.keys import Keys
from ..wire.times import now

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

HOST_LOST: Final = "host lost"

# All in seconds. A record lasts for 60 s and is renewed every 10.
_PERIOD: Final = 15.0
# Whoever reaches Redis has beaten in between; and less than a period, in which a host that is lost
# shall be found once its record has run out.
_SECOND_LOOK: Final = 12.0
# At least two sweeps of a clock that has lost Redis for a moment, and less than a record that is
# renewed has left at any time: see HostWatch.
_WATCH_TTL: Final = 45
# A gap in our own looking in which a record cannot have run out yet.
_LONGEST_GAP: Final = 30.0
# After a failure everybody is back by then: children beat and clocks try again within 10 s.
_SETTLING: Final = 20.0
_SHORTEST: Final = 0.1
# A day: a host that is back after that, and holds leases, notes its queues anew.
_FORGOTTEN: Final = 86_400.0
_AT_ONCE: Final = 1000
# A child that died is rescued by its own master, who tries once a second and knows how it died.
_RESCUE: Final = 3.0

Monotonic = Callable[[], float]


class HostWatch:
    """The note in Redis that a clock watches over the processes of this view. It also tells from
    when on a missing record says something about its owner, and not about the server.

    The note bears a mark, which stays the same as long as some clock of this view finds it. It runs
    out sooner than the record of a child that beats. So a note that is gone, or has another mark,
    means that such records may be gone as well: the server came back with old data, or its wall
    clock jumped. And if it was us who did not look for a while, nobody else may have reached it.
    """

    def __init__(self, keys: Keys, connection: RedisConnection, monotonic: Monotonic) -> None:
        self.trusted_from = 0.0  # monotonic
        self._key = keys.host(pid_scope())
        self._connection = connection
        self._monotonic = monotonic
        self._mark: bytes | None = None
        self._renewed = float("-inf")

    def renew(self) -> None:
        """Says that we watch, and finds out whether records can be trusted."""
        mark = self._connection.call("GETEX", self._key, "EX", _WATCH_TTL) or self._begin()
        now = self._monotonic()
        if mark != self._mark or now > self._renewed + _LONGEST_GAP:
            self.trusted_from = now + _SETTLING
        self._mark, self._renewed = mark, now

    def _begin(self) -> bytes | None:
        mark = secrets.token_hex(6)
        try:
            self._connection.call("SET", self._key, mark, "EX", _WATCH_TTL)
        except OutOfMemory:
            return self._mark  # a full server must not keep us from recovering jobs
        return mark.encode()


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds leases, in which queues, where it lives as far as it has said, and in how many
    seconds its record runs out (None: it is missing)."""

    identity: str
    queues: Sequence[str]
    place: str
    expires: float | None


class Sweep:
    """Remembers whom it misses, since when, and of which oddities it has spoken."""

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
        self._on_step = on_step  # called before each owner: a sweep may be long
        self._log = log
        self._monotonic = monotonic
        self._host_watch = HostWatch(keys, connection, monotonic)
        self._missing: dict[str, float] = {}
        self._dead: dict[str, float] = {}
        self._begun = False  # the first sweep of a tree that is started anew waits for nobody
        self._excused: set[str] = set()
        self._told: set[str] = set()

    def run(self) -> float:
        """Looks at every owner once. Returns in how many seconds it wants to look again."""
        self._host_watch.renew()
        owners = self._look(self._owners())
        self._remember(owners)
        pauses = [self._attend(owner) for owner in owners]
        self._begun = True
        return max(_SHORTEST, min([_PERIOD, *pauses]))

    def _remember(self, owners: Sequence[Owner]) -> None:
        now = self._monotonic()
        missing = {owner.identity for owner in owners if owner.expires is None}
        self._missing = {identity: self._missing.get(identity, now) for identity in missing}
        self._excused &= missing
        holding = {owner.identity for owner in owners}
        self._dead = {who: since for who, since in self._dead.items() if who in holding}

    def _attend(self, owner: Owner) -> float:
        """One whose jobs cannot be moved must not keep the others from it."""
        self._on_step()
        try:
            return self._judge(owner)
        except ConnectionLost:
            raise
        except RedisError as error:
            self._tell_once("jobs of a dead process cannot be moved", owner.identity, error)
            return _PERIOD

    def _judge(self, owner: Owner) -> float:
        """Recovers the jobs of one owner if it is dead. Returns when to look at it again."""
        seen = liveness_of(owner.place)
        if seen == "dead":
            return self._find_dead(owner)
        if seen == "unknown" and owner.expires is not None:
            return owner.expires
        if seen == "unknown":
            return self._miss(owner)
        return _PERIOD

    def _find_dead(self, owner: Owner) -> float:
        """One whose process is gone: its master's business, unless that is gone too."""
        since = self._dead.setdefault(owner.identity, self._monotonic())
        patience = since + _RESCUE - self._monotonic()
        if self._begun and patience > 0:
            return patience
        self._bury(owner)
        del self._dead[owner.identity]
        return _PERIOD

    def _miss(self, owner: Owner) -> float:
        """The same for one that is silent and out of our sight."""
        enough = max(self._missing[owner.identity] + _SECOND_LOOK, self._host_watch.trusted_from)
        patience = enough - self._monotonic()
        if patience > 0:
            return patience
        if vouched := self._vouched(owner):
            return vouched
        self._give_up(owner)
        return _PERIOD

    def _vouched(self, owner: Owner) -> float:
        """For how many seconds, as far as we know, a clock that sees the owner's process watches
        over it: what holds the interpreter up for minutes is alive, and known to be."""
        where = pid_scope_of(owner.place)
        if where in ("", pid_scope()):
            return 0.0
        left = self._connection.call("PTTL", self._keys.host(where))
        if left <= 0:
            return 0.0
        if owner.identity not in self._excused:
            self._excused.add(owner.identity)
            self._log.warning("no heartbeat, but its host is there", owner=owner.identity)
        return float(left / 1000)

    def _bury(self, owner: Owner) -> None:
        crash = Crash(reason="its host's master was gone too")
        done = carry_out(
            self._connection, self._recovery.recover(owner.queues, owner.identity, crash)
        )
        carry_out(self._connection, self._recovery.forget(owner.identity))
        done.tell(self._log, "jobs of a dead process recovered", owner=owner.identity)

    def _give_up(self, owner: Owner) -> None:
        crash = Crash(reason=HOST_LOST)
        steps = self._recovery.recover(owner.queues, owner.identity, crash, may_return=True)
        done = carry_out(self._connection, steps)
        self._recovery.strike(self._connection, owner.identity)
        done.tell(self._log, "jobs of a lost host recovered", owner=owner.identity)

    def _owners(self) -> dict[str, list[str]]:
        """Who holds leases, and in which queues."""
        queues, old = self._names()
        commands = [("HKEYS", self._keys.inflight(queue)) for queue in queues]
        owners: dict[str, list[str]] = {}
        replies = self._connection.pipeline(commands) if commands else []
        for queue, leases in zip(queues, replies, strict=True):
            if isinstance(leases, Exception):
                self._tell_once("queue left out of the sweep", queue, leases)
                continue
            identities = {lease.decode("utf-8", "replace").rpartition("/")[0] for lease in leases}
            for identity in identities - {""}:
                owners.setdefault(identity, []).append(queue)
        if forgotten := old.difference(*owners.values()):
            self._connection.call("ZREM", self._keys.fetched, *sorted(forgotten))
        return owners

    def _names(self) -> tuple[list[str], set[str]]:
        """All queues, and all that children take from: one that was deleted while a job of it was
        in flight is among the latter only. Then those that children took from long ago."""
        key, until = self._keys.fetched, now() - _FORGOTTEN
        pushed, fetched, old = self._connection.pipeline(
            [
                ("SMEMBERS", self._keys.queues),
                ("ZRANGE", key, 0, -1),
                ("ZRANGE", key, "-inf", until, "BYSCORE", "LIMIT", 0, _AT_ONCE),
            ]
        )
        if isinstance(pushed, DamagedKey):
            event = "queues from which no child takes are left out of the sweep"
            self._tell_once(event, self._keys.queues, pushed)
            pushed = ()
        elif isinstance(pushed, Exception):
            raise pushed
        if isinstance(fetched, Exception):
            self._tell_once("deleted queues are left out of the sweep", key, fetched)
            fetched = old = ()
        return sorted(self._readable({*pushed, *fetched})), self._readable(old)

    def _readable(self, found: Iterable[bytes]) -> set[str]:
        names = set()
        for name in found:
            try:
                names.add(name.decode())
            except UnicodeDecodeError as error:
                self._tell_once("queue left out of the sweep", repr(name), error)
        return names

    def _tell_once(self, event: str, which: str, error: Exception) -> None:
        """Something odd is said once; it is looked at again with every sweep."""
        if which not in self._told:
            self._told.add(which)
            self._log.error(event, which=which, error=str(error))

    def _look(self, owners: Mapping[str, list[str]]) -> list[Owner]:
        """Looks at all of them in one round trip."""
        commands = [
            command
            for identity in owners
            for command in (
                ("GET", self._keys.place(identity)),
                ("PTTL", self._keys.process(identity)),
            )
        ]
        replies = self._connection.pipeline(commands) if commands else []
        pairs = zip(owners.items(), replies[::2], replies[1::2], strict=True)
        return [
            Owner(identity, queues, _place(place), _expires(left))
            for (identity, queues), place, left in pairs
        ]


def _place(found: Any) -> str:
    """Where it lives, as far as it has said; an error (another type) says nothing."""
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else ""


def _expires(left: int | Exception) -> float | None:
    """PTTL's answer in seconds: -2 stands for a key that is missing, -1 for one that stays."""
    if isinstance(left, Exception):
        raise left
    if left == -2:
        return None
    return left / 1000 if left >= 0 else _PERIOD
