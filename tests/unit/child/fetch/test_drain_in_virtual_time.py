"""How long the processor of tiny jobs waits for Redis while a queue drains. The fetcher is the real
one; time, Redis and the network are made up, so that a busy machine changes nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from forkq.child.fetch import fetch_turn, fetcher, lease_exchange, lookahead
from forkq.child.fetch.fetch_request import FetchReply
from forkq.child.fetch.fetch_turn import Holdings
from forkq.child.fetch.fetcher import Fetcher
from forkq.config.capsule import Capsule
from forkq.wire.lease import UnitOfWork

JOB, SCRIPT, EACH = 10e-6, 60e-6, 3.3e-6  # seconds: a job; a fetch in Redis, and each job in it
LOOK = 5e-6  # seconds to look whether a reply has come
JOBS = 10_000


class Clock:
    """Stands for ``monotonic``."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeConnection:
    """Stands for FetchConnection: a queue without end, at a distance of ``round_trip``."""

    is_open = tracks = True
    counts = is_ruled = False
    log = None

    def __init__(self, clock: Clock, round_trip: float) -> None:
        self.waited = 0.0
        self.delay = 0.0  # of the next reply
        self.asked = 0
        self.sent_at = 0.0
        self.busy = False
        self._clock = clock
        self._round_trip = round_trip
        self._want = 0
        self._reply_at = 0.0

    def look_for_queues(self) -> None: ...

    def send(self, want: int, done: Sequence[UnitOfWork], **_: object) -> None:
        self.sent_at, self.busy, self._want = self._clock.now, True, want
        self._reply_at = self._clock.now + self._round_trip + SCRIPT + EACH * want + self.delay
        self.delay = 0.0

    @property
    def connection(self) -> FakeConnection:
        return self

    def wait(self, seconds: float) -> bool:
        assert not seconds
        self._clock.now += LOOK
        return self._reply_at <= self._clock.now

    def receive(self) -> FetchReply:
        late = max(0.0, self._reply_at - self._clock.now)
        self.waited += late
        self._clock.now += late
        first, self.asked, self.busy = self.asked, self.asked + self._want, False
        units = [UnitOfWork(1, "q", n, b"", self.sent_at) for n in range(first, self.asked)]
        seconds = self._clock.now - self.sent_at
        return FetchReply(units, short=False, tracked=False, seconds=seconds, lease_gone=False)


class FakeOutage:
    """Stands for Outage: there is none."""

    def part(self, *_: str) -> FakeOutage:
        return self

    def end(self) -> None: ...


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (lookahead, lease_exchange):
        monkeypatch.setattr(module, "monotonic", clock)
    timed = SimpleNamespace(**{**vars(time), "monotonic": clock})
    for module in (fetcher, fetch_turn):
        monkeypatch.setattr(module, "time", timed)
    monkeypatch.setattr(fetcher, "reconnect_backoff", lambda _: SimpleNamespace(reset=lambda: None))
    return clock


def fetcher_of(connection: Any, processors: int) -> Fetcher:
    outage: Any = FakeOutage()
    child = Fetcher(Capsule("c", (("q", 1),), concurrency=processors), connection, outage)
    late_jobs: Any = child.late_jobs  # the watch looks at the real time
    late_jobs.starts, late_jobs.watch = lambda: True, lambda: None
    return child


def drained(clock: Clock, processors: int, round_trip: float) -> tuple[float, float]:
    """The share of the time in which the processor waited, and the longest time from the request
    for a job to its start. The first jobs do not count."""
    connection = FakeConnection(clock, round_trip)
    child = fetcher_of(connection, processors)
    holdings, longest, began, before = Holdings(), 0.0, clock.now, 0.0
    for number in range(JOBS):
        if number == JOBS // 4:
            longest, began, before = 0.0, clock.now, connection.waited
        ready = child._in_flight.ready
        asked = ready[0].taken if ready else clock.now
        unit = child.take(holdings)
        assert unit is not None
        longest = max(longest, clock.now - asked)
        clock.now += JOB
        child.acknowledge(unit)
    return (connection.waited - before) / (clock.now - began), longest


@pytest.mark.parametrize(
    ("processors", "round_trip", "most"),
    [(10, 0.1e-3, 0.01), (25, 0.1e-3, 0.01), (10, 1.5e-3, 0.02), (25, 1.5e-3, 0.02)],
)
def test_tiny_jobs_hardly_wait_for_redis(
    clock: Clock, processors: int, round_trip: float, most: float
) -> None:
    waits, longest = drained(clock, processors, round_trip)
    assert waits < most
    assert longest < 0.005 + round_trip


def test_far_away_they_wait_because_the_horizon_bounds_what_is_leased(clock: Clock) -> None:
    """Redis takes 2 ms for the jobs of a round trip, which is no part of it."""
    waits, longest = drained(clock, 25, 5.6e-3)
    assert waits < 0.25
    assert longest < 3 * 5.6e-3


def test_a_round_trip_that_was_measured_as_too_long_is_corrected(clock: Clock) -> None:
    """The first fetch may have waited for a busy machine. Else the child would lease for four times
    as long as it may, until its queues are empty."""
    connection = FakeConnection(clock, 0.001)
    connection.delay = 0.02
    child, holdings = fetcher_of(connection, 10), Holdings()
    for _ in range(JOBS):
        unit = child.take(holdings)
        assert unit is not None
        clock.now += JOB
        child.acknowledge(unit)
    assert child._leases.lookahead.horizon == pytest.approx(0.005)
