"""What the app prints, as its reader gets it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PRINTS = """
import os, sys
from forkq.runtime.standard_streams import print_line_by_line
print_line_by_line()
print("version", 2)
print("error", 3, file=sys.stderr)
os._exit(0)
"""


@pytest.mark.parametrize("environment", [{}, {"PYTHONUNBUFFERED": "1"}])
def test_each_line_is_one_write_and_none_waits_in_a_buffer(environment: dict[str, str]) -> None:
    """Lines of several processes must not mix, and a killed process must lose none."""
    ours, theirs = socket.socketpair(type=socket.SOCK_DGRAM)  # each message is one write
    with ours, theirs:
        program = [sys.executable, "-c", PRINTS]
        end, environment = theirs.fileno(), {**os.environ, **environment}
        subprocess.run(program, stdout=end, stderr=end, env=environment, check=True)
        ours.setblocking(False)
        assert [ours.recv(100), ours.recv(100)] == [b"version 2\n", b"error 3\n"]
        with pytest.raises(BlockingIOError):
            ours.recv(100)


CANNOT_PRINT = """
import sys
from forkq.runtime.standard_streams import print_line_by_line
print_line_by_line()
for number in range(10_000):
    print("printed", number)
print("through", file=sys.stderr)
sys.stdin.readline()
print("the last")
"""


def started(output: int) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", CANNOT_PRINT]
    return subprocess.Popen(command, stdin=pipe, stdout=output, stderr=pipe)


@pytest.mark.parametrize("full", [True, False], ids=["full disk", "reader gone"])
def test_a_print_that_cannot_be_written_is_no_error(full: bool) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with Path("/dev/full").open("w") as disk:
        process = started(disk.fileno() if full else writer)
    os.close(writer)
    assert process.communicate(b"\n")[1] == b"through\n"
    assert process.returncode == 0


def test_a_reader_that_stands_still_holds_nothing_up_and_learns_what_it_missed() -> None:
    """The pipe takes 64 KiB of 136. If a print waited for the reader, this test would not end."""
    reader, writer = os.pipe()
    process = started(writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe, process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"through\n"
        os.set_blocking(reader, False)
        missed = pipe.read().splitlines()
        os.set_blocking(reader, True)
        process.communicate(b"\n")
        *_, notice, last = pipe.read().splitlines()
    assert missed[0] == b"printed 0"
    assert 2000 < len(missed) < 10_000
    assert b"printed lines dropped: <stdout> was full" in notice
    assert last == b"the last"
