"""Standard input, output and error of a process that runs the app's code."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import Final

_STDERR: Final = 2


def open_standard_streams() -> None:
    """Opens /dev/null for each standard stream that the caller has closed. Otherwise the next pipe
    would get its number, and a job would print into that pipe."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(_STDERR, "w", closefd=False)


def print_line_by_line() -> None:
    """From now on each line that the app prints is written at once, and by one call.

    Into a pipe or the journal Python would write blocks of 8 KiB: what a job has printed would come
    late, and never if the process is killed. With PYTHONUNBUFFERED it writes each value of a
    ``print`` by itself, and the line of another process may come between two of them.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # not what the app may have put in its place
            stream.reconfigure(line_buffering=True, write_through=False)
