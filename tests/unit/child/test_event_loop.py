"""The one event loop of a child: a task for each job, which knows whose step it does."""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import subprocess
import sys
import threading
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar, copy_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import forkq
from forkq.child import event_loop
from forkq.child.event_loop import EventLoop, LoopDied
from forkq.child.job_task import JobTask
from forkq.current_job import Reason, enter_job
from forkq.errors import Cancelled, LeaseLost, Shutdown, TimeLimit
from tests.support.documents import ROOT
from tests.support.loops import LOOPS
from tests.support.recorded_log import RecordedLog
from tests.support.waiting import PATIENCE, wait_until

color: ContextVar[str] = ContextVar("color", default="none")


@pytest.fixture
def log() -> RecordedLog:
    return RecordedLog()


@pytest.fixture(params=LOOPS)
def loop(
    log: RecordedLog, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EventLoop]:
    if request.param == "asyncio":
        monkeypatch.setattr(event_loop, "_new_loop", asyncio.new_event_loop)
    loop = EventLoop(log)
    yield loop
    thread = loop.thread
    loop.close()
    assert thread is None or not thread.is_alive()


class Started:
    """A job in the loop. Its sequence is ``number``."""

    def __init__(self, loop: EventLoop, make: Callable[[], Awaitable[Any]], number: int = 7):
        self._ended = threading.Event()

        def begin() -> JobTask:
            view = enter_job({"class": "Job", "jid": f"m{number}"})
            task = JobTask(make(), view, number, lambda _: self._ended.set())
            loop.begin(task)
            return task

        self.task = copy_context().run(begin)

    def end(self) -> JobTask:
        """Waits for the end."""
        assert self._ended.wait(PATIENCE), "the job has not ended"
        return self.task


def run(loop: EventLoop, make: Callable[[], Awaitable[Any]]) -> JobTask:
    return Started(loop, make).end()


def test_the_thread_starts_with_the_first_job_and_all_share_it(loop: EventLoop) -> None:
    before = threading.active_count()

    async def place() -> tuple[int, asyncio.AbstractEventLoop]:
        return threading.get_ident(), asyncio.get_running_loop()

    assert threading.active_count() == before
    first, second = run(loop, place), run(loop, place)
    assert first.result == second.result
    assert loop.thread is not None
    assert first.result[0] == loop.thread.ident != threading.get_ident()
    assert loop.tasks == ()


def test_jobs_run_at_once_in_tasks_that_have_the_name_of_their_job(loop: EventLoop) -> None:
    gate = threading.Event()

    async def waits() -> str:
        while not gate.is_set():
            await asyncio.sleep(0.001)
        task = asyncio.current_task()
        assert task is not None
        return task.get_name()

    started = [Started(loop, waits, number) for number in (1, 2, 3)]
    assert {task.sequence for task in loop.tasks} == {1, 2, 3}
    gate.set()
    assert [each.end().result for each in started] == ["Job m1", "Job m2", "Job m3"]


def test_a_job_has_a_copy_of_the_context_in_which_it_was_begun(loop: EventLoop) -> None:
    async def paints() -> tuple[str, str]:
        before = color.get()
        color.set("red")
        return before, forkq.current_job().jid

    color.set("blue")
    assert [run(loop, paints).result for _ in range(2)] == [("blue", "m7"), ("blue", "m7")]
    assert color.get() == "blue"


@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit(3), KeyboardInterrupt()])
def test_what_a_job_raises_is_a_value_and_ends_no_loop(
    loop: EventLoop, log: RecordedLog, error: BaseException
) -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise error

    assert run(loop, fails).outcome is error
    assert log.events() == []


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        ("shutdown", Shutdown),
        ("time_limit", TimeLimit),
        ("cancelled", Cancelled),
        ("lease_lost", LeaseLost),
    ],
)
def test_an_interruption_is_a_cancelled_error_inside_and_has_its_own_name_outside(
    loop: EventLoop, why: Reason, kind: type[BaseException]
) -> None:
    seen: list[object] = []

    async def waits() -> None:
        seen.append(forkq.current_job().ending)
        try:
            await asyncio.sleep(PATIENCE)
        except CancelledError:
            seen.append(forkq.current_job().ending)
            raise

    started = Started(loop, waits)
    wait_until(lambda: seen, what="the job")
    started.task.interrupt(why)
    assert type(started.end().outcome) is kind
    assert seen == [None, why]


