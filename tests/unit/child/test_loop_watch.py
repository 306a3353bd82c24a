"""The watch of the event loop: it names the job whose step blocks all others."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from forkq.child.event_loop import EventLoop
from forkq.child.loop_watch import TOO_LONG, Blocks, LoopWatch, Step, step_in
from forkq.wire.lease import Blocking
from tests.support.recorded_log import RecordedLog
from tests.support.waiting import PATIENCE, wait_until
from tests.unit.child.test_event_loop import Started, log, loop, run

__all__ = ["log", "loop"]  # fixtures

BLOCKS = "a job blocks the event loop: the other coroutines of this child wait"


def lines(log: RecordedLog) -> list[dict[str, Any]]:
    return [values for _, event, values in log.lines if event == BLOCKS]


def blocks_until(condition: Callable[[], object]) -> None:
    wait_until(condition, what="the watch", every=0.001)


def test_a_step_that_blocks_is_named_with_its_job_and_its_place(
    loop: EventLoop, log: RecordedLog
) -> None:
    async def computes() -> None:
        blocks_until(lambda: lines(log))
        blocking = loop.blocks.now
        assert blocking is not None
        assert (blocking.sequence, blocking.job, blocking.jid) == (7, "Job", "m7")
        assert "test_loop_watch.py" in blocking.place or "waiting.py" in blocking.place
        assert abs(time.time() - blocking.since) >= TOO_LONG

    assert run(loop, computes).error is None
    [line] = lines(log)
    assert (line["class"], line["jid"]) == ("Job", "m7")
    assert line["seconds"] >= TOO_LONG
    assert "in computes" in line["stack"]
    assert "event_loop.py" not in line["stack"], "forkq's own calls are left out"
    wait_until(lambda: loop.blocks.now is None, what="the end of the step")


def test_a_log_that_cannot_be_written_ends_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch lives as long as the child; a disk is full for an hour."""
    monkeypatch.setattr("forkq.child.loop_watch._LOG_EVERY", 0.0)

    class Full(RecordedLog):
        left = 3

        def warning(self, event: str, **values: Any) -> None:
            self.left -= 1
            if self.left >= 0:
                raise OSError(28, "No space left on device")
            super().warning(event, **values)

    log = Full()
    loop = EventLoop(log)

    async def computes() -> None:
        blocks_until(lambda: lines(log))

    assert run(loop, computes).error is None
    loop.close()
    assert "a look at the event loop has failed" in log.events()


def test_a_place_is_logged_once_a_minute_and_another_one_for_itself(
    loop: EventLoop, log: RecordedLog
) -> None:
    async def one() -> None:
        end = time.monotonic() + PATIENCE
        while loop.blocks.now is None and time.monotonic() < end:
            time.sleep(0.001)

    async def other() -> None:
        end = time.monotonic() + PATIENCE
        while loop.blocks.now is None and time.monotonic() < end:
            time.sleep(0.001)

    for job in (one, one, other, one):
        assert run(loop, job).error is None
        wait_until(lambda: loop.blocks.now is None, what="the end of the step")
    assert [line["stack"].rsplit(" in ", 1)[1].split()[0] for line in lines(log)] == [
        "one",
        "other",
    ]


def test_a_task_that_a_job_has_started_is_named_as_its_job(
    loop: EventLoop, log: RecordedLog
) -> None:
    async def part() -> None:
        blocks_until(lambda: lines(log))

    async def starts() -> None:
        await asyncio.gather(part())

    assert run(loop, starts).error is None
    assert [line["jid"] for line in lines(log)] == ["m7"]


def test_a_call_that_keeps_the_interpreter_is_named_when_it_returns(
    loop: EventLoop, log: RecordedLog
) -> None:
    """No thread can look meanwhile, as in a regular expression that goes wrong."""
    sleep: Any = ctypes.PyDLL(None).usleep

    async def keeps() -> None:
        sleep(int(2 * TOO_LONG * 1e6))
        blocks_until(lambda: lines(log))

    assert run(loop, keeps).error is None
    [line] = lines(log)
    assert line["jid"] == "m7"
    assert line["seconds"] >= 2 * TOO_LONG


def test_a_job_that_waits_is_not_named(loop: EventLoop, log: RecordedLog) -> None:
    gate = threading.Event()
    looks = []

    async def waits() -> None:
        while not gate.is_set():
            await asyncio.sleep(0.005)

    started = Started(loop, waits)
    watch = loop._watch
    wait_until(lambda: (watch or loop._watch) is not None, what="the watch")
    end = time.monotonic() + 3 * TOO_LONG
    while time.monotonic() < end:
        looks.append(step_in(loop.cells))
        time.sleep(0.001)
    gate.set()
    started.end()
    assert all(step is None or step.took(end) < 4 * TOO_LONG for step in looks)
    assert not [line for line in lines(log) if line["seconds"] > 2 * TOO_LONG]


