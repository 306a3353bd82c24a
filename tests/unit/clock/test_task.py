"""When a task of the clock reads Redis, and when it does its work."""

from __future__ import annotations

import time

import pytest
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import ReadOnlyError, ResponseError

from forkq.clock import task as module
from forkq.clock.task import ScheduledTask
from forkq.clock.tracking import ChangedKeys
from forkq.store.outage import Outage
from tests.support.recorded_log import RecordedLog


class Work:
    """Records its calls. ``due`` is when it next has something to do."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.due: float | None = None
        self.error: Exception | None = None

    def load(self, watch: bool) -> None:
        self.done.append("watch" if watch else "load")
        if self.error:
            raise self.error

    def next_due(self) -> float | None:
        return self.due

    def work(self) -> None:
        self.done.append("work")


class Clocks:
    """The wall clock and the monotonic clock; a test moves them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.steady = 1.8e9, 1000.0
        monkeypatch.setattr(module, "now", lambda: self.wall)
        monkeypatch.setattr(time, "monotonic", lambda: self.steady)

    def advance(self, seconds: float) -> None:
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
    return ScheduledTask("reports", work, ("a", "b"), Outage(log))


CHANGED = ChangedKeys(frozenset([b"b"]))


def test_it_loads_once_and_then_only_after_a_change(
    task: ScheduledTask, work: Work, clocks: Clocks
) -> None:
    for _ in range(3):
        task.attend(watch=True)
        clocks.advance(60)
        task.mark_stale(ChangedKeys(frozenset([b"c"])))
    assert work.done == ["watch"]
    assert task.pause() == float("inf")
    task.mark_stale(CHANGED)
    assert task.pause() == 0
    task.attend(watch=True)
    assert work.done == ["watch", "watch"]


def test_it_works_when_work_is_due_and_not_before(
    task: ScheduledTask, work: Work, clocks: Clocks
) -> None:
    work.due = clocks.wall + 5
    task.attend(watch=True)
    assert task.pause() == pytest.approx(5)
    clocks.advance(4.9)
    task.attend(watch=True)
    assert work.done == ["watch"]
    clocks.advance(0.2)
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


def test_many_changes_make_it_load_at_a_bounded_rate(
    task: ScheduledTask, work: Work, clocks: Clocks
) -> None:
    for _ in range(1000):
        task.mark_stale(CHANGED)
        task.attend(watch=True)
        clocks.advance(0.001)
    assert 80 <= len(work.done) <= 110


def test_many_changes_do_not_keep_it_from_working(
    task: ScheduledTask, work: Work, clocks: Clocks
) -> None:
    task.attend(watch=True)
    work.due = clocks.wall
    task.mark_stale(CHANGED)
    task.attend(watch=True)
    assert work.done == ["watch", "work"]


def test_where_the_server_reports_no_changes_it_loads_every_second(
    task: ScheduledTask, work: Work, clocks: Clocks
) -> None:
    for _ in range(101):
        task.attend(watch=False)
        assert task.pause() <= 1
        clocks.advance(0.1)
    assert len(work.done) == pytest.approx(11, abs=1)
    assert set(work.done) == {"load"}


def test_it_loads_again_after_another_clock_has_worked(
    task: ScheduledTask, work: Work, clocks: Clocks
) -> None:
    task.attend(watch=True)
    task.reload()
    task.attend(watch=True)
    assert work.done == ["watch", "watch"]


def test_a_refusal_is_logged_once_and_tried_again_with_growing_pauses(
    task: ScheduledTask, work: Work, clocks: Clocks, log: RecordedLog
) -> None:
    work.error = ResponseError("WRONGTYPE")
    for _ in range(1000):
        task.attend(watch=True)
        clocks.advance(max(0.01, min(1.0, task.pause())))
    assert 10 < len(work.done) < 1000
    assert log.events() == ["reports are delayed by an error"]
    work.error = None
    clocks.advance(10)
    task.attend(watch=True)
    assert log.events() == ["reports are delayed by an error", "reports are on time again"]


@pytest.mark.parametrize("error", [Lost("gone"), ReadOnlyError("a replica")])
def test_a_lost_connection_and_a_failover_are_raised(
    task: ScheduledTask, work: Work, error: Exception
) -> None:
    work.error = error
    with pytest.raises(type(error)):
        task.attend(watch=True)


def test_an_unexpected_error_delays_one_task_and_does_not_end_the_clock(
    task: ScheduledTask, work: Work, log: RecordedLog, clocks: Clocks
) -> None:
    work.error = ValueError("year -3166904 is out of range")
    task.attend(watch=True)
    assert log.events() == ["reports are delayed by an error"]
    work.error = None
    clocks.advance(11)
    task.attend(watch=True)
    assert log.events() == ["reports are delayed by an error", "reports are on time again"]
