"""The fetches of one child, one at a time: what is done goes to Redis, new jobs come back.

After a failure this child no longer knows which leases Redis holds for it. It compares them before
it fetches on: what is done is acknowledged, and Redis returns each lease that is unknown here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf
from time import monotonic, sleep
from typing import Final

from ...store.connection import ConnectionLost, RedisConnection, RedisError
from ...store.outage import Outage
from ...wire.times import steady
from .ahead_watch import AheadWatch
from .fetch_connection import FetchConnection
from .fetch_turn import FetchTurn
from .in_flight import InFlight
from .late_jobs import LateJobs
from .lookahead import Lookahead
from .supply import State, Supply
from .wakeup_backoff import WakeupBackoff

# Seconds. How often leases that are unknown here are returned though nothing has failed.
_REQUEUE_EVERY: Final = 120.0
# Seconds until Redis is asked again for leases that are in doubt.
_DOUBT_PAUSE: Final = 1.0
# A script that moves so many jobs keeps Redis from others for some milliseconds.
_MOST_AT_ONCE: Final = 1000
# When a processor first looks for a reply, in round trips: one that comes early corrects a round
# trip that was measured as too long. And seconds until it looks again.
_FIRST_LOOK: Final = 0.9
_LOOK_AGAIN: Final = 0.00025


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
        *,
        ahead: bool = True,
    ) -> None:
        self.quiet = self.paused = False
        self.must_reconcile = False
        self.look_for_lost: Callable[[RedisConnection], None] = lambda connection: None
        self._concurrency = concurrency
        self._leases_ahead = ahead
        self._enough_done = max(1, concurrency * 3 // 4)
        # ``go_on`` has something to do if at most ``low`` units are ready (-1: a fetch is on its
        # way), or from ``reply_due`` on (monotonic), when the reply may have come.
        self.low = 0
        self.reply_due = inf
        self.lookahead = Lookahead(concurrency)
        self._connection = connection
        self._in_flight = in_flight
        self._supply = supply
        self._wakeups = wakeups
        self._turn = turn
        self._outage = outage.part("redis gives no jobs", "redis gives jobs again")
        self.lock = threading.RLock()  # an RLock knows its owner: see recover
        self._requeue_due = monotonic() + _REQUEUE_EVERY
        self._compared_at = 0.0  # times.steady
        watch = AheadWatch(self, concurrency, connection, in_flight, supply, self.lookahead)
        self.late_jobs = LateJobs(watch.look)

    def room(self) -> int:
        """How many more jobs the processors can take."""
        if self.quiet or self.paused:
            return 0
        return max(0, self._concurrency - self._in_flight.occupying())

    def begin_wait(self, seen: State) -> bool:
        """Whether the processor that has the turn may wait, in the state that it has ``seen``: from
        then on it alone uses the connection."""
        with self.lock:
            return not self._in_flight.ready and self._supply.begin_wait(seen)

    def confirm(self, since: float) -> bool:
        """Ready units may have lost their leases, unless all were compared ``since`` then
        (times.steady). Those are dropped (lost_leases.py), and until Redis has told which, none may
        begin. False if the child is quiet before that."""
        while True:
            with self.lock:  # else each processor that is in doubt would have them compared again
                if self._compared_at >= since:
                    return True
                self.must_reconcile = True
                if self.exchange():
                    return True
            if self.quiet:
                return False
            sleep(_DOUBT_PAUSE)

    def go_on(self) -> None:
        """Between two jobs of any processor: reads the reply to the fetch under way, if it has
        come, and sends the next fetch if it is due."""
        if not self.lock.acquire(blocking=False):
            return  # another thread talks to Redis
        try:
            waits = self._supply.state is State.WAITING  # then the one that waits reads
            if self._connection.is_open and not self.must_reconcile and not waits:
                if self._connection.busy:
                    self._take_in_early()
                self._send_ahead()
        except (*ConnectionLost, RedisError) as error:
            self.failed(error)
        finally:
            self.lock.release()

    def exchange(self) -> bool:
        """Sends a fetch unless one is under way, and takes in the reply. False if Redis failed."""
        with self.lock:
            try:
                if self.must_reconcile or not self._connection.is_open:
                    self._reconcile(keep=self._in_flight.known)
                if not self._connection.busy:
                    if self._supply.state is not State.NOTIFIED or not self._request_at_once():
                        self.request()
                    self._take_in_awaited(at_once=True)
                else:
                    self._take_in_awaited()
                self._requeue_in_time()
            except (*ConnectionLost, RedisError) as error:
                self.failed(error)
                return False
            except BaseException:
                self.must_reconcile = True  # this thread dies of it; what it fetched must go back
                raise
        self._outage.end()
        return True

    def exchange_unless_waiting(self) -> None:
        """As ``exchange``, for a thread that is no processor: one that waits has the connection."""
        with self.lock:
            if self._supply.state is not State.WAITING:
                self.exchange()

    def give_back(self) -> bool:
        """Acknowledges what is done, and puts all other leases back to the head of their queues.
        False if Redis refused or a queue is damaged: the leases stay."""
        with self.lock:
            try:
                complete = self._reconcile(keep=tuple)
            except (*ConnectionLost, RedisError) as error:
                self.failed(error)
                return False
            except BaseException:
                self.must_reconcile = True
                raise
            self._in_flight.clear()
        self._outage.end()
        return complete

    def request(self) -> None:
        """Sends a fetch. The caller holds the lock, or is the only thread."""
        connection, in_flight, room = self._connection, self._in_flight, self.room()
        connection.look_for_queues()
        self.plan()
        want = max(room, min(self._most() - in_flight.occupying(), _MOST_AT_ONCE))
        done = in_flight.take_done()
        held = self._in_flight.count_by_queue(done) if connection.counts else None
        register = self._supply.registers and connection.tracks
        connection.send(want, done, free=room, register=register, held=held)
        first_look = _FIRST_LOOK * self.lookahead.round_trip
        self.low, self.reply_due = -1, connection.sent_at + first_look

    def _request_at_once(self) -> bool:
        """After a wake-up: sends the fetch that was made before the wait, if it will still do."""
        if self._in_flight.done or not self._connection.send_prepared(self.room()):
            return False
        self.plan()  # the idle time before must not count
        return True

    def failed(self, error: BaseException) -> None:
        """Redis failed: this child no longer knows what Redis did."""
        self.disconnect()
        self._outage.begin(error)

    def disconnect(self) -> None:
        """Closes the connection. What the fetch under way was to acknowledge is acknowledged again
        by the next one."""
        self.must_reconcile = True
        self.low, self.reply_due = self.lookahead.low, inf
        self._supply.doubt()
        self._in_flight.done.extend(self._connection.disconnect())

    def recover(self) -> None:
        """An exception ended a call here of this thread, perhaps between a fetch and its reply."""
        self.must_reconcile = True
        with suppress(RuntimeError):  # another thread holds it
            self.lock.release()

    def plan(self) -> None:
        """How many jobs may be leased ahead now, and when."""
        in_flight, run_time = self._in_flight, self._turn.run_time
        self.lookahead.plan(in_flight.started, in_flight.began(), run_time)
        self.low = self.lookahead.low

    def _most(self) -> int:
        """How many units may have a processor or be ready for one, if more than those for which one
        is free; 0: no more."""
        if self.quiet or self.paused or not self._leases_ahead or not self.lookahead.depth:
            return 0
        if self._connection.is_ruled or self._in_flight.parked or not self.late_jobs.starts():
            return 0
        return self._concurrency + self.lookahead.depth

    def put_back(self) -> None:
        """Returns to its queue what no processor is free for."""
        surplus = self._in_flight.take_surplus(self._concurrency)
        if surplus:
            if not self._connection.put_back(surplus):
                self.must_reconcile = True  # so that the jobs of the other queues go back
            self._in_flight.surplus_returned()
            self._supply.doubt()

    def _take_in_early(self) -> None:
        """Before the last job that is ready: so the next fetch can be sent at once."""
        if self._connection.connection.wait(0.0):  # the reply has begun to come
            self.take_in()
            self._requeue_in_time()
        else:
            self.reply_due = monotonic() + _LOOK_AGAIN

    def _send_ahead(self) -> None:
        due = self._in_flight.is_time_to_send(self.low, self._enough_done, self._concurrency)
        if due and not self._connection.busy:
            self.request()
            self._watch()  # each processor may be busy when the reply comes

    def _take_in_awaited(self, *, at_once: bool = False) -> None:
        """A processor waits for the reply; ``at_once``: since the request."""
        began, had_none = monotonic(), not self._in_flight.ready
        seconds = self.take_in()
        if had_none:
            self.lookahead.waited(monotonic() - began)
        if at_once:
            self.lookahead.measured(seconds)

    def take_in(self) -> float:
        """Reads the reply to the fetch under way. Returns the seconds since the request."""
        reply = self._connection.receive()
        self.low, self.reply_due = self.lookahead.low, inf
        self.lookahead.bound_round_trip(reply.seconds)
        woken = self._supply.state is State.NOTIFIED
        self._wakeups.fetched(woken=woken, won=bool(reply.units))
        self._supply.fetched(short=reply.short, tracked=reply.tracked)
        self._in_flight.add(reply.units)
        self._watch(len(reply.units))
        if reply.lease_gone:
            self.look_for_lost(self._connection.connection)
        return reply.seconds

    def _watch(self, count: int = 0) -> None:
        """``count`` jobs came, or a fetch is under way. Jobs that no processor is free for may not
        start, and the next fetch may be due before a job ends."""
        if not self._leases_ahead:
            return
        busy = self._connection.busy
        has_surplus = self._in_flight.occupying() > self._concurrency
        if has_surplus and not busy and (self.quiet or self._connection.is_ruled):
            self.put_back()
        elif has_surplus or busy or (count and self.lookahead.expects_ends):
            self.late_jobs.watch()

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
        began = steady()
        # First: what another thread forgets from here on, the next exchange reconciles.
        must, self.must_reconcile = self.must_reconcile, False
        if must:
            self._in_flight.done.extend(self._connection.disconnect())
        self._connection.open()
        if self._connection.busy:
            self.take_in()
        self._connection.send(0, self._in_flight.take_done())
        self.take_in()
        complete = self._connection.requeue(keep())
        self._in_flight.surplus_returned()
        self.look_for_lost(self._connection.connection)
        self._compared_at = began
        return complete