def test_a_job_that_is_cancelled_before_its_first_step_runs_nothing(loop: EventLoop) -> None:
    ran, gate = [], threading.Event()

    async def notes() -> None:
        ran.append(1)

    loop.run(lambda: asyncio.sleep(0))  # it runs
    loop.call(lambda: gate.wait(PATIENCE) and None)
    started = Started(loop, notes)
    started.task.interrupt("cancelled")
    gate.set()
    assert type(started.end().outcome) is Cancelled
    assert ran == []


def test_a_job_that_was_done_before_its_interruption_came_is_done(loop: EventLoop) -> None:
    task = run(loop, lambda: asyncio.sleep(0, "value"))
    task.interrupt("cancelled")
    assert (task.outcome, task.result) == (None, "value")


def test_a_job_that_never_waits_has_ended_when_it_has_begun_where_python_can(
    loop: EventLoop,
) -> None:
    """Its objects are gone before those of the next job are made."""
    seen: list[tuple[str, bool]] = []

    async def knows() -> None:
        task = asyncio.current_task()
        assert task is not None
        seen.append((task.get_name(), loop.cells[0] == 7))

    def begin() -> bool:
        view = enter_job({"class": "Job", "jid": "m7"})
        loop.begin_here(JobTask(knows(), view, 7, lambda _: None))
        return bool(seen)

    async def in_loop() -> None:
        ended.append(copy_context().run(begin))
        await asyncio.sleep(0)

    ended: list[bool] = []
    loop.run(in_loop)
    assert seen == [("Job m7", True)]
    assert ended == [sys.version_info >= (3, 12)]
    assert loop.tasks == ()


def test_an_error_that_a_job_makes_of_its_interruption_is_its_own_unless_it_was_cancelled(
    loop: EventLoop,
) -> None:
    found = {}
    for why in ("time_limit", "cancelled"):
        began = threading.Event()

        async def turns(began: threading.Event = began) -> None:
            try:
                began.set()
                await asyncio.sleep(PATIENCE)
            except CancelledError:
                raise ValueError("cleaning failed") from None

        started = Started(loop, turns)
        assert began.wait(PATIENCE)
        started.task.interrupt(why)
        found[why] = type(started.end().outcome)
    assert found == {"time_limit": ValueError, "cancelled": Cancelled}


def test_each_step_notes_whose_it_is_and_so_do_the_steps_of_tasks_that_a_job_starts(
    loop: EventLoop,
) -> None:
    seen: list[tuple[str, int]] = []

    async def child() -> None:
        await asyncio.sleep(0)
        seen.append(("child", loop.cells[0]))

    async def parent() -> None:
        await asyncio.gather(child(), asyncio.create_task(child()))
        seen.append(("parent", loop.cells[0]))

    before = loop.cells[1]
    run(loop, parent)
    assert seen == [("child", 7), ("child", 7), ("parent", 7)]
    assert loop.cells[1] - before >= 6
    assert loop.cells[0] == 0


def test_steps_of_hooks_are_those_of_no_job(loop: EventLoop) -> None:
    seen = []

    async def hook() -> None:
        await asyncio.create_task(asyncio.sleep(0))
        seen.append(loop.cells[0])

    loop.run(hook)
    assert seen == [0]
    with pytest.raises(ZeroDivisionError):
        loop.run(divide)


async def divide() -> None:
    1 / 0  # noqa: B018


def test_tools_see_the_coroutine_of_the_job_and_not_the_wrapper(loop: EventLoop) -> None:
    async def child() -> None:
        await asyncio.sleep(PATIENCE)

    async def parent() -> tuple[str, str, str]:
        task = asyncio.create_task(child())
        await asyncio.sleep(0)
        [frame] = task.get_stack()
        found = task.get_coro()
        name = found.__qualname__  # type: ignore[union-attr]
        task.cancel()
        return frame.f_code.co_name, name.rpartition(".")[2], repr(task)

    frame, name, text = run(loop, parent).result
    assert (frame, name) == ("child", "child")
    assert "child() running at" in text


