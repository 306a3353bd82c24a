"""The leader's lease: of all the clocks of a cluster one leads, the others stand by.

Only the leader moves due jobs and enqueues periodic ones. Two that do so at once are harmless:
every move is atomic. What must be right is the moment until which an app may believe that it
leads. So the leader counts from before it asked for the lease, by its own monotonic clock, and ends
a little early.

A server that gives nobody the lease (another type at its key, a user that may not touch it) must
not keep due jobs waiting: then every clock acts, and nobody leads. A full server is no such case:
it lets the lease be taken and renewed.
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

TTL: Final = 12.0
RENEW: Final = 5.0
# How much earlier than the lease our leadership ends: hosts' clocks run at slightly different
# speed, and our child hears of the end by pipe.
MARGIN: Final = 1.0
# How long nobody has the lease after a resignation: in a child whose jobs compute, it takes that
# long until its main thread has had the interpreter often enough to hear of it.
HANDOVER: Final = 1.0
# How often a standby looks whether the leader, a process that it can see, still lives: no command.
_GLANCE: Final = 1.0
# How often a standby asks a server that does not tell of a resignation.
_POLL: Final = 1.0
_COUNTER_TTL: Final = 86_400


class Leader:
    """This clock's claim to the lease, on the clock's wire. ``report`` is called with the time
    until which this clock leads (monotonic) whenever that changes; 0: it no longer does."""

    def __init__(
        self,
        identity: str,
        keys: Keys,
        connection: RedisConnection,
        report: Callable[[float], None],
        log: FilteringBoundLogger,
    ) -> None:
        self._name = f"{identity} {process_ref()}".encode()
        self._keys = keys
        self._connection = connection
        self._report = report
        self._log = log
        self._refusal = Outage(
            log,
            "redis gives nobody the leader's lease; every clock moves due jobs, and nobody leads",
            "redis gives the leader's lease again",
        )
        self._server_time = ServerTime(log)
        self._until = 0.0
        self._due = 0.0
        self._place = ""  # of the leader, if that is somebody else
        self._watching = False
        self._refused = False
        self._retired = False

    @property
    def leads(self) -> bool:
        """Whether this clock holds the lease, for all it knows."""
        return time.monotonic() < self._until

    @property
    def acts(self) -> bool:
        """Whether this clock does the leader's work: it leads, or nobody can."""
        return self.leads or self._refused

    def pause(self) -> float:
        """Seconds until ``attend`` wants to be called again."""
        if self._retired:
            return TTL
        left = self._due - time.monotonic()
        return min(left, _GLANCE) if liveness_of(self._place) == "alive" else left

    def attend(self, watch: bool) -> None:
        """Takes or renews the lease, when it is time for that. With ``watch``, the server tells
        the wire when a leader resigns. Raises ConnectionLost, and what a failover makes of a
        command."""
        waiting = time.monotonic() < self._due and liveness_of(self._place) != "dead"
        if waiting or self._retired:
            return
        self._server_time.measure(self._connection)  # before what is due is looked for
        try:
            if not (self.leads and self._renew()):
                self._take(watch)
            self._refused = False
            self._refusal.end()
        except ResponseError as error:
            if refused(error):
                raise
            self._stand_down(RENEW)
            self._refused = True
            self._refusal.begin(error)

    def look_again(self) -> None:
        """A leader has resigned, or the connection is new: it is time to attend, whatever was
        known."""
        self._due, self._watching = 0.0, False

    def retire(self) -> None:
        """Gives up the lease for good: this clock is stopping, or its children fetch no more."""
        self._retired, self._refused = True, False
        if self.leads:
            self._stand_down(TTL)  # first the app, then the others
            keys = (self._keys.leader, self._keys.leader_left)
            self._connection.script(
                LEADER_RESIGN, keys, (self._name, int(HANDOVER * 1000), _COUNTER_TTL)
            )

    def _renew(self) -> bool:
        """False if somebody else has the lease: it was lost in spite of us."""
        sent = time.monotonic()
        milliseconds = int(TTL * 1000)
        if self._connection.call("GETEX", self._keys.leader, "PX", milliseconds) != self._name:
            return False
        self._lead(sent)
        return True

    def _take(self, watch: bool) -> None:
        if watch and not self._watching:
            self._connection.pipeline(
                [("CLIENT", "CACHING", "YES"), ("GET", self._keys.leader_left)]
            )
            self._watching = True
        sent = time.monotonic()
        holder, left = self._claim(b"")
        place = _place(holder)
        if holder != self._name and liveness_of(place) == "dead":
            holder, left = self._claim(holder)
            place = _place(holder)
        if holder == self._name:
            self._lead(sent)
        else:
            self._place = place
            self._stand_down(left if watch else min(left, _POLL))

    def _claim(self, dead: bytes) -> tuple[bytes, float]:
        """Who has the lease now, and for how many seconds."""
        arguments = (self._name, int(TTL * 1000), dead)
        holder, left = self._connection.script(LEADER_CLAIM, (self._keys.leader,), arguments)
        return holder, left / 1000

    def _lead(self, sent: float) -> None:
        """The lease is ours from at least ``sent`` on."""
        if not self._until:
            self._log.info("this clock leads")
        self._place = ""
        self._due = sent + RENEW
        self._tell(sent + TTL - MARGIN)

    def _stand_down(self, seconds: float) -> None:
        """We do not lead, and try again after so many seconds."""
        if self._until:
            self._log.info("this clock leads no more")
        self._due = time.monotonic() + seconds
        self._tell(0.0)

    def _tell(self, until: float) -> None:
        if until != self._until:
            self._until = until
            self._report(until)


def _place(holder: bytes) -> str:
    """Where the process lives that wrote ``holder``: see ``whereabouts``."""
    return holder.decode("utf-8", "replace").partition(" ")[2]
