"""The application that the booted forkq of test_systemd.py runs; it writes down what happens.

Copied into the box, where only forkq's own folders can be written to.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path

import forkq

NOTES = Path(os.environ["STATE_DIRECTORY"]) / "notes"


def write(line: str) -> None:
    """Append one line; a single write in append mode, so that processes do not mix."""
    with NOTES.open("a") as notes:
        notes.write(f"{line}\n")


@forkq.job(name="Note")
def note(number: int, seconds: float) -> None:
    """A job whose beginning and end can be seen from outside."""
    write(f"begin {number}")
    time.sleep(seconds)
    write(f"end {number}")


@forkq.job(name="FailsOnce")
def fails_once(how: str) -> None:
    """A job whose first run holds the interpreter for ever, or ends its process."""
    write(f"begin {how}")
    if NOTES.read_text().splitlines().count(f"begin {how}") == 1:
        if how == "hang":
            re.match("(a+)+$", "a" * 64 + "b")
        # To this very thread: a signal to the process may come to another one, and this goes on.
        signal.pthread_kill(threading.get_ident(), signal.SIGSEGV)
    write("end 0")


@forkq.job(name="Hog")
def hog(megabytes: int) -> None:
    """A job that takes so much memory, touches it, and keeps it for a moment."""
    write("begin hog")
    taken = bytearray(megabytes << 20)
    for page in range(0, len(taken), 4096):
        taken[page] = 1
    time.sleep(5)


# An import that takes its time: READY=1 has something to wait for.
time.sleep(float(os.environ.get("IMPORT_SECONDS", "0.5")))
write(f"boot {os.getpid()}")
