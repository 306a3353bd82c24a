"""When the clock looks at Redis for its work, and when it does it."""

from __future__ import annotations

import time

import pytest
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import ReadOnlyError, ResponseError

from forkq.clock import duty as module
from forkq.clock.duty import Duty
from forkq.clock.watch import News
from tests.redis.crew import Log


class Work:
    """Notes what is asked of it. ``due`` is when it next has something to do."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.due: float | None = None
        self.error: Exception | None = None

    def load(self, watch: bool) -> None:
        self.done.append("watch" if watch else "look")
        if self.error:
            raise self.error

    def next_due(self) -> float | None:
        return self.due

    def work(self) -> None:
        self.done.append("work")


class Clocks:
    """Both clocks, in the hands of the test: one moves on, the other may jump."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.steady = 1.8e9, 1000.0
        monkeypatch.setattr(module, "now", lambda: self.wall)
        monkeypatch.setattr(time, "monotonic", lambda: self.steady)

    def go(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def duty(work: Work, log: Log) -> Duty:
    return Duty("letters", work, ("a", "b"), log)


CHANGED = News(frozenset([b"b"]))


def test_it_looks_once_and_then_only_when_there_is_news(
    duty: Duty, work: Work, clocks: Clocks
) -> None:
    for _ in range(3):
        duty.attend(watch=True)
        clocks.go(60)
        duty.hear(News(frozenset([b"c"])))
    assert work.done == ["watch"]
    assert duty.pause() == float("inf")
    duty.hear(CHANGED)
    assert duty.pause() == 0
    duty.attend(watch=True)
    assert work.done == ["watch", "watch"]


def test_it_works_when_that_is_due_and_not_before(duty: Duty, work: Work, clocks: Clocks) -> None:
    work.due = clocks.wall + 5
    duty.attend(watch=True)
    assert duty.pause() == pytest.approx(5)
    clocks.go(4.9)
    duty.attend(watch=True)
    assert work.done == ["watch"]
    clocks.go(0.2)
    assert duty.pause() == 0
    duty.attend(watch=True)
    assert work.done == ["watch", "work"]


def test_a_jump_of_the_wall_clock_moves_the_due_time_with_it(
    duty: Duty, work: Work, clocks: Clocks
) -> None:
    work.due = clocks.wall + 5
    duty.attend(watch=True)
    clocks.wall += 3600
    assert duty.pause() == 0
    clocks.wall -= 7200
    assert duty.pause() == pytest.approx(3605)
    duty.attend(watch=True)
    assert work.done == ["watch"]


def test_a_flood_of_news_makes_it_look_often_and_not_always(
    duty: Duty, work: Work, clocks: Clocks
) -> None:
    for _ in range(1000):
        duty.hear(CHANGED)
        duty.attend(watch=True)
        clocks.go(0.001)
    assert 80 <= len(work.done) <= 110


def test_a_flood_of_news_does_not_keep_it_from_working(
    duty: Duty, work: Work, clocks: Clocks
) -> None:
    duty.attend(watch=True)
    work.due = clocks.wall
    duty.hear(CHANGED)
    duty.attend(watch=True)
    assert work.done == ["watch", "work"]


def test_where_the_server_does_not_tell_it_looks_every_second(
    duty: Duty, work: Work, clocks: Clocks
) -> None:
    for _ in range(101):
        duty.attend(watch=False)
        assert duty.pause() <= 1
        clocks.go(0.1)
    assert len(work.done) == pytest.approx(11, abs=1)
    assert set(work.done) == {"look"}


def test_what_another_clock_does_meanwhile_is_looked_at_first(
    duty: Duty, work: Work, clocks: Clocks
) -> None:
    duty.attend(watch=True)
    duty.forget()
    duty.attend(watch=True)
    assert work.done == ["watch", "watch"]


def test_what_redis_refuses_is_told_once_and_tried_again_without_haste(
    duty: Duty, work: Work, clocks: Clocks, log: Log
) -> None:
    work.error = ResponseError("WRONGTYPE")
    for _ in range(1000):
        duty.attend(watch=True)
        clocks.go(max(0.01, min(1.0, duty.pause())))
    assert 10 < len(work.done) < 1000
    assert log.events() == ["redis refuses the letters"]
    work.error = None
    clocks.go(10)
    duty.attend(watch=True)
    assert log.events() == ["redis refuses the letters", "redis takes the letters again"]


@pytest.mark.parametrize("error", [Lost("gone"), ReadOnlyError("a replica")])
def test_a_lost_server_and_a_failover_are_everybodys_business(
    duty: Duty, work: Work, error: Exception
) -> None:
    work.error = error
    with pytest.raises(type(error)):
        duty.attend(watch=True)
