"""Standard error whose reader is slow, gone or back: no write waits for the reader."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import signal
import socket
import threading
import time
import tty
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from forkq.runtime import prompt, unblocked_output
from forkq.runtime.unblocked_output import UnblockedOutput
from tests.support.waiting import wait_until, within

LINE = b"x" * 200 + b"\n"
LONG = b"y" * 300_000 + b"\n"


def drop_notice(count: int) -> bytes:
    return b"dropped %d\n" % count


@dataclass
class Ends:
    """The two ends of a pipe, a socket or a terminal."""

    write: int
    read: int

    def received(self) -> bytes:
        """All bytes that the reader can read now."""
        found = b""
        while True:
            try:
                piece = os.read(self.read, 65536)
            except BlockingIOError:
                return found
            found += piece


def _pipe() -> tuple[int, int]:
    read, write = os.pipe()
    return write, read


def _socket() -> tuple[int, int]:
    write, read = socket.socketpair()
    return write.detach(), read.detach()


def _terminal() -> tuple[int, int]:
    master, slave = pty.openpty()
    tty.setraw(slave)
    return slave, master


class Outputs:
    """Makes the objects under test, and closes them."""

    def __init__(self) -> None:
        self.made: list[UnblockedOutput] = []

    def __call__(self, fd: int) -> UnblockedOutput:
        self.made.append(UnblockedOutput(drop_notice, fd))
        return self.made[-1]


@pytest.fixture
def make_output() -> Iterator[Outputs]:
    outputs = Outputs()
    yield outputs
    for output in outputs.made:
        output.close()


@pytest.fixture(params=[_pipe, _socket, _terminal, "not opened anew"])
def ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    make: Callable[[], tuple[int, int]] = _pipe
    if request.param == "not opened anew":
        monkeypatch.setattr(unblocked_output, "_open_anew", lambda fd: None)
    else:
        make = request.param
    found = Ends(*make())
    os.set_blocking(found.read, False)
    yield found
    os.close(found.read)
    os.close(found.write)


def drained(ends: Ends, output: UnblockedOutput, until: bytes) -> bytes:
    """Reads, and lets the writer report its drops, until ``until`` was read."""
    found = b""

    def has_come() -> bool:
        nonlocal found
        found += ends.received()
        output.report_dropped_lines()
        return until in found

    wait_until(has_come, what=repr(until))
    return found


def test_lines_without_a_reader_are_dropped_and_counted_when_it_reads_again(
    ends: Ends, make_output: Outputs
) -> None:
    output = make_output(ends.write)
    began = time.monotonic()
    for _ in range(5000):
        output.write(LINE)
    assert time.monotonic() - began < within(2)
    lost = output._dropped
    assert lost > 0
    found = drained(ends, output, drop_notice(lost))
    counts = [int(count) for count in re.findall(rb"dropped (\d+)\n", found)]
    assert found.count(LINE) + sum(counts) == 5000
    output.write(b"after\n")
    assert drained(ends, output, b"after\n") == b"after\n"


def test_a_line_that_fits_only_in_part_is_completed_before_the_next(
    ends: Ends, make_output: Outputs
) -> None:
    output = make_output(ends.write)
    output.write(LONG)
    output.write(b"dropped, for now\n")
    found = drained(ends, output, b"dropped 1\n")
    assert found == LONG + drop_notice(1)


def test_the_shared_descriptor_stays_as_it_was(ends: Ends, make_output: Outputs) -> None:
    before = fcntl.fcntl(ends.write, fcntl.F_GETFL)
    output = make_output(ends.write)
    output.write(LONG)
    assert fcntl.fcntl(ends.write, fcntl.F_GETFL) == before


def test_a_line_waits_for_a_slow_reader_but_only_one_line_for_a_stopped_one(
    ends: Ends, make_output: Outputs
) -> None:
    output = make_output(ends.write)
    output.wait_for_reader(0.2)
    began = time.monotonic()
    while not output._dropped:
        output.write(LINE)
    assert time.monotonic() - began >= 0.2
    began = time.monotonic()
    for _ in range(1000):
        output.write(LINE)
    assert time.monotonic() - began < 20  # if each waited, it would be 200


def test_a_closed_reader_and_a_closed_descriptor_raise_nothing(
    make_output: Outputs,
) -> None:
    read, write = os.pipe()
    output = make_output(write)
    os.close(read)
    output.write(LINE)
    os.close(write)
    closed = make_output(write)
    closed.write(LINE)
    closed.report_dropped_lines()


def test_a_fork_during_another_threads_write_can_write(make_output: Outputs) -> None:
    read, write = os.pipe()
    output = make_output(write)
    write_now, inside, go = output._write_now, threading.Event(), threading.Event()

    def slowly(data: bytes) -> int:
        inside.set()
        go.wait(20)
        return write_now(data)

    output._write_now = slowly
    other = threading.Thread(target=output.write, args=(b"other\n",))
    other.start()
    assert inside.wait(10)
    pid = os.fork()
    if pid == 0:
        output.reset()
        output._write_now = write_now
        output.write(b"fork\n")
        os._exit(0)
    wait_until(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid, what="the end of the fork")
    go.set()
    other.join(10)
    assert os.read(read, 100) == b"fork\nother\n"
    os.close(read)
    os.close(write)


def test_lines_for_a_full_disk_are_counted_and_none_is_broken_in_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk takes the first bytes of a line, and the rest only when there is room again."""
    disk, room = b"", 10

    def write(data: bytes) -> int:
        nonlocal disk, room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        piece = data[:room]
        disk, room = disk + piece, room - len(piece)
        return len(piece)

    output = UnblockedOutput(drop_notice, fd=-1)
    monkeypatch.setattr(output, "_write_now", write)
    output.write(b"the first line\n")
    output.write(b"the second line\n")
    room = 1000
    output.write(b"the third line\n")
    assert disk == b"the first line\ndropped 1\nthe third line\n"


def test_a_prompt_holds_up_lines_until_it_is_closed_or_its_process_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(prompt, "_shared", None)
    prompt.share()
    file = tmp_path / "log"
    with file.open("wb", buffering=0) as opened:
        output = UnblockedOutput(drop_notice, opened.fileno())
        with prompt.opened():
            output.write(b"one\n")
            assert file.read_bytes() == b""
        output.report_dropped_lines()
        assert file.read_bytes() == b"one\n"
        pid = os.fork()
        if pid == 0:
            with prompt.opened():
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
        output.write(b"two\n")
        assert file.read_bytes() == b"one\ntwo\n"