def test_a_task_that_goes_on_after_its_job_is_told_of_once_and_left_alone(
    loop: EventLoop, log: RecordedLog
) -> None:
    """A client that a job has opened for all may have a task that reads its socket."""
    left: list[asyncio.Task[str]] = []

    async def reads() -> str:
        await asyncio.sleep(0.001)
        return "read"

    async def opens() -> None:
        left.append(asyncio.create_task(reads()))

    for _ in range(2):
        run(loop, opens)
    wait_until(lambda: all(task.done() for task in left), what="what was left")
    assert [task.result() for task in left] == ["read", "read"]
    [(level, event, values)] = log.lines
    assert (level, event[:26]) == ("warning", "a job has ended, and a tas")
    assert (values["jid"], values["task"].rpartition(".")[2]) == ("m7", "reads")


@pytest.mark.parametrize("how", ["a task raises SystemExit", "the app stops it"])
def test_the_loop_goes_on_whatever_a_job_does_to_it(
    loop: EventLoop, log: RecordedLog, how: str
) -> None:
    async def leaves() -> None:
        sys.exit(3)

    async def ends() -> str:
        if how == "the app stops it":
            asyncio.get_running_loop().stop()
        else:
            task = asyncio.create_task(leaves())
            await asyncio.wait([task])
        await asyncio.sleep(0.001)
        return "went on"

    assert run(loop, ends).result == "went on"
    assert [level for level, _, _ in log.lines] == ["error"]
    assert "goes on" in log.events()[0]


