"""The heartbeat: tells Redis every ten seconds, and on news, how this child stands.

A thread of its own with a connection of its own, so that a slow Redis never delays an order from
the master. It is punctual while processors compute in Python: each of its few system calls waits
for the interpreter's lock once. A C call that keeps that lock stops this thread too, and nothing
here can help it: then the host's clock vouches for the child (clock/sweep.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from ...store.connection import ConnectionLost, RedisConnection, RedisError
from ...store.outage import Outage
from ...store.server_time import ServerTime
from ...wire.lease import UnitOfWork
from .record import Record
from .round_trip import RoundTrip
from .stats import Totals
from .stats_flush import StatsFlusher

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

INTERVAL: Final = 10.0
_SOON: Final = 1.0
# How often the definitions of periodic jobs are looked at, with the beat that comes next: what
# something else makes of them is repaired within a minute.
_PUBLISH_EVERY: Final = 35.0
_TIME_EVERY: Final = 55.0


class Snapshot(NamedTuple):
    """How the child stands at this moment."""

    units: list[UnitOfWork]
    totals: Totals
    quiet: bool


@dataclass(frozen=True, slots=True)
class HeartbeatHooks:
    """The rest of the child, as its heartbeat knows it. All of it is called in its thread.

    ``on_signal`` gets what a web UI asked of this child. ``on_gap`` is called when the record was
    gone although it had been written, ``publish`` with the first beat, after each gap and now and
    then, and with every beat until it succeeds and tells that nothing is left. ``chores`` tries
    again what Redis would not do, and tells whether to come back soon.
    """

    snapshot: Callable[[], Snapshot]
    on_signal: Callable[[str], None]
    on_gap: Callable[[RedisConnection], None]
    publish: Callable[[RedisConnection], bool | None]
    chores: Callable[[], bool]


class Heartbeat:
    """Beats from ``start`` to ``stop``.

    ``outage`` is shared with all that talks to Redis: any answer ends it. ``refusal`` is ours: a
    full server does not take all of a record, while fetches go on as if nothing were wrong."""

    def __init__(
        self,
        connection: RedisConnection,
        record: Record,
        stats_flusher: StatsFlusher,
        household: HeartbeatHooks,
        outage: Outage,
        refusal: Outage,
        log: FilteringBoundLogger,
    ) -> None:
        self._connection = connection
        self._record = record
        self._stats_flusher = stats_flusher
        self._household = household
        self._outage = outage
        self._refusal = refusal
        self._log = log
        self._round_trip = RoundTrip(log)
        self._server_time = ServerTime()  # the clock tells of a difference
        self._time_due = 0.0
        self._known = False  # our record has been written
        self._doubtful = False  # a beat's reply was lost: it may have written it anew
        self._publish_due = 0.0
        self._complaints: dict[str, str] = {}
        self._next_beat = 0.0
        self._news = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Starts the thread; it beats at once."""
        self._thread.start()

    def soon(self) -> None:
        """Beats now instead of at the next interval: something changed that others should see."""
        self._news.set()

    def stop(self, deadline: float, *, gone: bool) -> bool:
        """Ends the thread, and flushes the counts. Takes the record away if this child is ``gone``;
        with leases left it stays, and tells others that their owner is dead. Tries twice, for a
        connection that was cut. Returns whether Redis took it all by ``deadline`` (monotonic)."""
        self._ended = True
        self._news.set()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            return False
        action = self._leave if gone else self._beat
        return self._attempt(action) or (time.monotonic() < deadline and self._attempt(action))

    def beat(self) -> bool:
        """Beats once, in the calling thread. Returns whether Redis took it all."""
        return self._attempt(self._beat)

    def _run(self) -> None:
        while not self._ended:
            self._next_beat = time.monotonic() + INTERVAL
            self.beat()
            self._rest()

    def _rest(self) -> None:
        """Until the next beat, or news; what is left to try is tried meanwhile."""
        while not self._news.is_set() and (left := self._next_beat - time.monotonic()) > 0:
            pause = min(left, _SOON) if self._chores() else left
            self._news.wait(pause)
        self._news.clear()

    def _attempt(self, action: Callable[[], None]) -> bool:
        try:
            if self._connection.stale():
                self._connection.close()  # it died in an outage that is over: no news
            self._connection.connect()
            action()
        except ConnectionLost as error:
            self._connection.close()
            self._doubtful, self._time_due = True, 0.0
            self._outage.begin(error)
        except RedisError as error:
            self._connection.close()
            self._refusal.begin(error)
        except Exception as error:  # noqa: BLE001 - a dead heartbeat would cost running jobs
            self._connection.close()
            self._log.error("a heartbeat failed; the next one follows", exc_info=error)
        else:
            self._outage.end()
            self._refusal.end()
            return True
        return False

    def _beat(self) -> None:
        """The record first: all else can wait. What the server refuses is raised when it has had a
        chance to take the rest."""
        self._keep_time()
        now = self._household.snapshot()
        refusals = [
            self._refused(self._write_record, now),
            self._refused(self._take_order, now),
            self._refused(self._flush, now),
        ]
        self._publish(now)
        for refusal in filter(None, refusals):
            raise refusal

    def _keep_time(self) -> None:
        if time.monotonic() >= self._time_due:
            self._server_time.measure(self._connection)
            self._time_due = time.monotonic() + _TIME_EVERY

    def _refused(self, step: Callable[[Snapshot], None], now: Snapshot) -> RedisError | None:
        try:
            step(now)
        except ConnectionLost:
            raise
        except RedisError as error:
            return error
        return None

    def _write_record(self, now: Snapshot) -> None:
        written = self._record.write(
            self._connection, now.units, self._round_trip.microseconds, quiet=now.quiet
        )
        if written.fresh or self._doubtful:
            self._begin_anew()
        if written.refused is not None:
            raise written.refused

    def _begin_anew(self) -> None:
        """There was no record, or we cannot tell: what goes with it may be gone too."""
        if self._known:
            self._stats_flusher.renew()
            self._call(self._household.on_gap, "leases not looked for after a gap")
        self._known, self._doubtful, self._publish_due = True, False, 0.0

    def _take_order(self, now: Snapshot) -> None:
        busy = sum(1 for unit in now.units if unit.thread)
        order = self._round_trip.measure(lambda: self._record.next_order(self._connection), busy)
        if order is not None:
            self._household.on_signal(order)

    def _flush(self, now: Snapshot) -> None:
        self._stats_flusher.flush(self._connection, now.totals)

    def _publish(self, now: Snapshot) -> None:
        """An old version that retires must not bring back what the new one has changed."""
        if now.quiet or time.monotonic() < self._publish_due:
            return
        done = self._call(self._household.publish, "periodic jobs not published")
        self._publish_due = time.monotonic() + _PUBLISH_EVERY if done else 0.0

    def _call(self, callback: Callable[[RedisConnection], bool | None], meaning: str) -> bool:
        """Calls the rest of the child. Its failure costs the heartbeat nothing but a connection.
        Returns whether all is done: it may also tell that something is left for the next beat."""
        try:
            left = callback(self._connection)
        except ConnectionLost:
            raise
        except Exception as error:  # noqa: BLE001 - the beat must go on
            if self._complaints.get(meaning) != str(error):  # not again with every beat
                self._complaints[meaning] = str(error)
                self._log.error(meaning, exc_info=error)
            self._connection.close()  # half an exchange, perhaps
            self._connection.connect()
            return False
        self._complaints.pop(meaning, None)
        return not left

    def _chores(self) -> bool:
        try:
            return self._household.chores()
        except Exception as error:  # noqa: BLE001 - as above
            self._log.error("a chore failed; the next beat tries again", exc_info=error)
            return False

    def _leave(self) -> None:
        self._flush(self._household.snapshot())
        self._record.remove(self._connection)
