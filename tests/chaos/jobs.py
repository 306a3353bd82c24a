"""The jobs of a run; each host loads a copy of this file as its app.

Each run of a job notes its beginning and its end in a ledger, a file that forkq knows nothing of.
While it runs it holds a lock on the byte of its number in one file that all hosts share. The kernel
gives a lock back in the moment in which its process dies. So a run that does not get its lock
proves that another process has the same job, and runs or is frozen.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import secrets
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import forkq

HOST = os.environ["FORKQ_TEST_CHAOS_HOST"]
FOLDER = Path(os.environ["FORKQ_TEST_CHAOS_FOLDER"])
LIMIT = 3  # of the queue "limited"
SLOTS, TICKS = 1 << 42, 1 << 43  # bytes of the lock file that no number of a job reaches
PERIODIC = "tick"
LEAK = 3 << 20
HOG = 24 << 20
HOG_PIECES = 12

_LEDGER = os.open(FOLDER / f"ledger-{HOST}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
_LOCKS = FOLDER / "locks"
_kept: list[Any] = []  # what leaks
_naming = threading.Lock()
_process: tuple[int, str, Any] = (0, "", None)


class DeliberateError(Exception):
    """What a failing job raises."""


def _this_process() -> str:
    """This process's name in the ledger. The first call tells the harness that it has begun: over a
    connection whose end tells that it is dead."""
    if _process[0] != os.getpid():
        with _naming:
            if _process[0] != os.getpid():
                _introduce()
    return _process[1]


def _introduce() -> None:
    global _process  # noqa: PLW0603 - one value for each process
    name = f"{HOST}:{os.getpid()}:{secrets.token_hex(3)}"
    watch = socket.socket(socket.AF_UNIX)
    with suppress(OSError):  # the harness has ended
        watch.connect(str(FOLDER / "watch"))
        watch.sendall(f"{name}\n".encode())
    _process = (os.getpid(), name, watch)


def _record(event: str, number: int | str) -> None:
    """One line in one write, so that any number of processes can share the file."""
    attempt = forkq.current_job().retry_count
    attempt = 0 if attempt is None else attempt + 1
    line = f"{event} {number} {attempt} {_this_process()} {time.monotonic():.4f}\n"
    os.write(_LEDGER, line.encode())


def _lock(file: BinaryIO, byte: int) -> bool:
    asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, asked)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _run(number: int | str, byte: int | None = None) -> Iterator[BinaryIO]:
    # A file object, not a descriptor: an exception that comes between any two lines closes it.
    with _LOCKS.open("r+b", buffering=0) as locks:
        if not _lock(locks, int(number) if byte is None else byte):
            _record("overlap", number)
            _contested(number).touch()
        _record("begin", number)
        try:
            yield locks
        except BaseException as error:
            _record("failed" if isinstance(error, DeliberateError) else "interrupted", number)
            raise
        _record("end", number)


def _contested(number: int | str) -> Path:
    return FOLDER / f"contested-{number}"


def _sleep(number: int, seconds: float) -> None:
    """As long as this sleeps, it shows that its process runs if another one has the job, too."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)
        if _contested(number).exists():
            _record("alive", number)


def _soon(count: int, error: BaseException, job: Any) -> float:
    del count, error, job
    return 0.01


# The harness kills processes: what is innocent must never be buried for that.


@forkq.job(name="fast", crashes=100)
def fast(number: int, seconds: float) -> None:
    with _run(number):
        time.sleep(seconds)


@forkq.job(name="slow", crashes=100)
def slow(number: int, seconds: float) -> None:
    with _run(number):
        _sleep(number, seconds)


@forkq.job(name="scheduled", crashes=100)
def scheduled(number: int, delay: float) -> None:
    del delay
    with _run(number):
        pass


@forkq.job(name="failing", crashes=100, retry_in=_soon)
def failing(number: int, times: float) -> None:
    """Its first runs fail."""
    with _run(number):
        retried = forkq.current_job().retry_count
        if (0 if retried is None else retried + 1) < int(times):
            raise DeliberateError(number)


@forkq.job(name="limited", queue="limited", crashes=100)
def limited(number: int, seconds: float) -> None:
    """Takes one of as many locks as its queue's limit allows jobs at once."""
    with _run(number) as locks:
        if not any(_lock(locks, SLOTS + slot) for slot in range(LIMIT)):
            _record("overlimit", number)
        time.sleep(seconds)


@forkq.job(name="leak", crashes=100)
def leak(number: int, value: float) -> None:
    """Leaves memory behind, so that its child is replaced some time."""
    del value
    with _run(number):
        _kept.append(bytearray(LEAK))


@forkq.job(name="poison")
def poison(number: int, way: float) -> None:
    """Ends its process, in one of three ways."""
    with _run(number):
        if way < 1 / 3:
            os._exit(1)
        if way < 2 / 3:
            ctypes.string_at(0)
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(30)


@forkq.job(name="greedy")
def greedy(number: int, value: float) -> None:
    """Takes more memory than its child may have."""
    del value
    with _run(number):
        taken = [bytearray(HOG) for _ in range(HOG_PIECES)]
        _sleep(number, 60)
        del taken


@forkq.every("* * * * * *", name=PERIODIC)
@forkq.job(name=PERIODIC, crashes=100)
def periodic() -> None:
    """One job a second, for all hosts."""
    job = forkq.current_job()
    tick = int(job.payload["forkq"]["tick"])
    with _run(f"{tick}:{job.jid}", TICKS + tick):
        pass
