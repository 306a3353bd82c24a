"""Files without a name, which the master shares with one child. The master makes them before the
fork, so they outlive the child; their descriptors outlive an exec of the master.

In one the child's faulthandler leaves the stack of a crash, for the master to read. What is in the
other, deadlines.py writes and reads.
"""

from __future__ import annotations

import faulthandler
import os
import re
import tempfile
from typing import Final

_LONGEST: Final = 65_536  # bytes that are read
_LONGEST_STACK: Final = 2000  # characters
_CRASHED_THREAD: Final = "Current thread"
_THREAD_ID: Final = re.compile(r"Current thread 0x([0-9a-f]{1,16}) ")


def make(purpose: str) -> int:
    """A descriptor; ``purpose`` is what the system shows of it, if it has such a thing. Raises
    OSError."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"forkq-{purpose}")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def enable_crash_file(descriptor: int) -> None:
    """In the child: SIGSEGV, SIGFPE, SIGABRT, SIGBUS and SIGILL leave the stacks there."""
    faulthandler.enable(file=descriptor, all_threads=True)


def stack_in(descriptor: int) -> str:
    """The stack of the thread that crashed, innermost call first; "" if there is none."""
    _, _, rest = _text(descriptor).partition(_CRASHED_THREAD)
    lines = rest.partition("\n\n")[0].splitlines()[1:]
    return "\n".join(line.strip() for line in lines)[:_LONGEST_STACK]


def thread_in(descriptor: int) -> int | None:
    """The thread that crashed, as ``threading.get_ident`` names it; None if none did."""
    found = _THREAD_ID.search(_text(descriptor))
    return None if found is None else int(found[1], 16)


def _text(descriptor: int) -> str:
    return os.pread(descriptor, _LONGEST, 0).decode("utf-8", "replace")
