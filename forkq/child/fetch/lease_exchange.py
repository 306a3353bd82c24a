"""The fetches of one child, one at a time: what is done goes to Redis, new jobs come back.

After a failure this child no longer knows which leases Redis holds for it. It compares them before
it fetches on: what is done is acknowledged, and Redis returns each lease that is unknown here.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Final

from ...runtime.pipe import Adopt
from ...store.connection import ConnectionLost, RedisConnection, RedisError
from ...store.outage import Outage
from .fetch_connection import FetchConnection
from .fetch_turn import FetchTurn
from .in_flight import InFlight
from .lookahead import Lookahead
from .supply import State, Supply
from .wakeup_backoff import WakeupBackoff

# Seconds. How often leases that are unknown here are returned though nothing has failed.
_REQUEUE_EVERY: Final = 120.0


class LeaseExchange:
    """The fetcher's. Thread-safe: the thread that holds its lock uses the connection."""

    def __init__(
        self,
        concurrency: int,
        connection: FetchConnection,
        in_flight: InFlight,
        supply: Supply,
        wakeups: WakeupBackoff,
        turn: FetchTurn,
        outage: Outage,
    ) -> None:
        self.on_ahead: Callable[[], None] = lambda: None
        self.quiet = False
        self.must_reconcile = False
        self.look_for_lost: Callable[[RedisConnection], None] = lambda connection: None
        self.to_adopt: deque[Adopt] = deque()
        self.on_adopted: Callable[[bool], None] = lambda found: None
        self._concurrency = concurrency
        self._lookahead = Lookahead()
        self._connection = connection
        self._in_flight = in_flight
        self._supply = supply
        self._wakeups = wakeups
        self._turn = turn
        self._outage = outage.part("redis gives no jobs", "redis gives jobs again")
        self._lock = threading.RLock()  # an RLock knows its owner: see recover
        self._requeue_due = monotonic() + _REQUEUE_EVERY

    @property
    def low(self) -> int:
        """With so many units ready, the next fetch is due."""
        return self._lookahead.low

    def room(self) -> int:
        """How many more jobs the processors can take."""
        return 0 if self.quiet else max(0, self._concurrency - self._in_flight.occupying())

    def look_ahead(self) -> float | None:
        """Returns the jobs that should have started by now, if no processor is free to take them,
        and sends the fetch or the acknowledgement that is due while each processor performs.
        Returns the seconds until the next look; None if there is nothing to look for."""
        if not self._lock.acquire(blocking=False):
            return self._lookahead.horizon / 2  # another thread talks to Redis
        try:
            self._return_late()
            return self._fetch_in_time()
        except (*ConnectionLost, RedisError) as error:
            self.failed(error)
            return self._lookahead.horizon
        except BaseException:
            self.must_reconcile = True
            raise
        finally:
            self._lock.release()

    def send_ahead(self) -> None:
        """Sends the next fetch now; the processor that has the turn next reads the reply."""
        if not self._lock.acquire(blocking=False):
            return  # another processor sends it
        try:
            connection = self._connection
            if connection.is_open and not connection.busy and not self.must_reconcile:
                self.request()
        except (*ConnectionLost, RedisError) as error:
            self.failed(error)
        finally:
            self._lock.release()

    def exchange(self) -> bool:
        """Sends a fetch unless one is under way, and takes in the reply. False if Redis failed."""
        with self._lock:
            try:
                if self.must_reconcile or not self._connection.is_open:
                    self._reconcile(keep=self._in_flight.known)
                if not self._connection.busy:
                    self.request()
                    self._take_in(waited=True)
                else:
                    self._take_in()
                self._adopt()
                self._requeue_in_time()
            except (*ConnectionLost, RedisError) as error:
                self.failed(error)
                return False
            except BaseException:
                self.must_reconcile = True  # this thread dies of it; what it fetched must go back
                raise
        self._outage.end()
        return True

    def give_back(self) -> bool:
        """Acknowledges what is done, and puts all other leases back to the head of their queues.
        False if Redis refused or a queue is damaged: the leases stay."""
        with self._lock:
            try:
                complete = self._reconcile(keep=tuple)
            except (*ConnectionLost, RedisError) as error:
                self.failed(error)
                return False
            except BaseException:
                self.must_reconcile = True
                raise
            self._in_flight.clear()
            return complete

    def request(self) -> None:
        """Sends a fetch. The caller holds the lock, or is the only thread."""
        connection, in_flight, room = self._connection, self._in_flight, self.room()
        connection.look_for_queues()
        self._plan()
        want = max(room, self._most() - in_flight.occupying())
        done = in_flight.take_done()
        held = self._in_flight.count_by_queue(done) if connection.counts else None
        register = self._supply.registers and connection.tracks
        connection.send(want, done, free=room, register=register, held=held)
        if want > room or self._lookahead.due < inf:
            self.on_ahead()

    def failed(self, error: BaseException) -> None:
        """Redis failed: this child no longer knows what Redis did."""
        self.disconnect()
        self._outage.begin(error)

    def disconnect(self) -> None:
        """Closes the connection. What the fetch under way was to acknowledge is acknowledged again
        by the next one."""
        self.must_reconcile = True
        self._supply.connection_lost()
        self._in_flight.done.extend(self._connection.disconnect())

    def recover(self) -> None:
        """An exception ended a call here of this thread, perhaps between a fetch and its reply."""
        self.must_reconcile = True
        with suppress(RuntimeError):  # another thread holds it
            self._lock.release()

    def _plan(self) -> None:
        in_flight, run_time = self._in_flight, self._turn.run_time
        self._lookahead.plan(in_flight.started, in_flight.began(), run_time)

    def _most(self) -> int:
        """How many units may have a processor or be ready for one."""
        if self.quiet or not self._concurrency or self._connection.is_ruled:
            return 0
        return self._concurrency + self._lookahead.depth

    def _return_late(self) -> None:
        lookahead = self._lookahead
        before = monotonic() - lookahead.horizon - lookahead.round_trip / 2  # when Redis leased it
        if self._connection.is_late(before):
            self._take_in()  # each processor may be busy for long
        late = self._in_flight.take_late(before, self._concurrency)
        if late:
            if self._connection.busy:
                self._take_in()
            self._connection.put_back(late)

    def _fetch_in_time(self) -> float | None:
        lookahead, in_flight, busy = self._lookahead, self._in_flight, self._connection.busy
        if not busy:
            self._plan()
            now = monotonic()
            is_due = lookahead.due <= now and len(in_flight.ready) < lookahead.depth
            if is_due or (in_flight.done and in_flight.are_all_busy(self._concurrency)):
                self.send_ahead()
            elif now < lookahead.due < now + lookahead.horizon:
                return lookahead.due - now
        waits = in_flight.ready or in_flight.done or busy or lookahead.due < inf
        return lookahead.horizon / 2 if waits else None

    def _take_in(self, *, waited: bool = False) -> None:
        reply = self._connection.receive()
        if waited:
            self._lookahead.measured(reply.seconds)
        woken = self._supply.state is State.NOTIFIED
        self._wakeups.fetched(woken=woken, won=bool(reply.units))
        self._supply.fetched(short=reply.short, tracked=reply.tracked)
        self._in_flight.add(reply.units)
        if reply.lease_gone:
            self.look_for_lost(self._connection.connection)

    def _adopt(self) -> None:
        """Takes over the leases that the master has named, unless they are gone."""
        while self.to_adopt:
            order = self.to_adopt[0]
            unit = self._connection.adopt(order.owner, order.queue, order.sequence)
            self.to_adopt.popleft()
            self._in_flight.add([unit] if unit else ())
            self.on_adopted(unit is not None)

    def _requeue_in_time(self) -> None:
        """Now and then: a command of a connection that was given up may have reached Redis later,
        and have leased jobs that are unknown here."""
        if monotonic() < self._requeue_due:
            return
        self._requeue_due = monotonic() + _REQUEUE_EVERY
        self._connection.requeue(self._in_flight.known())
        self._connection.note_queues_again()

    def _reconcile(self, keep: Callable[[], Iterable[int]]) -> bool:
        """Opens the connection, and has Redis return each lease of this child but those that
        ``keep`` names. False if a queue is damaged: its leases stay.

        A fetch with a lost reply may have leased jobs that are unknown here. They go back to the
        head of their queues. What is done is acknowledged first, so that it stays done.
        """
        # First: what another thread forgets from here on, the next exchange reconciles.
        must, self.must_reconcile = self.must_reconcile, False
        if must:
            self._in_flight.done.extend(self._connection.disconnect())
        self._connection.open()
        if self._connection.busy:
            self._take_in()
        self._connection.send(0, self._in_flight.take_done())
        self._take_in()
        complete = self._connection.requeue(keep())
        self.look_for_lost(self._connection.connection)
        return complete
