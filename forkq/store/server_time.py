"""Keeping a process's time in step with Redis's: what is due is decided by the server's clock.

The clocks of hosts differ, and one may be wrong by hours; all processes see the same server. The
clock process measures with each renewal of the leader's lease, a child when it connects and once a
minute. docs/decisions/012.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from ..wire import times
from .connection import RedisConnection, ResponseError

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# By how many seconds the host's clock may differ from the server's and count as right: no
# measurement over a network is exact, and hosts that keep their clocks by NTP stay far below it.
TOLERANCE: Final = 1.0

_DIFFER: Final = (
    "this host's clock and redis's differ; what is due goes by redis's; set the one that is wrong"
)
_UNKNOWN: Final = "redis does not tell its time; what is due goes by this host's clock"


class ServerTime:
    """Measures how far this host's clock is ahead of the server's, and sets ``times.now`` right.

    Between two measurements a steady clock counts on: to set the wall clock changes nothing.
    ``log``, if given, gets one line when the clocks differ, and one when they agree again.
    """

    def __init__(self, log: FilteringBoundLogger | None = None) -> None:
        self._log = log
        self._ahead = 0.0
        self._refused = False

    def measure(self, connection: RedisConnection) -> None:
        """One command. Raises ConnectionLost."""
        try:
            measured = measure_clocks(connection)
        except ResponseError as error:  # the user has no right to TIME
            self._go_by_host(error)
            return
        self._refused = False
        self._apply(measured.ahead, measured.trip)
        times.follow(measured.here - self._ahead, measured.received)

    def _apply(self, ahead: float, trip: float) -> None:
        """Adopts the difference, unless it is small, or a long round trip makes it uncertain."""
        if abs(ahead - self._ahead) <= TOLERANCE + trip:
            return
        self._ahead = ahead if abs(ahead) > TOLERANCE else 0.0
        if self._log is None:
            return
        if self._ahead:
            self._log.warning(_DIFFER, seconds_ahead=round(ahead, 1))
        else:
            self._log.info("this host's clock and redis's agree again")

    def _go_by_host(self, error: ResponseError) -> None:
        times.follow_host()
        if self._log is not None and not self._refused:
            self._log.warning(_UNKNOWN, error=str(error))
        self._refused = True


class Measurement(NamedTuple):
    """By how many seconds this host's clock is ahead of the server's, and how long the round trip
    took. At the steady time ``received`` this host's clock said ``here``."""

    ahead: float
    trip: float
    here: float
    received: float


def measure_clocks(connection: RedisConnection) -> Measurement:
    """One command. Raises ConnectionLost, or ResponseError without the right to TIME."""
    sent = times.steady()
    seconds, microseconds = connection.call("TIME")
    received, here = times.steady(), time.time()
    trip = received - sent
    there = int(seconds) + int(microseconds) / 1e6 + trip / 2
    return Measurement(here - there, trip, here, received)
