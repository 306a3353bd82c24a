"""Standard input, output and error of a process that runs the app's code."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

from . import log
from .unblocked_output import READER_LIMIT, UnblockedOutput

_STDOUT, _STDERR = 1, 2


def open_standard_streams() -> None:
    """Opens /dev/null for each standard stream that the caller has closed. Otherwise the next pipe
    would get its number, and a job would print into that pipe."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(_STDOUT, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(_STDERR, "w", closefd=False)


def print_line_by_line() -> None:
    """From now on what the app prints is written at the end of each line, and cannot harm a job.

    Into a pipe or the journal Python would write blocks of 8 KiB: what a job has printed would come
    late, and never if the process is killed. With PYTHONUNBUFFERED it writes each value of a
    ``print`` by itself, and the line of another process may come between two of them. And where
    the disk is full, or the reader is gone or stands still, Python's ``print`` raises or waits.
    """
    sys.stdout = _by_lines(sys.stdout, _STDOUT)
    sys.stderr = _by_lines(sys.stderr, _STDERR)


def _by_lines(stream: TextIO, fd: int) -> TextIO:
    if os.isatty(fd):  # a debugger's prompt needs Python's own stream
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)
        return stream
    stream.flush()
    text = io.TextIOWrapper(_Output(fd), stream.encoding, "backslashreplace", line_buffering=True)
    vars(text)["mode"] = "w"  # as Python's own streams have it
    return text


class _Output(io.BufferedIOBase):
    """Standard output or error of the app. Its writes work as those of the log
    (unblocked_output.py): it never raises, and drops what a reader that stands still does not take
    within a second."""

    def __init__(self, fd: int) -> None:
        self.name = {_STDOUT: "<stdout>", _STDERR: "<stderr>"}[fd]
        self._fd = fd
        self._lines = UnblockedOutput(self._drop_notice, fd)
        self._lines.wait_for_reader(READER_LIMIT)
        os.register_at_fork(after_in_child=self._lines.reset)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        if log.admit_print(urgent=self._fd == _STDERR, lines=data.count(b"\n")):
            self._lines.write(bytes(data))
        return len(data)

    def _drop_notice(self, count: int) -> bytes:
        return f"forkq: {count} printed lines dropped: {self.name} was full\n".encode()
