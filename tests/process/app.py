"""The jobs that the process tests run; a tree loads a copy of this file as its app.

Each tells a journal what it does: a file, since that works while Redis is away, and whoever is
killed has told already. A line is written in one piece, so any number of processes can share it.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import re
import signal
import time
from pathlib import Path

import forkq

_JOURNAL = os.open(os.environ["FORKQ_TEST_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
_SLICE = 0.01


def tell(event: str) -> None:
    """One line: what happened, to which job, in which process, when (monotonic)."""
    jid = forkq.current_job().jid
    os.write(_JOURNAL, f"{event} {jid} {os.getpid()} {time.monotonic():.6f}\n".encode())


@forkq.job(name="Quick")
def quick(seconds: float) -> None:
    """A short job."""
    tell("begin")
    time.sleep(seconds)
    tell("end")


@forkq.job(name="Nap")
def nap(seconds: float) -> None:
    """Sleeps in slices: can be interrupted, and cleans up behind itself."""
    tell("begin")
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(_SLICE)
        tell("end")
    finally:
        tell("finally")


@forkq.job(name="Polite")
def polite() -> None:
    """Ends by itself, once it is asked to."""
    tell("begin")
    while not forkq.stopping():
        time.sleep(_SLICE)
    tell("end")


@forkq.job(name="Gate")
def gate(path: str) -> None:
    """Runs until a file appears."""
    tell("begin")
    while not Path(path).exists():
        time.sleep(_SLICE)
    tell("end")


@forkq.job(name="Spin")
def spin() -> None:
    """Spins in Python: can be interrupted at any bytecode."""
    tell("begin")
    try:
        while True:
            pass
    finally:
        tell("finally")


@forkq.job(name="Block")
def block(seconds: int) -> None:
    """One long call into C that has let go of the GIL: cannot be interrupted."""
    tell("begin")
    ctypes.CDLL(None).sleep(seconds)
    tell("end")


@forkq.job(name="Hold")
def hold(seconds: int) -> None:
    """One long call into C that holds the GIL: nothing else in this child runs."""
    tell("begin")
    ctypes.PyDLL(None).sleep(seconds)
    tell("end")


@forkq.job(name="Regex")
def regex() -> None:
    """A regular expression that takes longer than anybody lives, holding the GIL."""
    tell("begin")
    re.match("(a+)+$", "a" * 60 + "b")
    tell("end")


@forkq.job(name="Stubborn")
def stubborn() -> None:
    """Swallows whatever is raised in it, and goes on."""
    tell("begin")
    while True:
        try:
            tell("tick")
            time.sleep(_SLICE)
        except BaseException:  # noqa: BLE001, S110 - that is the point of it
            pass


@forkq.job(name="Die")
def die(number: int) -> None:
    """Takes its child down with a signal."""
    tell("begin")
    os.kill(os.getpid(), number)
    signal.pause() if number == signal.SIGSTOP else time.sleep(10)


@forkq.job(name="Exit")
def leave(code: int) -> None:
    """Takes its child down with an exit code."""
    tell("begin")
    os._exit(code)


@forkq.job(name="Segfault")
def segfault() -> None:
    """Takes its child down as a bug in a C extension does."""
    tell("begin")
    ctypes.string_at(0)


@forkq.job(name="Fail")
def fail(secret: str, again: bool) -> None:
    """Raises; the argument is nobody's business."""
    tell("begin")
    del again
    raise ValueError(f"failed with {len(secret)} characters")


@forkq.job(name="Buried", retry=0)
def buried(secret: str) -> None:
    """Raises, and is not retried."""
    tell("begin")
    raise ValueError(f"failed with {len(secret)} characters")


@forkq.job(name="Fork")
def fork(raises: bool) -> None:
    """Forks, and lets the copy come back from the job like the child itself."""
    tell("begin")
    pid = os.fork()
    if pid and os.waitpid(pid, 0):
        tell("end")
    elif raises:
        raise ValueError("in the copy")


@forkq.job(name="Pool")
def pool() -> None:
    """Ends a process of its own with SIGTERM, as multiprocessing's Pool does."""
    tell("begin")
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    worker.start()
    worker.terminate()
    worker.join(10)
    tell("end" if worker.exitcode == -signal.SIGTERM else "survived")


@forkq.job(name="Scribble")
def scribble() -> None:
    """Writes into every pipe that it finds open."""
    tell("begin")
    for entry in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):
            if str(entry.readlink()).startswith("pipe:"):
                os.write(int(entry.name), b"\xff" * 64)
    tell("end")


@forkq.job(name="Exec")
def become(path: str) -> None:
    """Turns its process into another program, the first time it runs."""
    tell("begin")
    if Path(path).exists():
        tell("end")
    else:
        Path(path).touch()
        os.execv("/bin/sleep", ["sleep", "60"])