@pytest.mark.parametrize(("age", "is_told"), [(0.0, False), (TOO_LONG + 0.01, True)])
def test_it_looks_again_when_the_step_will_have_lasted_for_too_long(
    log: RecordedLog, age: float, is_told: bool
) -> None:
    cells = [7, time.monotonic_ns() - int(age * 1e9)]
    thread = threading.get_ident()
    blocks = Blocks()
    watch = LoopWatch(cells, thread, threading.Event(), [], log, blocks, lambda call: call())
    pause = watch.look()
    assert pause <= TOO_LONG + 0.01
    assert bool(lines(log)) is is_told
    cells[0] = 0
    assert watch.look() == TOO_LONG
    assert blocks.now is None
    assert (blocks.kept(8, 0.0) >= TOO_LONG) is is_told, "so long all other jobs have waited"
    assert blocks.kept(7, 0.0) == 0.0


def test_only_what_others_have_blocked_since_then_has_kept_a_job() -> None:
    blocks, step = Blocks(), Step(7, 10.0)
    for until in (10.5, 11.0, 12.0):  # as the watch sees it
        blocks.note(step, until)
    blocks.note(Step(8, 13.0), 14.0)
    assert [blocks.kept(*of) for of in ((1, 0.0), (1, 11.5), (7, 0.0), (8, 0.0), (1, 20.0))] == [
        *(3.0, 1.5, 1.0, 2.0, 0.0)
    ]


CALLBACK = "a callback of no job blocks the event loop: the coroutines of this child wait"


def reads_the_feed(loop: EventLoop, log: RecordedLog) -> None:
    blocks_until(lambda: CALLBACK in log.events())
    now = loop.blocks.now
    assert now is not None
    seen.append(now)


async def polls_the_feed(loop: EventLoop, log: RecordedLog) -> None:
    reads_the_feed(loop, log)


seen: list[Blocking] = []


@pytest.mark.parametrize("kind", ["a callback", "a task"])
def test_a_callback_that_belongs_to_no_job_is_named_by_its_function(
    loop: EventLoop, log: RecordedLog, kind: str
) -> None:
    """A job runs, and waits. What blocks the loop was begun by a handler of startup."""
    gate, left = threading.Event(), list[object]()

    async def waits() -> None:
        while not gate.is_set():
            await asyncio.sleep(0.001)

    async def hook() -> None:
        running = asyncio.get_running_loop()
        if kind == "a task":
            left.append(asyncio.create_task(polls_the_feed(loop, log)))
        else:
            running.call_soon(reads_the_feed, loop, log)

    job = Started(loop, waits)
    loop.run(hook)
    gate.set()
    assert job.end().error is None
    [values] = [values for _, event, values in log.lines if event == CALLBACK]
    name = "polls_the_feed" if kind == "a task" else "reads_the_feed"
    assert values["function"].startswith(f"{name} (")
    assert values["seconds"] >= TOO_LONG
    assert "in reads_the_feed" in values["stack"]
    assert "jid" not in values
    assert lines(log) == []
    place = seen.pop()
    assert (place.sequence, place.job, place.jid) == (0, "", "")
    assert place.place == values["function"]
    assert abs(time.time() - place.since) >= TOO_LONG
    wait_until(lambda: loop.blocks.now is None, what="the end of the callback")
    assert loop.blocks.kept(7, 0.0) >= TOO_LONG, "so long the job could not go on"


def test_what_blocks_for_a_second_is_told_at_once_and_so_is_its_end() -> None:
    """A heartbeat follows: people see it before the next one would be due."""
    blocks, news = Blocks(), list[float]()
    step = Step(7, 10.0)
    for now in (10.3, 10.9, 11.1, 11.9):
        blocks.listeners[:] = [lambda at=now: news.append(at)]  # type: ignore[misc]
        blocks.see(step, "Job", "m7", "f (a.py:1)", now)
    assert news == [11.1]
    blocks.end(12.0)
    assert (news, blocks.now, blocks.step) == ([11.1, 11.9], None, None)
    blocks.see(Step(8, 13.0), "Job", "m8", "f (a.py:1)", 13.5)
    blocks.end(13.6)
    assert len(news) == 2, "it was short"


def test_it_sleeps_while_no_job_runs(loop: EventLoop) -> None:
    async def nothing() -> None: ...

    run(loop, nothing)
    wait_until(lambda: not loop._has_jobs.is_set(), what="the watch asleep")
    run(loop, nothing)
    assert loop.blocks.now is None
