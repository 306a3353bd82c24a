"""What a child does for its leases while each of its processors performs.

The watch (late_jobs.py) calls ``look``. What should have started by now goes back, and the next
fetch or acknowledgement is sent when it is due. While a processor is free, that one does it all.
"""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final

from ...store.connection import ConnectionLost, RedisError
from .fetch_connection import FetchConnection
from .in_flight import InFlight
from .lookahead import Lookahead
from .supply import State, Supply

if TYPE_CHECKING:
    from .lease_exchange import LeaseExchange

_OUTAGE_PAUSE: Final = 1.0  # seconds
# Seconds. A reply that is so little late has not arrived yet, and no look comes sooner.
_SHORTEST: Final = 0.0003
_REPLY_BY: Final = 1.1  # round trips


class AheadWatch:
    """The lease exchange's. ``look`` is called by one thread."""

    def __init__(
        self,
        exchange: LeaseExchange,
        processors: int,
        connection: FetchConnection,
        in_flight: InFlight,
        supply: Supply,
        lookahead: Lookahead,
    ) -> None:
        self._exchange = exchange
        self._processors = processors
        self._connection = connection
        self._in_flight = in_flight
        self._supply = supply
        self._lookahead = lookahead

    def look(self) -> float | None:
        """Returns the seconds until the next look; None if there is nothing to look for."""
        exchange = self._exchange
        if not exchange.lock.acquire(blocking=False):
            return self._lookahead.horizon / 2  # another thread talks to Redis
        try:
            is_waiting = self._supply.state is State.WAITING
            if not is_waiting and self._in_flight.are_all_busy(self._processors):
                return self._look_ahead()
            return self._next_look()
        except (*ConnectionLost, RedisError) as error:
            exchange.failed(error)
            return _OUTAGE_PAUSE
        except BaseException:
            exchange.must_reconcile = True
            raise
        finally:
            exchange.lock.release()

    def _look_ahead(self) -> float | None:
        exchange = self._exchange
        if exchange.must_reconcile or not self._connection.is_open:
            return self._next_look() if exchange.exchange() else _OUTAGE_PAUSE
        before = inf if exchange.quiet else monotonic() - self._lookahead.late_after
        late = self._in_flight.oldest() < before
        if self._connection.busy and (late or self._reply_due() <= monotonic()):
            exchange.take_in()  # what it brings is younger: it goes back first
        if late:
            exchange.put_back()
        self._send_in_time()
        return self._next_look()

    def _reply_due(self) -> float:
        """When a look takes in the reply to the fetch under way: by then it has arrived."""
        if self._exchange.quiet:
            return 0.0
        ahead = self._lookahead
        seconds = _REPLY_BY * ahead.round_trip if ahead.expects_ends else ahead.late_after
        return self._connection.sent_at + seconds

    def _send_in_time(self) -> None:
        if self._connection.busy:
            return
        self._exchange.plan()
        ahead, in_flight = self._lookahead, self._in_flight
        is_due = ahead.due <= monotonic() and len(in_flight.ready) < ahead.depth
        if self._exchange.quiet:
            is_due = bool(in_flight.done)
        elif in_flight.done and not ahead.is_due_soon:
            is_due = True
        if is_due:
            self._exchange.request()

    def _next_look(self) -> float | None:
        """While a processor is free, the watch is not needed: it is called again before each of
        them may be busy with jobs leased ahead."""
        in_flight, ahead = self._in_flight, self._lookahead
        now, half = monotonic(), ahead.horizon / 2
        due = inf
        if in_flight.ready:
            due = in_flight.oldest() + ahead.late_after
        if self._connection.busy:
            due = min(due, self._reply_due())
        elif in_flight.are_all_busy(self._processors):
            due = min(due, ahead.due)
        if due == inf:
            return None
        return max(due - now, _SHORTEST) if due > now else half / 2
