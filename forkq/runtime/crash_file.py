"""The file in which a child's faulthandler leaves the stack of a crash, for the master to read.

The file has no name (unnamed_file.py).
"""

from __future__ import annotations

import faulthandler
import os
from typing import Final

_LONGEST: Final = 65_536  # bytes that are read
_LONGEST_STACK: Final = 2000  # characters
_CRASHED_THREAD: Final = "Current thread"


def enable(descriptor: int) -> None:
    """In the child: SIGSEGV, SIGFPE, SIGABRT, SIGBUS and SIGILL leave the stacks there."""
    faulthandler.enable(file=descriptor, all_threads=True)


def stack_in(descriptor: int) -> str:
    """The stack of the thread that crashed, innermost call first; "" if there is none."""
    text = os.pread(descriptor, _LONGEST, 0).decode("utf-8", "replace")
    _, _, rest = text.partition(_CRASHED_THREAD)
    lines = rest.partition("\n\n")[0].splitlines()[1:]
    return "\n".join(line.strip() for line in lines)[:_LONGEST_STACK]
