"""Time limits of coroutines: the time in which others blocked their loop is not their run time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from traceback import StackSummary
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest

from forkq.child import time_limits
from forkq.child.event_loop import EventLoop
from forkq.child.interrupt import InterruptRegion
from forkq.child.job_run import JobRun
from forkq.child.loop_watch import Step
from forkq.child.time_limits import TimeLimits
from forkq.runtime.deadlines import DeadlineTable, next_deadline, overdue
from forkq.runtime.stack_dump import TaskStack
from forkq.wire.lease import UnitOfWork
from tests.support.recorded_log import RecordedLog

BEGAN = 100.0


class RunsHere:
    """A task of the loop, as the limits see it."""

    sequence = 7

    def stacks(self) -> list[TaskStack]:
        return [TaskStack("", StackSummary())]


class Coroutine:
    """One that runs in a loop, and that a limit is to end. It has the sequence number 7."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, file: BinaryIO, **limits: float) -> None:
        self.time = BEGAN
        monkeypatch.setattr(time_limits, "monotonic", lambda: self.time)
        self.log = RecordedLog()
        self.loop = EventLoop(self.log, watched=False)
        self.loop._tasks.add(RunsHere())  # type: ignore[arg-type]
        table = DeadlineTable(file.fileno(), 1)
        self.limits = TimeLimits(self.log, table=table, loop=self.loop)
        self.ended: list[str] = []
        self.region = InterruptRegion()
        self.region.task = SimpleNamespace(interrupt=self.ended.append)
        self.run = JobRun(UnitOfWork(1, "q", 7, b"{}", taken=BEGAN))
        job: dict[str, Any] = {"class": "Job", "jid": "m7", **limits}
        self.run.loaded(job)
        self.limits.watch(self.region, self.run, job)
        self.region.enter(self.run.time_limit, self.run)

    def at(self, seconds: float) -> Coroutine:
        """So long after its begin the main thread looks."""
        self.time = BEGAN + seconds
        self.limits.wait(60.0)
        self.limits.enforce()
        return self

    def blocks(self, begin: float, end: float) -> None:
        """A callback of no job has blocked the loop since then, and is seen at that time."""
        self.loop.blocks.see(Step(0, BEGAN + begin), "", "", "poll (feed.py:7)", BEGAN + end)

    def blocked(self, sequence: int, begin: float, end: float) -> None:
        """A step of that job has blocked the loop, from and to so many seconds after the begin."""
        self.loop.blocks.note(Step(sequence, BEGAN + begin), BEGAN + end)


@pytest.fixture
def file() -> Iterator[BinaryIO]:
    """The file that the master reads."""
    with tempfile.TemporaryFile() as opened:
        yield opened


def test_a_limit_does_not_count_the_time_in_which_another_job_blocked_the_loop(
    monkeypatch: pytest.MonkeyPatch, file: BinaryIO
) -> None:
    one = Coroutine(monkeypatch, file, timeout=5)
    one.blocked(8, 1.0, 4.0)
    assert one.at(5.1).ended == []
    assert one.limits.wait(60.0) == pytest.approx(2.9)
    one.blocked(9, 6.0, 7.0)
    assert one.at(8.1).ended == []
    assert one.at(9.1).ended == ["time_limit"]


def test_a_limit_counts_the_time_in_which_the_job_itself_blocked_the_loop(
    monkeypatch: pytest.MonkeyPatch, file: BinaryIO
) -> None:
    one = Coroutine(monkeypatch, file, timeout=5)
    one.blocked(7, 1.0, 4.0)
    assert one.at(5.1).ended == ["time_limit"]


def test_a_limit_of_a_job_in_a_thread_counts_all_its_time(
    monkeypatch: pytest.MonkeyPatch, file: BinaryIO
) -> None:
    one = Coroutine(monkeypatch, file, timeout=5)
    one.loop._tasks.clear()
    one.blocked(8, 1.0, 4.0)
    assert one.at(5.1).ended == ["time_limit"]


def test_the_master_reads_the_later_time_of_a_hard_limit(
    monkeypatch: pytest.MonkeyPatch, file: BinaryIO
) -> None:
    one = Coroutine(monkeypatch, file, hard_timeout=5)
    assert next_deadline(file.fileno()) == BEGAN + 5
    one.blocked(8, 1.0, 4.0)
    one.at(5.1)
    assert next_deadline(file.fileno()) == BEGAN + 8
    assert one.log.events() == []
    one.at(8.1)
    assert one.log.events() == ["a job goes on beyond its hard_timeout"]


def test_a_limit_does_not_count_the_time_in_which_a_callback_of_no_job_blocked_the_loop(
    monkeypatch: pytest.MonkeyPatch, file: BinaryIO
) -> None:
    one = Coroutine(monkeypatch, file, timeout=5)
    one.blocks(1.0, 4.0)
    one.loop.blocks.end(BEGAN + 4.0)
    assert one.at(5.1).ended == []
    assert one.at(8.1).ended == ["time_limit"]


def test_a_callback_that_blocks_for_ever_ends_the_child_by_the_hard_limit_of_a_job_that_waits(
    monkeypatch: pytest.MonkeyPatch, file: BinaryIO
) -> None:
    """Nothing else can end it: it belongs to no job that could fail in its place."""
    one = Coroutine(monkeypatch, file, hard_timeout=20)
    one.blocks(16.0, 19.0)
    one.at(20.1)
    assert (one.log.events(), overdue(file.fileno(), BEGAN + 20.1)) == ([], [])
    one.blocks(16.0, 22.9)
    one.at(23.0)
    [(_, event, values)] = one.log.lines
    assert (
        event == "a job cannot end by its hard_timeout: a callback of no job blocks the event loop"
    )
    assert values["function"] == "poll (feed.py:7)"
    [told] = overdue(file.fileno(), BEGAN + 23.1)
    assert (told.sequence, told.blocks, told.keeps_other) == (7, True, False)
    assert told.calls.endswith("the event loop was blocked by poll (feed.py:7)")
