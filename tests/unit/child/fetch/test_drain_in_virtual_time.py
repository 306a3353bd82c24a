"""How long the processor of tiny jobs waits for Redis while a queue drains. The fetcher is the real
one; time, Redis and the network are made up, so that a busy machine changes nothing."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from forkq.child import fetch_turn
from forkq.child.failure.ends import OpenEndings, SentEndings
from forkq.child.fetch import fetcher
from forkq.child.fetch.channel import Exchange
from forkq.child.fetch.fetcher import Fetcher
from forkq.child.fetch.leases import Leases
from forkq.child.fetch.plan import FetchPace
from forkq.child.fetch.queues import FetchQueues, QueueOffer
from forkq.child.fetch_turn import FetchTurn, Hand
from forkq.config.capsule import Capsule
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from forkq.wire.times import steady
from tests.support.recorded_log import RecordedLog

JOB, SCRIPT, EACH = 10e-6, 60e-6, 3.3e-6  # seconds: a job; a fetch in Redis, and each job in it
LOOK = 5e-6  # seconds to look whether a reply has come
JOBS = 10_000
NO_OFFER = QueueOffer((), {}, 0, (), (), (), in_order=True)


class Clock:
    """Stands for ``monotonic``."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeChannel:
    """Stands for FetchChannel: a queue without end, at a distance of ``round_trip``."""

    tracks = True
    connection = None

    def __init__(self, clock: Clock, round_trip: float) -> None:
        self.waited = 0.0
        self.delay = 0.0  # of the next reply
        self.asked = 0
        self.under_way: Exchange | None = None
        self.queues = FetchQueues(Capsule("c", (("q", 0),)), Keys(), RecordedLog())
        self._clock = clock
        self._round_trip = round_trip
        self._reply_at = 0.0

    def send(self, want: int, leases: Leases, **__: object) -> None:
        ended, _ = leases.take_ended()
        now = self._clock.now
        self.under_way = Exchange(
            self.asked, want, want, ended, SentEndings(), NO_OFFER, sent_at=now
        )
        self._reply_at = now + self._round_trip + SCRIPT + EACH * want + self.delay
        self.delay = 0.0

    @property
    def has_reply(self) -> bool:
        self._clock.now += LOOK
        return self._reply_at <= self._clock.now

    def receive(self) -> Exchange:
        late = max(0.0, self._reply_at - self._clock.now)
        self.waited += late
        self._clock.now += late
        exchange, self.under_way = self.under_way, None
        assert exchange is not None
        self.asked += exchange.want
        exchange.asked = steady()
        exchange.units = [UnitOfWork(1, "q", n, b"", exchange.sent_at) for n in exchange.sequences]
        exchange.seconds = self._clock.now - exchange.sent_at
        return exchange


class FakeOutage:
    """Stands for Outage: there is none."""

    def part(self, *_: str) -> FakeOutage:
        return self

    def add_refusal(self, *_: str) -> FakeOutage:
        return self

    def end(self, *_: float) -> None: ...


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(fetcher, "monotonic", clock)
    timed = SimpleNamespace(**{**vars(time), "monotonic": clock})
    monkeypatch.setattr(fetch_turn, "time", timed)
    monkeypatch.setattr(fetcher, "reconnect_backoff", lambda _: SimpleNamespace(failures=0))
    return clock


class Child:
    """The fetcher of so many processors, and the one of them that performs."""

    def __init__(self, clock: Clock, channel: Any, processors: int) -> None:
        outage: Any = FakeOutage()
        ends: Any = None
        self.leases = Leases(processors, OpenEndings(RecordedLog(), outage))
        self.leases.must_compare, self.leases.compared_at = False, steady()
        self.pace = FetchPace(processors, clock.now)
        self.fetcher = Fetcher(channel, self.leases, self.pace, outage)
        self._turn = FetchTurn(self.fetcher, self.leases, self.pace, ends)
        watch: Any = self._turn.watch  # the watch looks at the real time
        watch.start_if_wanted = lambda: self.fetcher.note_watch(on=True)
        self._hand = Hand()

    def take(self) -> UnitOfWork:
        unit = self._turn.take(self._hand)
        assert unit is not None
        return unit


def drained(clock: Clock, processors: int, round_trip: float) -> tuple[float, float]:
    """The share of the time in which the processor waited, and the longest time from the request
    for a job to its start. The first jobs do not count."""
    channel = FakeChannel(clock, round_trip)
    child = Child(clock, channel, processors)
    longest, began, before = 0.0, clock.now, 0.0
    for number in range(JOBS):
        if number == JOBS // 4:
            longest, began, before = 0.0, clock.now, channel.waited
        asked = min(child.leases.count().oldest, clock.now)
        unit = child.take()
        longest = max(longest, clock.now - asked)
        clock.now += JOB
        child.fetcher.done(unit)
    return (channel.waited - before) / (clock.now - began), longest


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
    channel = FakeChannel(clock, 0.001)
    channel.delay = 0.02
    child = Child(clock, channel, 10)
    for _ in range(JOBS):
        unit = child.take()
        clock.now += JOB
        child.fetcher.done(unit)
    assert child.pace.horizon == pytest.approx(0.005)


@pytest.mark.parametrize("look", ["count", "units"])
def test_a_plan_is_made_while_processors_take_and_end_all_that_is_ready(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """After one of the fetcher's looks at what is leased, whichever is the first."""
    child = Child(clock, FakeChannel(clock, 1e-3), 10)
    child.take()
    place: deque[UnitOfWork] = deque()
    looks, take = getattr(child.leases, look), child.leases.taker(place)

    def look_late() -> Any:
        seen = looks()
        with suppress(IndexError):
            while True:
                next(take)
                child.fetcher.done(place.popleft())
        return seen

    assert child.leases.count().ready > 1
    monkeypatch.setattr(child.leases, look, look_late)
    child.fetcher._make_plan()
    assert child.leases.count().ready == 0
