"""The one fetcher of a child: leases jobs for its processors and acknowledges what they finish.

There is no fetcher thread. Processors take from a shared deque. One that finds it empty waits for
the turn to talk to Redis (fetch_turn.py), and then fills the deque for all (lease_exchange.py).
While a processor is free, one of them has the turn: it fetches, or waits for a report of Redis
(supply.py, wake_up.py). Acknowledgements travel in the next fetch, while the last jobs still run.

A fetch brings jobs for the processors that are free, and those that will start within some
milliseconds (lookahead.py). What does not start in that time goes back (late_jobs.py). A solo child
fetches suspects, one at a time, and leases nothing ahead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ...config.capsule import Capsule
from ...store.connection import ConnectionLost, RedisConnection
from ...store.outage import Outage, ended_idle, reconnect_backoff
from ...wire.lease import UnitOfWork
from ...wire.times import steady
from .fetch_connection import FetchConnection
from .fetch_turn import FetchTurn, Holdings
from .in_flight import InFlight
from .lease_exchange import LeaseExchange
from .parked_notice import ParkedNotice
from .supply import State, Supply
from .waker import Waker
from .wakeup_backoff import WakeupBackoff

# Seconds. A child that waits looks for itself now and then, in case a wake-up was lost. A server
# that is gone is noticed sooner (RedisConnection.wait).
_LONGEST_WAIT: Final = 60.0
# A solo child that a rule keeps waiting notes that again, before its last note counts no more
# (TURN_SECONDS in rules.lua).
_LONGEST_WAIT_OF_SOLO: Final = 5.0
_WAITING: Final = State.WAITING
# Seconds. This host may have stood still since then, and another one may have its leases.
_OLD_LEASE: Final = 20.0


class Fetcher:
    """Thread-safe: processors call ``take`` and ``acknowledge``, the manager the rest."""

    def __init__(
        self, capsule: Capsule, connection: FetchConnection, outage: Outage, *, solo: bool = False
    ) -> None:
        self._connection = connection
        self._turn = FetchTurn()
        self._waker = Waker()  # wakes the processor that has the turn
        self._backoff = reconnect_backoff(connection.connection)
        self._wakeups = WakeupBackoff()
        self._in_flight = InFlight()
        self._notice = ParkedNotice(self._in_flight, capsule.concurrency, connection.log)
        self._supply = Supply()
        self._longest_wait = _LONGEST_WAIT_OF_SOLO if solo else _LONGEST_WAIT
        self._leases = LeaseExchange(
            capsule.concurrency,
            connection,
            self._in_flight,
            self._supply,
            self._wakeups,
            self._turn,
            outage,
            ahead=not solo,
        )
        self.late_jobs = self._leases.late_jobs
        self._on_lost: Callable[[UnitOfWork], None] = lambda unit: None

    # What processors call

    def take(self, holdings: Holdings | None = None) -> UnitOfWork | None:
        """The next job to perform; waits for one. None once the child is quiet.

        The last job in ``holdings`` is done with. If an exception is raised here, other processors
        go on.
        """
        holdings = Holdings() if holdings is None else holdings
        holdings.units.clear()
        in_flight = self._in_flight
        try:
            taken = time.monotonic()
            old = steady() - _OLD_LEASE
            if in_flight.oldest_lease() < old and not self._leases.confirm(old):
                return None
            unit = in_flight.next(holdings)
            if unit is None:
                return self._take_in_turn(holdings)
            leases = self._leases
            if len(in_flight.ready) <= leases.low or taken >= leases.reply_due:
                leases.go_on()
            unit.taken = taken
            if holdings.reserved:
                self._turn.renew(holdings, taken)
        except BaseException:
            self._leases.recover()
            self._turn.recover(holdings)
            raise
        return unit

    def acknowledge(self, unit: UnitOfWork) -> float:
        """``unit`` is done: the next fetch drops its lease. Returns the seconds since it was
        taken."""
        self._in_flight.finish(unit)
        elapsed = time.monotonic() - unit.taken
        self._turn.performed(elapsed)
        if self._supply.state is _WAITING:
            self._waker.wake()
        return elapsed

    def forget(self, unit: UnitOfWork) -> None:
        """``unit`` was settled by another script, or its lease was given to another host."""
        self._in_flight.forget(unit)
        self._notice.update()
        if unit.lost:
            self._on_lost(unit)
        # A processor that is about to wait must know it, too: a fetch that counted this unit as
        # held here may have found its queue full.
        self._waker.wake()

    def park(self, unit: UnitOfWork) -> None:
        """Redis refuses what was decided of ``unit``: it keeps its lease, but its processor is free
        for another one."""
        unit.thread = 0
        self._in_flight.park(unit)
        self._notice.update()
        self._waker.wake()  # the processor that waits may fetch again

    def put_back(self, unit: UnitOfWork) -> None:
        """Returns ``unit``, which no processor performs, to its queue."""
        self._in_flight.forget(unit)
        self._leases.must_reconcile = True  # returns each lease that is unknown here
        self._waker.wake()

    # What lost_leases.py and the heartbeat need

    def report_lost(
        self, *, look: Callable[[RedisConnection], None], on_lost: Callable[[UnitOfWork], None]
    ) -> None:
        """Has ``look`` called whenever leases may have been given to another host, or an
        acknowledgement found none, on a connection that is free just then; and ``on_lost`` when a
        unit is forgotten that is marked lost."""
        self._leases.look_for_lost, self._on_lost = look, on_lost

    def report_lost_writes(self, on_writes_lost: Callable[[], None]) -> None:
        """Has ``on_writes_lost`` called when what this child wrote in Redis may be gone: the
        connection is new, or Redis says that all keys are gone."""
        self._connection.on_writes_lost = on_writes_lost

    def note_queues_again(self) -> None:
        """Redis's note of the queues that this child may hold leases of may be gone."""
        self._connection.note_queues_again()

    def find(self, sequence: int) -> UnitOfWork | None:
        """The unit in flight of that number, if there is one."""
        return self._in_flight.by_sequence.get(sequence)

    def drop(self, unit: UnitOfWork) -> bool:
        """Whether ``unit``, whose lease is lost, had not begun here. Then no processor gets it."""
        return self._in_flight.drop(unit)

    def knows(self, sequence: int) -> bool:
        """Whether the reply to the fetch that asked for that number has come."""
        return self._connection.knows(sequence)

    # What the manager calls

    def abandon(self, holdings: Holdings) -> None:
        """The processor of ``holdings`` died: returns its job to its queue, and frees its turn."""
        for unit in holdings.units:
            if self.find(unit.sequence) is unit:
                self.put_back(unit)
        self._turn.release(holdings)

    def quiet(self) -> None:
        """Fetches nothing more. Processors get what is leased already, then None."""
        self._leases.quiet = True
        self.late_jobs.hurry()
        self._waker.wake()

    def pause(self, *, on: bool) -> None:
        """Whether to fetch nothing for now. What is leased goes on."""
        if on != self._leases.paused:
            self._leases.paused = on
            self._waker.wake()

    def in_flight(self) -> list[UnitOfWork]:
        """Every unit of which this child holds the lease, performed or about to be."""
        return self._in_flight.units()

    @property
    def owes(self) -> bool:
        """Whether Redis has yet to confirm the acknowledgement of a job."""
        if not self._leases.lock.acquire(blocking=False):
            return True  # a processor talks to Redis
        try:
            return bool(self._in_flight.done) or self._connection.busy
        finally:
            self._leases.lock.release()

    @property
    def is_drained(self) -> bool:
        """Whether no job is left that a death of this process would harm: what is parked waits for
        Redis alone."""
        return self._in_flight.is_parked_all() and not self.owes

    def flush(self) -> None:
        """Once quiet: acknowledges what Redis could not be told, and returns what was put back."""
        if self._leases.quiet and (self._in_flight.done or self._leases.must_reconcile):
            self._leases.exchange_unless_waiting()

    def give_back(self) -> bool:
        """Acknowledges what is done and puts all else back to the head of its queue.

        Call it when no processor runs any more. False if Redis refused: the leases stay, and the
        master or a sweep puts them back once this child is gone.
        """
        self.late_jobs.end()
        return self._leases.give_back()

    @property
    def leases(self) -> int:
        """How many leases this child has, as far as it knows: after an error a fetch may have
        brought more."""
        return len(self._in_flight.known())

    # What a processor does

    def _take_in_turn(self, holdings: Holdings) -> UnitOfWork | None:
        """No unit is ready: takes the turn, fetches, and leaves the turn again."""
        if not self._turn.resume(holdings):
            self._turn.wait(holdings)
        unit = self._next(holdings)
        self._turn.leave(holdings, performs=unit is not None)
        if unit is not None:
            unit.taken = time.monotonic()
        return unit

    # What the processor that has the turn does

    def _next(self, holdings: Holdings) -> UnitOfWork | None:
        """Waits for a job: it fetches for all processors, but takes the first for itself."""
        while not self._leases.quiet:
            unit = self._in_flight.next(holdings)
            if unit is not None:
                return unit
            self._refill()
        return self._last(holdings)

    def _last(self, holdings: Holdings) -> UnitOfWork | None:
        """Once quiet: a job that a fetch still brings, or None. Acknowledges what is done."""
        while (unit := self._in_flight.next(holdings)) is None and (
            self._connection.busy or self._in_flight.done
        ):
            if not self._leases.exchange():
                break  # Redis is away: flush and give_back come later
        return unit

    def _refill(self) -> None:
        """One step of the table in supply.py."""
        seen = self._supply.state
        if seen is State.TRACKED and not self._connection.busy:
            self._wait(seen)
        elif not self._leases.exchange():
            self._rest(self._backoff.pause())
        else:
            self._backoff.reset()
            if not self._in_flight.ready and (
                not self._connection.tracks or self._leases.room() == 0
            ):
                self._wait(self._supply.state)  # Redis will not say when there is more

    def _wait(self, seen: State) -> None:
        """Until Redis says that a key changed, a processor has news, or the time is up."""
        self._turn.idle()
        if not self._leases.begin_wait(seen):
            return
        began, notified = time.monotonic(), False
        try:
            if self._in_flight.done or self._leases.quiet:
                return
            notified = self._wait_for_change()
        except ConnectionLost as error:
            if self._connection.busy or not ended_idle(error, began):
                self._leases.failed(error)
            else:
                self._leases.disconnect()
        finally:
            self._supply.end_wait(notified=notified)
            self._waker.clear(seen=not notified)

    def _wait_for_change(self) -> bool:
        """Whether Redis said that a key changed."""
        if not self._connection.tracks:
            self._rest(self._wakeups.pause_before_poll())
            return False
        notified = self._connection.wait(self._longest_wait, self._waker.fd, self._leases.room())
        if notified and (pause := self._wakeups.pause_after_wakeup()):
            self._rest(pause)
            self._connection.wake_up.read()
        return notified

    def _rest(self, seconds: float) -> None:
        """Waits out a pause, unless the child goes quiet or there is something to acknowledge."""
        self._turn.idle()
        deadline = time.monotonic() + seconds
        while not self._leases.quiet and (left := deadline - time.monotonic()) > 0:
            self._waker.sleep(left)
            if self._in_flight.done and self._connection.is_open:
                return
