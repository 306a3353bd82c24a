"""The jobs that the process tests run; a tree loads a copy of this file as its app.

Each records in a journal what it does: in a file, which works while Redis is away, and holds what a
killed process wrote. A line is one write, so any number of processes can share the file.
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


def record(event: str) -> None:
    """One line: what happened, to which job, in which process, when (monotonic)."""
    jid = forkq.current_job().jid
    os.write(_JOURNAL, f"{event} {jid} {os.getpid()} {time.monotonic():.6f}\n".encode())


@forkq.job(name="Quick")
def quick(seconds: float) -> None:
    """A short job."""
    record("begin")
    time.sleep(seconds)
    record("end")


@forkq.job(name="Nap")
def nap(seconds: float) -> None:
    """Sleeps in slices: can be interrupted, and cleans up behind itself."""
    record("begin")
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(_SLICE)
        record("end")
    finally:
        record("finally")


@forkq.job(name="Polite")
def polite() -> None:
    """Ends by itself, once it is asked to."""
    record("begin")
    while not forkq.stopping():
        time.sleep(_SLICE)
    record("end")


@forkq.job(name="Gate")
def gate(path: str) -> None:
    """Runs until a file appears."""
    record("begin")
    while not Path(path).exists():
        time.sleep(_SLICE)
    record("end")


@forkq.job(name="Waits")
def waits(key: int) -> None:
    """Does a step, and ends once its signal has come."""
    forkq.step("before", record, "step")
    if forkq.wait_for("go", key=key, timeout=900) is not None:
        record("end")


@forkq.job(name="Spin")
def spin() -> None:
    """Spins in Python: can be interrupted at any bytecode."""
    record("begin")
    try:
        while True:
            pass
    finally:
        record("finally")


@forkq.job(name="Block")
def block(seconds: int) -> None:
    """One long call into C that has let go of the GIL: cannot be interrupted."""
    record("begin")
    ctypes.CDLL(None).sleep(seconds)
    record("end")


@forkq.job(name="Hold")
def hold(seconds: int) -> None:
    """One long call into C that holds the GIL: nothing else in this child runs."""
    record("begin")
    ctypes.PyDLL(None).sleep(seconds)
    record("end")


@forkq.job(name="Regex")
def regex() -> None:
    """A regular expression that takes longer than any test, holding the GIL."""
    record("begin")
    re.match("(a+)+$", "a" * 60 + "b")
    record("end")


@forkq.job(name="Stubborn")
def stubborn() -> None:
    """Swallows every exception that is raised in it, and goes on."""
    record("begin")
    while True:
        try:
            record("tick")
            time.sleep(_SLICE)
        except BaseException:  # noqa: BLE001, S110 - that is the point of it
            pass


@forkq.job(name="Die")
def die(number: int) -> None:
    """Takes its child down with a signal."""
    record("begin")
    os.kill(os.getpid(), number)
    signal.pause() if number == signal.SIGSTOP else time.sleep(10)


@forkq.job(name="Fragile")
def fragile(path: str) -> None:
    """Takes its child down until a file appears, as if its fault were mended."""
    record("begin")
    if not Path(path).exists():
        os.kill(os.getpid(), signal.SIGKILL)
    record("end")


@forkq.job(name="Exit")
def leave(code: int) -> None:
    """Takes its child down with an exit code."""
    record("begin")
    os._exit(code)


@forkq.job(name="Segfault")
def segfault() -> None:
    """Takes its child down as a bug in a C extension does."""
    record("begin")
    ctypes.string_at(0)


@forkq.job(name="Fail")
def fail(secret: str, again: bool) -> None:
    """Raises; the argument must not appear in any log."""
    record("begin")
    del again
    raise ValueError(f"failed with {len(secret)} characters")


@forkq.job(name="Buried", retry=0)
def buried(secret: str) -> None:
    """Raises, and is not retried."""
    record("begin")
    raise ValueError(f"failed with {len(secret)} characters")


@forkq.job(name="Fork")
def fork(raises: bool) -> None:
    """Forks, and lets the copy come back from the job like the child itself."""
    record("begin")
    pid = os.fork()
    if pid and os.waitpid(pid, 0):
        record("end")
    elif raises:
        raise ValueError("in the copy")


@forkq.job(name="Pool")
def pool() -> None:
    """Ends a process of its own with SIGTERM, as multiprocessing's Pool does."""
    record("begin")
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    worker.start()
    worker.terminate()
    worker.join(10)
    record("end" if worker.exitcode == -signal.SIGTERM else "survived")


@forkq.job(name="Scribble")
def scribble() -> None:
    """Writes into every pipe that it finds open."""
    record("begin")
    for entry in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):
            if str(entry.readlink()).startswith("pipe:"):
                os.write(int(entry.name), b"\xff" * 64)
    record("end")


@forkq.job(name="Exec")
def become(path: str) -> None:
    """Turns its process into another program, the first time it runs."""
    record("begin")
    if Path(path).exists():
        record("end")
    else:
        Path(path).touch()
        os.execv("/bin/sleep", ["sleep", "60"])


@forkq.job(name="Hog")
def hog() -> None:
    """Takes memory until the kernel kills its child."""
    record("begin")
    taken = []
    while True:
        taken.append(bytearray(32 << 20))


@forkq.job(name="Doomed")
def doomed(path: str) -> None:
    """Runs until a file appears, and then raises."""
    record("begin")
    while not Path(path).exists():
        time.sleep(_SLICE)
    raise ValueError("doomed")
