"""Checks of what lies between this host and Redis: round trip, clocks, the rights of the user."""

from __future__ import annotations

import time
from statistics import median
from typing import Final

from ..screens.checks import LATENCY
from ..store.connection import RedisConnection
from ..store.refusals import RIGHTS
from ..store.server_check import missing_rights
from ..store.server_time import TOLERANCE, measure_clocks
from .finding import Finding, unchecked
from .server import ExaminedServer

_PINGS: Final = 20
# Seconds after which no further PING is sent.
_ENOUGH: Final = 0.5


def latency(server: ExaminedServer, slow: float = LATENCY.limit) -> Finding:
    """The round trip of PING. An acknowledgement and each fetch wait for one."""
    end = time.monotonic() + _ENOUGH
    trips = [_round_trip(server.connection)]
    while len(trips) < _PINGS and time.monotonic() < end:
        trips.append(_round_trip(server.connection))
    middle = median(trips)
    what = f"a round trip takes {middle * 1000:.2f} ms (the longest of {len(trips)}: "
    what += f"{max(trips) * 1000:.2f} ms)"
    if middle < slow:
        return Finding("ok", "latency", what)
    return Finding("warn", LATENCY.name, what, LATENCY.why, LATENCY.remedy)


def clock(server: ExaminedServer) -> Finding:
    """How far this host's clock is from the server's."""
    ahead, trip, *_ = measure_clocks(server.connection)
    if abs(ahead) <= TOLERANCE + trip:
        return Finding("ok", "clock", "this host's clock and Redis's agree")
    what = (
        f"this host's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} Redis's"
    )
    why = "children and clock go by Redis's time, but processes that push go by their host's"
    return Finding("warn", "clock", what, why, "set the one that is wrong (NTP)")


def rights(server: ExaminedServer) -> Finding:
    """Whether the user of the URL may do all that forkq does."""
    first = server.connection
    # One of its own: it is closed within a transaction.
    connection = RedisConnection(
        first.url, prefix=server.keys.prefix, password_source=first.password_source
    )
    connection.connect()
    missing = missing_rights(connection, server.keys)
    if missing is None:
        return unchecked("rights", "Redis refuses MULTI: it may be full", "see redis-memory")
    if not missing:
        return Finding("ok", "rights", "the user of the URL has every right that forkq needs")
    what = f"the user of the URL lacks {' '.join(missing)}"
    return Finding("fail", "rights", what, "forkq start refuses such a user", RIGHTS)


def _round_trip(connection: RedisConnection) -> float:
    begun = time.monotonic()
    connection.call("PING")
    return time.monotonic() - begun
