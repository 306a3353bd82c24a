"""What is due goes by the server's clock, whatever the host's clock says."""

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


class World:
    """A server whose clock is right, and a host whose wall clock is ``wrong`` by so many seconds.

    It is the wire to that server as well; each round trip takes ``trip`` seconds."""

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
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.mark.parametrize("wrong", [3600.0, -3600.0, 5.0, -1e9])
def test_a_wrong_clock_is_set_right_and_that_is_told_once(world: World, wrong: float) -> None:
    world.wrong = wrong
    for _ in range(3):
        world.measure()
        world.passed += 5
        assert world.off == pytest.approx(0, abs=0.001)
    [(level, event, values)] = world.log.lines
    assert (level, values) == ("warning", {"seconds_ahead": wrong})
    assert "redis" in event


def test_a_clock_that_is_right_again_is_believed_again(world: World) -> None:
    world.wrong = 3600
    world.measure()
    world.wrong = 0.2
    world.measure()
    assert world.off == pytest.approx(0.2, abs=0.001)
    assert [level for level, _, _ in world.log.lines] == ["warning", "info"]


def test_small_differences_are_left_to_the_host(world: World) -> None:
    """A measurement is no better than the network: none shall make a job early."""
    for wrong in (0.5, -0.9, 0.0):
        world.wrong = wrong
        world.measure()
        assert world.off == pytest.approx(wrong, abs=0.001)
    assert world.log.lines == []


def test_a_clock_that_is_set_between_two_measurements_moves_nothing(world: World) -> None:
    world.measure()
    world.wrong = 3600
    world.passed += 4
    assert world.off == pytest.approx(0, abs=0.001)
    world.measure()
    assert world.off == pytest.approx(0, abs=0.001)


def test_a_long_round_trip_proves_nothing(world: World) -> None:
    """This process, or the server, stood still in the middle of it."""
    world.measure()
    world.trip = 60.0
    world.wrong = 20.0
    world.measure()
    assert world.log.lines == []
    world.trip = 0.001
    world.measure()
    assert world.off == pytest.approx(0, abs=0.001)
    assert len(world.log.lines) == 1


def test_where_the_server_does_not_tell_its_time_the_host_does(world: World) -> None:
    world.wrong = 3600
    world.measure()
    world.error = NoPermissionError("this user has no permissions to run the 'time' command")
    world.measure()
    world.measure()
    assert world.off == pytest.approx(3600, abs=0.001)
    assert [level for level, _, _ in world.log.lines] == ["warning", "warning"]
    assert "no permissions" in world.log.lines[1][2]["error"]
    world.error = None
    world.measure()
    assert world.off == pytest.approx(0, abs=0.001)
