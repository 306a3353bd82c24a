"""The writer of log lines: what waits, for how long, and what a fork, a stop or an exception leaves
of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forkq.runtime import log_writer
from forkq.runtime.log_writer import LogWriter
from forkq.runtime.unblocked_output import UnblockedOutput
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]


class Output:
    """A file, and the writer for it. ``writes``: how many lines each call wrote."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self.stderr = UnblockedOutput(lambda count: b"", self.fd)
        self.writes: list[int] = []
        self.writer = LogWriter(self.stderr, lambda values: f"rendered {values[0]}", "utf-8")
        self.thread: threading.Thread | None = None
        self._write, self.stderr.write = self.stderr.write, self._noted  # type: ignore[method-assign]

    def _noted(self, lines: bytes, count: int = 1) -> None:
        self._write(lines, count)
        self.writes.append(count)

    def begin(self) -> None:
        self.thread = self.writer.begin_batching()

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines()

    def close(self) -> None:
        self.writer.end_batching()
        if self.thread is not None:
            self.thread.join(10)
        os.close(self.fd)


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    found = Output(tmp_path / "log")
    yield found
    found.close()


def test_without_batching_each_line_is_written_at_once(output: Output) -> None:
    output.writer.put("one")
    assert output.lines() == ["one"]
    output.writer.put((2,))
    assert output.lines() == ["one", "rendered 2"]


def test_lines_that_wait_are_written_together_and_in_order(output: Output) -> None:
    output.begin()
    for number in range(500):
        output.writer.put((number,))
    wait_until(lambda: len(output.lines()) == 500, what="all lines")
    assert output.lines() == [f"rendered {number}" for number in range(500)]
    assert len(output.writes) < 50


def test_a_warning_never_waits_and_comes_after_what_waits(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "_PAUSE", 60.0)
    output.begin()
    output.writer.put("first")
    output.writer.put((2,))
    output.writer.put_now("warning")
    assert output.lines() == ["first", "rendered 2", "warning"]


def test_few_lines_and_few_bytes_wait(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "_PAUSE", 60.0)
    output.begin()
    for number in range(log_writer._MOST_WAITING):
        output.writer.put((number,))
    assert len(output.lines()) == log_writer._MOST_WAITING
    output.writer.put_text("x" * 5000)
    assert output.lines()[-1] == "x" * 5000


def test_the_end_of_batching_writes_what_waits_and_ends_the_thread(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "_PAUSE", 60.0)
    output.begin()
    output.writer.put("waits")
    output.writer.end_batching()
    assert output.lines() == ["waits"]
    assert output.thread is not None
    output.thread.join(10)
    assert not output.thread.is_alive()
    output.writer.put("later")
    assert output.lines() == ["waits", "later"]


def test_an_idle_writer_sleeps(output: Output) -> None:
    output.begin()
    output.writer.put("one")
    wait_until(lambda: output.writes and output.writer._is_idle, what="its sleep")
    rounds = len(output.writes)
    time.sleep(4 * log_writer._PAUSE)  # a stretch of time in which nothing must happen
    assert len(output.writes) == rounds == 1
    output.writer.put("two")
    wait_until(lambda: output.lines() == ["one", "two"], what="its waking")


def test_a_fork_writes_no_line_twice_and_none_of_its_own_waits(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even while another thread holds the lock."""
    monkeypatch.setattr(log_writer, "_PAUSE", 60.0)
    output.begin()
    output.writer.put("the parent's")
    with output.writer._lock:
        pid = os.fork()
        if pid == 0:
            output.writer.reset()  # as runtime/log.py does after each fork
            output.writer.put("the fork's")
            output.writer.flush()
            os._exit(0)
        wait_until(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid, what="the end of the fork")
    output.writer.flush()
    assert output.lines() == ["the fork's", "the parent's"]


def test_an_exception_in_the_middle_of_a_write_loses_no_line(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop raises one in the thread of a job that logs a warning."""

    class Shutdown(BaseException):
        pass

    def interrupted(*_: Any) -> None:
        raise Shutdown

    monkeypatch.setattr(log_writer, "_PAUSE", 60.0)
    output.begin()
    output.writer.put("another job's")
    with monkeypatch.context() as patch:
        patch.setattr(output.stderr, "write", interrupted)
        with pytest.raises(Shutdown):
            output.writer.put_now("warning")
    output.writer.flush()
    assert output.lines() == ["another job's", "warning"]


def test_a_line_that_is_logged_during_a_write_comes_after_it(output: Output) -> None:
    """By a finaliser, say, in the same thread."""
    writer = output.writer

    def finaliser(values: tuple[Any, ...]) -> str:
        writer.put_now("inner")
        return "outer"

    writer._render = finaliser
    writer.put((1,))
    assert output.lines() == ["outer", "inner"]


def test_many_threads_write_each_line_once(output: Output) -> None:
    output.begin()

    def log(name: int) -> None:
        for number in range(2000):
            (output.writer.put_now if number % 100 == 0 else output.writer.put)(f"{name} {number}")

    threads = [threading.Thread(target=log, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    output.writer.flush()
    found = output.lines()
    assert len(found) == 8000
    for name in range(4):
        own = [line for line in found if line.startswith(f"{name} ")]
        assert own == [f"{name} {number}" for number in range(2000)]


class Interrupted(BaseException):
    """What a time limit or the stop raises in the thread of a job."""


def interrupted_at(step: int, call: Callable[[], None]) -> bool:
    """Calls ``call``, with an exception after that many of the moments at which Python raises one
    in another thread: the beginning and the end of a call. Returns whether it was raised."""

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal step
        if event != "c_call":
            step -= 1
            if step < 0:
                raise Interrupted

    try:
        sys.setprofile(count)
        call()
    except Interrupted:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.parametrize("method", ["put", "put_now"])
def test_a_job_that_is_interrupted_at_any_call_holds_up_no_later_line(
    tmp_path: Path, method: str
) -> None:
    """In a process of its own: in one that has run other tests, Python 3.11 may never come back
    from a profile function that raises."""
    call = f"interrupt_at_each_call({method!r}, {str(tmp_path / 'log')!r})"
    program = f"from {__name__} import interrupt_at_each_call; {call}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def interrupt_at_each_call(method: str, path: str) -> None:
    """The test itself."""
    log_writer._PAUSE = 0.001  # type: ignore[misc]
    output = Output(Path(path))
    output.begin()
    writer, step, was_raised = output.writer, 0, True
    while was_raised:
        wait_until(lambda: writer._is_idle and not writer._waiting, what="an idle writer")
        was_raised = interrupted_at(step, lambda: getattr(writer, method)("interrupted"))
        job = threading.Thread(target=writer.put, args=(f"another job's {step}",), daemon=True)
        job.start()
        job.join(10)
        assert not job.is_alive(), f"another job is held up after step {step}"
        last = f"the next job's {step}"
        writer.put(last)
        wait_until(lambda last=last: output.lines()[-1:] == [last], what=last)  # type: ignore[misc]
        assert f"another job's {step}" in output.lines()
        step += 1
    assert step > 2
    output.close()
