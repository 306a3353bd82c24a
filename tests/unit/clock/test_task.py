"""When the clock looks at Redis for its work, and when it does it."""

from __future__ import annotations

import time

import pytest
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import ReadOnlyError, ResponseError

from forkq.clock import task as module
from forkq.clock.task import ScheduledTask
from forkq.clock.tracking import ChangedKeys
from tests.support.recorded_log import RecordedLog


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
def log() -> RecordedLog:
    return RecordedLog()


@pytest.fixture
def task(work: Work, log: RecordedLog) -> ScheduledTask:
    return ScheduledTask("letters", work, ("a", "b"), log)


CHANGED = ChangedKeys(frozenset([b"b"]))


def test_it_looks_once_and_then_only_when_there_is_news(
    task: ScheduledTask, work: Work, clocks: Clocks
) -> None:
    for _ in range(3):
        task.attend(watch=True)
        clocks.go(60)
        task.note(ChangedKeys(frozenset([b"c"])))
    assert work.done == ["watch"]
    assert task.pause() == float("inf")
    task.note(CHANGED)
    assert task.pause() == 0
    task.attend(watch=True)
    assert work.done == ["watch", "watch"]


def test_it_works_when_that_is_due_and_not_before(
    task: ScheduledTask, work: Work, clocks: Clocks
) -> None:
    work.due = clocks.wall + 5
    task.attend(watch=True)
    assert task.pause() == pytest.approx(5)
    clocks.go(4.9)
    task.attend(watch=True)
    assert work.done == ["watch"]
    clocks.go(0.2)
    assert task.pause() == 0
    task.attend(watch=True)
    assert work.done == ["watch", "work"]


def test_a_jump_of_the_wall_clock_moves_the_due_time_with_it(
    task: ScheduledTask, work: Work, clocks: Clocks
) -> None:
    work.due = clocks.wall + 5
    task.attend(watch=True)
    clocks.wall += 3600
    assert task.pause() == 0
    clocks.wall -= 7200
    assert task.pause() == pytest.approx(3605)
    task.attend(watch=True)
    assert work.done == ["watch"]


def test_a_flood_of_news_makes_it_look_often_and_not_always(
    task: ScheduledTask, work: Work, clocks: Clocks
) -> None:
    for _ in range(1000):
        task.note(CHANGED)
        task.attend(watch=True)
        clocks.go(0.001)
    assert 80 <= len(work.done) <= 110


def test_a_flood_of_news_does_not_keep_it_from_working(
    task: ScheduledTask, work: Work, clocks: Clocks
) -> None:
    task.attend(watch=True)
    work.due = clocks.wall
    task.note(CHANGED)
    task.attend(watch=True)
    assert work.done == ["watch", "work"]


def test_where_the_server_does_not_tell_it_looks_every_second(
    task: ScheduledTask, work: Work, clocks: Clocks
) -> None:
    for _ in range(101):
        task.attend(watch=False)
        assert task.pause() <= 1
        clocks.go(0.1)
    assert len(work.done) == pytest.approx(11, abs=1)
    assert set(work.done) == {"look"}


def test_what_another_clock_does_meanwhile_is_looked_at_first(
    task: ScheduledTask, work: Work, clocks: Clocks
) -> None:
    task.attend(watch=True)
    task.reload()
    task.attend(watch=True)
    assert work.done == ["watch", "watch"]


def test_what_redis_refuses_is_told_once_and_tried_again_without_haste(
    task: ScheduledTask, work: Work, clocks: Clocks, log: RecordedLog
) -> None:
    work.error = ResponseError("WRONGTYPE")
    for _ in range(1000):
        task.attend(watch=True)
        clocks.go(max(0.01, min(1.0, task.pause())))
    assert 10 < len(work.done) < 1000
    assert log.events() == ["letters are delayed by an error"]
    work.error = None
    clocks.go(10)
    task.attend(watch=True)
    assert log.events() == ["letters are delayed by an error", "letters are on time again"]


@pytest.mark.parametrize("error", [Lost("gone"), ReadOnlyError("a replica")])
def test_a_lost_server_and_a_failover_are_everybodys_business(
    task: ScheduledTask, work: Work, error: Exception
) -> None:
    work.error = error
    with pytest.raises(type(error)):
        task.attend(watch=True)


def test_what_nobody_foresaw_holds_up_one_piece_and_does_not_end_the_clock(
    task: ScheduledTask, work: Work, log: RecordedLog, clocks: Clocks
) -> None:
    work.error = ValueError("year -3166904 is out of range")
    task.attend(watch=True)
    assert log.events() == ["letters are delayed by an error"]
    work.error = None
    clocks.go(11)
    task.attend(watch=True)
    assert log.events() == ["letters are delayed by an error", "letters are on time again"]