def test_jobs_of_a_loop_that_dies_fail_and_the_next_job_has_a_new_loop(
    loop: EventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a job that closes all descriptors, since it wants to become a daemon. With uvloop that
    is the end of the child."""
    made: list[selectors.BaseSelector] = []

    def new_loop() -> asyncio.AbstractEventLoop:
        made.append(selectors.EpollSelector())
        return asyncio.SelectorEventLoop(made[-1])

    async def kills() -> None:
        epoll: Any = made[0]
        os.close(epoll.fileno())
        await asyncio.sleep(PATIENCE)

    monkeypatch.setattr(event_loop, "_new_loop", new_loop)
    neighbour = Started(loop, lambda: asyncio.sleep(PATIENCE), 8)
    assert isinstance(run(loop, kills).outcome, LoopDied)
    assert isinstance(neighbour.end().outcome, LoopDied)
    assert run(loop, lives).result == "lives"
    assert len(made) == 2


def test_a_loop_that_is_stopped_again_and_again_is_given_up(loop: EventLoop) -> None:
    """It would use up the processor, and end no job."""

    async def kills() -> None:
        running = asyncio.get_running_loop()

        def stop() -> None:
            running.call_soon(stop)
            running.stop()

        stop()
        await asyncio.sleep(PATIENCE)

    neighbour = Started(loop, lambda: asyncio.sleep(PATIENCE), 8)
    assert isinstance(run(loop, kills).outcome, LoopDied)
    assert isinstance(neighbour.end().outcome, LoopDied)
    assert run(loop, lives).result == "lives"


def test_what_a_dead_loop_was_to_call_the_next_one_calls(
    loop: EventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as to begin a batch of jobs, which came while the loop was busy."""
    monkeypatch.setattr(event_loop, "_new_loop", asyncio.new_event_loop)
    called: list[int] = []
    was_called = threading.Event()

    def call() -> None:
        called.append(threading.get_ident())
        was_called.set()

    async def kills() -> None:
        running = asyncio.get_running_loop()

        def stop() -> None:
            running._ready.clear()  # type: ignore[attr-defined]  # what has come is lost
            running.call_soon(stop)
            running.stop()

        loop.call_started(call)
        stop()
        await asyncio.sleep(PATIENCE)

    assert isinstance(run(loop, kills).outcome, LoopDied)
    assert was_called.wait(PATIENCE)
    assert loop.thread is not None
    assert called == [loop.thread.ident]


async def lives() -> str:
    return "lives"


def test_what_a_dead_loop_has_left_is_closed_without_a_word() -> None:
    """Python's garbage collector closes it, in any thread, at any time: in one that another one
    starts while it holds the lock of the loop, for example. It must not wait for that lock."""
    told: list[str] = []

    async def main() -> JobTask:
        view = enter_job({"class": "Job", "jid": "m7"})
        job = JobTask(asyncio.sleep(PATIENCE), view, 7, lambda _: told.append("ended"))
        home = SimpleNamespace(cells=[0, 0], call=None, leave=lambda _: told.append("left"))
        job.begin(home)
        task = job.task
        assert task is not None
        await asyncio.sleep(0)
        job.end(LoopDied("dead"))
        assert told == ["left", "ended"]
        task.get_coro().close()
        task.cancel()
        await asyncio.wait({task})
        assert task.exception() is None
        return job

    job = asyncio.run(main())
    assert told == ["left", "ended"]
    assert isinstance(job.outcome, LoopDied)


_FORKS = """
import asyncio, os, sys, threading
from forkq.child.event_loop import EventLoop
from forkq.child.job_task import JobTask
from forkq.current_job import enter_job
from forkq.runtime.assignment import release_in_job_forks
from tests.support.recorded_log import RecordedLog

release_in_job_forks(os.open("/dev/null", os.O_RDONLY))
loop, ended, journal = EventLoop(RecordedLog()), threading.Semaphore(0), open(sys.argv[1], "a", 1)

async def notes():
    for _ in range(50):
        print(os.getpid(), file=journal)
        await asyncio.sleep(0.001)

async def forks():
    await asyncio.sleep(0.005)
    pid = os.fork()
    if pid == 0:
        print("the copy's step", file=journal)
        await asyncio.sleep(0)
        print("the copy went on", file=journal)
    print("status", (await asyncio.to_thread(os.waitpid, pid, 0))[1], file=journal)

for number, make in enumerate((notes, forks), 1):
    view = enter_job({"class": "Job", "jid": "m"})
    loop.begin(JobTask(make(), view, number, lambda _: ended.release()))
for _ in range(2):
    ended.acquire()
print("parent", os.getpid(), file=journal)
"""


def test_a_fork_in_a_coroutine_ends_at_its_next_wait_and_runs_no_other_job(tmp_path: Path) -> None:
    """The copy has the loop with all of its tasks."""
    journal = tmp_path / "journal"
    command = [sys.executable, "-c", _FORKS, str(journal)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=PATIENCE)
    lines = journal.read_text().splitlines()
    [parent] = [line.split()[1] for line in lines if line.startswith("parent")]
    assert sorted(set(lines)) == sorted({parent, f"parent {parent}", "the copy's step", "status 0"})


def test_the_end_of_the_loop_cancels_what_is_left(log: RecordedLog) -> None:
    loop, cleaned = EventLoop(log), []

    async def polls() -> None:
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            cleaned.append("task")

    async def numbers() -> Any:
        try:
            while True:
                yield 1
        finally:
            cleaned.append("generator")

    async def hook() -> None:
        left.append(asyncio.create_task(polls()))
        generator = numbers()
        left.append(generator)
        await generator.__anext__()
        await asyncio.sleep(0)

    left: list[object] = []
    loop.run(hook)
    loop.close()
    assert cleaned == ["task", "generator"]
    assert loop.thread is None


def test_the_end_of_the_loop_waits_for_no_task_that_goes_on(log: RecordedLog) -> None:
    loop, gate = EventLoop(log), threading.Event()

    async def hook() -> None:
        left.append(asyncio.create_task(stays()))
        await asyncio.sleep(0)

    async def stays() -> None:
        while not gate.is_set():
            try:
                await asyncio.sleep(0.001)
            except CancelledError:
                cut.append(1)

    left: list[object] = []
    cut: list[int] = []
    loop.run(hook)
    thread = loop.thread
    loop.close(limit=0.05)
    assert cut
    assert thread is not None
    assert not thread.is_alive()


def test_signals_of_the_child_stay_those_of_its_main_thread(loop: EventLoop) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before[1])
    loop.run(lambda: asyncio.sleep(0))
    after = signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(after[1])
    assert after == before
