"""The leader's lease: one clock of a cluster holds it and leads, the others stand by.

Only the leader moves due jobs and enqueues periodic ones. Two clocks that do so at once do no harm:
every move is atomic. But ``forkq.is_leader()`` may be true on one host at most. So the leader
counts the lease from before it asked Redis, by its own monotonic clock, and ends its leadership a
little before the lease expires.

If Redis refuses the lease to every clock (a key of another type, a user without the right), due
jobs must not wait: then every clock does the leader's work, and no clock leads. A full server is
not such a case: it lets a clock take and renew the lease.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..runtime.liveness import liveness_of, process_ref
from ..store.connection import RedisConnection, ResponseError, refused
from ..store.outage import Outage
from ..store.scripts import LEADER_CLAIM, LEADER_RESIGN
from ..store.server_time import ServerTime
from ..wire.keys import Keys

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# All in seconds.
TTL: Final = 12.0
RENEW: Final = 5.0
# How much earlier than the lease the leadership ends: hosts' clocks run at slightly different
# speeds, and the child hears of the end through a pipe.
MARGIN: Final = 1.0
# How long no clock can take the lease after a resignation: a child whose jobs compute needs that
# long until its main thread gets the interpreter and hears of the end.
HANDOVER: Final = 1.0
# How often a standby checks whether the leader's process, if it runs on this host, still lives.
# That costs no command.
_LIVENESS_CHECK: Final = 1.0
# How often a standby asks a server that sends no invalidation at a resignation.
_POLL: Final = 1.0
_COUNTER_TTL: Final = 86_400


class LeaderLease:
    """This clock's part in the leader's lease, on the clock's connection.

    ``listener`` is called whenever the time changes until which this clock leads (monotonic
    seconds; 0: it leads no more).
    """

    def __init__(
        self,
        identity: str,
        keys: Keys,
        connection: RedisConnection,
        listener: Callable[[float], None],
        log: FilteringBoundLogger,
    ) -> None:
        self._name = f"{identity} {process_ref()}".encode()
        self._keys = keys
        self._connection = connection
        self._listener = listener
        self._log = log
        self._refusal = Outage(
            log,
            "redis refuses the leader's lease; every clock moves due jobs, and no clock leads",
            "redis grants the leader's lease again",
        )
        self._server_time = ServerTime(log)
        self._leads_until = 0.0
        self._next_try = 0.0
        self._leader_ref = ""  # the process_ref of the leader, if another clock leads
        self._watches_resignations = False
        self._refused = False
        self._resigned = False

    @property
    def leads(self) -> bool:
        """Whether this clock holds the lease, as far as it knows."""
        return time.monotonic() < self._leads_until

    @property
    def does_the_work(self) -> bool:
        """Whether this clock does the leader's work: it leads, or Redis refuses the lease to every
        clock."""
        return self.leads or self._refused

    def pause(self) -> float:
        """Seconds until ``attend`` is due again."""
        if self._resigned:
            return TTL
        left = self._next_try - time.monotonic()
        return min(left, _LIVENESS_CHECK) if liveness_of(self._leader_ref) == "alive" else left

    def attend(self, watch: bool) -> None:
        """Takes or renews the lease when that is due. With ``watch``, the server sends an
        invalidation when a leader resigns. Raises ConnectionLost, and the errors of a failover."""
        waiting = time.monotonic() < self._next_try and liveness_of(self._leader_ref) != "dead"
        if waiting or self._resigned:
            return
        self._server_time.measure(self._connection)  # before the clock looks for due jobs
        try:
            self._renew_or_take(watch)
        except ResponseError as error:
            if refused(error):
                raise
            self._stand_by(RENEW)
            self._refused = True
            self._refusal.begin(error)
        else:
            self._refused = False
            self._refusal.end()

    def try_now(self) -> None:
        """Makes ``attend`` due at once: a leader has resigned, or the connection is new."""
        self._next_try, self._watches_resignations = 0.0, False

    def resign(self) -> None:
        """Gives up the lease for good: this clock stops, or the children of its tree are quiet."""
        self._resigned, self._refused = True, False
        if self.leads:
            self._stand_by(TTL)  # the app hears of it before another clock can lead
            keys = (self._keys.leader, self._keys.leader_left)
            self._connection.script(
                LEADER_RESIGN, keys, (self._name, int(HANDOVER * 1000), _COUNTER_TTL)
            )

    def _renew_or_take(self, watch: bool) -> None:
        if not (self.leads and self._renew()):
            self._take(watch)

    def _renew(self) -> bool:
        """Renews the lease. False if this clock has lost it: another clock holds it, or none
        does."""
        sent = time.monotonic()
        milliseconds = int(TTL * 1000)
        if self._connection.call("GETEX", self._keys.leader, "PX", milliseconds) != self._name:
            return False
        self._lead(sent)
        return True

    def _take(self, watch: bool) -> None:
        """Takes the lease if it is free, or if the process of its holder is dead."""
        if watch:
            self._watch_resignations()
        sent = time.monotonic()
        holder, left = self._claim(b"")
        ref = _ref_of(holder)
        if holder != self._name and liveness_of(ref) == "dead":
            holder, left = self._claim(holder)
            ref = _ref_of(holder)
        if holder == self._name:
            self._lead(sent)
        else:
            self._leader_ref = ref
            self._stand_by(left if watch else min(left, _POLL))

    def _watch_resignations(self) -> None:
        if not self._watches_resignations:
            key = self._keys.leader_left
            self._connection.pipeline([("CLIENT", "CACHING", "YES"), ("GET", key)])
            self._watches_resignations = True

    def _claim(self, dead_holder: bytes) -> tuple[bytes, float]:
        """Claims the lease if it is free or held by ``dead_holder``. Returns who holds it then, and
        for how many seconds."""
        arguments = (self._name, int(TTL * 1000), dead_holder)
        holder, left = self._connection.script(LEADER_CLAIM, (self._keys.leader,), arguments)
        return holder, left / 1000

    def _lead(self, sent: float) -> None:
        """Makes this clock the leader. The lease runs from ``sent`` (monotonic) or later."""
        if not self._leads_until:
            self._log.info("this clock leads")
        self._leader_ref = ""
        self._next_try = sent + RENEW
        self._set_leads_until(sent + TTL - MARGIN)

    def _stand_by(self, seconds: float) -> None:
        """Makes this clock one that does not lead; it tries again in ``seconds``."""
        if self._leads_until:
            self._log.info("this clock no longer leads")
        self._next_try = time.monotonic() + seconds
        self._set_leads_until(0.0)

    def _set_leads_until(self, until: float) -> None:
        if until != self._leads_until:
            self._leads_until = until
            self._listener(until)


def _ref_of(holder: bytes) -> str:
    """The process_ref in the lease's value."""
    return holder.decode("utf-8", "replace").partition(" ")[2]
