"""What is due goes by the server's clock, even if the host's clock is wrong."""

from __future__ import annotations

import time
from typing import Any

import pytest
from redis.exceptions import NoPermissionError

from forkq.store.server_time import ServerTime
from forkq.wire import times
from forkq.wire.times import now
from tests.support.recorded_log import RecordedLog

TRUE = 1_795_216_000.25


class FakeClocks:
    """A server whose clock is right, and a host whose wall clock is ``wrong`` by so many seconds.

    It is also the connection to that server; each round trip takes ``trip`` seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed = 0.0
        self.wrong = 0.0
        self.trip = 0.001
        self.error: Exception | None = None
        self.log = RecordedLog()
        monkeypatch.setattr(time, "time", lambda: self.true + self.wrong)
        monkeypatch.setattr(times, "steady", lambda: 1000.0 + self.passed)
        self.server_time = ServerTime(self.log)

    @property
    def true(self) -> float:
        return TRUE + self.passed

    def call(self, *command: Any) -> list[bytes]:
        assert command == ("TIME",)
        if self.error is not None:
            raise self.error
        self.passed += self.trip / 2
        at = self.true
        self.passed += self.trip / 2
        return [b"%d" % at, b"%d" % (at % 1 * 1e6)]

    def measure(self) -> None:
        self.server_time.measure(self)  # type: ignore[arg-type]

    @property
    def off(self) -> float:
        """By how much forkq's time is wrong."""
        return now() - self.true


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> FakeClocks:
    return FakeClocks(monkeypatch)


@pytest.mark.parametrize("wrong", [3600.0, -3600.0, 5.0, -1e9])
def test_a_wrong_clock_is_corrected_and_logged_once(clocks: FakeClocks, wrong: float) -> None:
    clocks.wrong = wrong
    for _ in range(3):
        clocks.measure()
        clocks.passed += 5
        assert clocks.off == pytest.approx(0, abs=0.001)
    [(level, event, values)] = clocks.log.lines
    assert (level, values) == ("warning", {"seconds_ahead": wrong})
    assert "redis" in event


def test_a_host_whose_clock_is_right_again_is_followed_again(clocks: FakeClocks) -> None:
    clocks.wrong = 3600
    clocks.measure()
    clocks.wrong = 0.2
    clocks.measure()
    assert clocks.off == pytest.approx(0.2, abs=0.001)
    assert [level for level, _, _ in clocks.log.lines] == ["warning", "info"]


def test_a_small_difference_is_not_corrected(clocks: FakeClocks) -> None:
    """A measurement is only as exact as the network: it must not make a job early."""
    for wrong in (0.5, -0.9, 0.0):
        clocks.wrong = wrong
        clocks.measure()
        assert clocks.off == pytest.approx(wrong, abs=0.001)
    assert clocks.log.lines == []


def test_a_clock_that_is_set_between_two_measurements_moves_nothing(clocks: FakeClocks) -> None:
    clocks.measure()
    clocks.wrong = 3600
    clocks.passed += 4
    assert clocks.off == pytest.approx(0, abs=0.001)
    clocks.measure()
    assert clocks.off == pytest.approx(0, abs=0.001)


def test_a_measurement_with_a_long_round_trip_is_ignored(clocks: FakeClocks) -> None:
    """The process or the server was suspended meanwhile."""
    clocks.measure()
    clocks.trip = 60.0
    clocks.wrong = 20.0
    clocks.measure()
    assert clocks.log.lines == []
    clocks.trip = 0.001
    clocks.measure()
    assert clocks.off == pytest.approx(0, abs=0.001)
    assert len(clocks.log.lines) == 1


def test_without_a_right_to_time_the_hosts_clock_counts(clocks: FakeClocks) -> None:
    clocks.wrong = 3600
    clocks.measure()
    clocks.error = NoPermissionError("this user has no permissions to run the 'time' command")
    clocks.measure()
    clocks.measure()
    assert clocks.off == pytest.approx(3600, abs=0.001)
    assert [level for level, _, _ in clocks.log.lines] == ["warning", "warning"]
    assert "no permissions" in clocks.log.lines[1][2]["error"]
    clocks.error = None
    clocks.measure()
    assert clocks.off == pytest.approx(0, abs=0.001)
