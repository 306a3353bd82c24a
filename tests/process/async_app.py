"""The app of the tests of async capsules: coroutines, and a few ``def`` jobs beside them."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from pathlib import Path

import forkq

_JOURNAL = os.open(os.environ["FORKQ_TEST_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
_SLICE = 0.01
_LOOK_EVERY = 0.05


def record(event: str) -> None:
    """One line: what happened, to which job, in which process, when (monotonic)."""
    jid = forkq.current_job().jid
    os.write(_JOURNAL, f"{event} {jid} {os.getpid()} {time.monotonic():.6f}\n".encode())


@forkq.job(name="Nap")
async def nap(seconds: float) -> None:
    """Sleeps; tells why it is cancelled, and cleans up behind itself."""
    record("begin")
    try:
        await asyncio.sleep(seconds)
        record("end")
    except asyncio.CancelledError:
        record(str(forkq.current_job().ending))
        raise
    finally:
        record("finally")


@forkq.job(name="Gate")
async def gate(path: str) -> None:
    """Waits until there is a file."""
    record("begin")
    while not Path(path).exists():
        await asyncio.sleep(_LOOK_EVERY)
    record("end")


@forkq.job(name="Stubborn")
async def stubborn() -> None:
    """Swallows each cancellation."""
    record("begin")
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            record("swallowed")


@forkq.job(name="Fail")
async def fail() -> None:
    """Fails after a while."""
    record("begin")
    await asyncio.sleep(_SLICE)
    raise ValueError("no")


@forkq.job(name="Progress")
async def progress(path: str) -> None:
    """Reports progress, and waits for a file."""
    forkq.current_job().progress(3, 10, "so far")
    record("begin")
    while not Path(path).exists():
        await asyncio.sleep(_LOOK_EVERY)


@forkq.job(name="Sync")
def sync(seconds: float) -> None:
    """A ``def`` job that sleeps in slices."""
    record("begin")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(_SLICE)
    record("end")


@forkq.job(name="SyncGate")
def sync_gate(path: str) -> None:
    """A ``def`` job that waits until there is a file."""
    record("begin")
    while not Path(path).exists():
        time.sleep(_SLICE)
    record("end")


@forkq.job(name="BlockLoop")
async def block_loop(seconds: float) -> None:
    """Blocks the loop."""
    record("begin")
    time.sleep(seconds)
    record("end")


@forkq.job(name="Segfault")
async def segfault() -> None:
    """Dies in a step of its own, after others."""
    record("begin")
    await asyncio.sleep(_SLICE)
    ctypes.string_at(0)


@forkq.job(name="Exit")
async def leave(code: int) -> None:
    """Ends its process."""
    record("begin")
    await asyncio.sleep(_SLICE)
    os._exit(code)


@forkq.job(name="KillItself")
async def kill_itself(seconds: float) -> None:
    """Is killed as the kernel kills a process that takes too much memory."""
    record("begin")
    await asyncio.sleep(seconds)
    os.kill(os.getpid(), 9)


@forkq.job(name="TakeAll")
async def take_all() -> None:
    """Takes memory until the kernel kills its process."""
    record("begin")
    kept = []
    for _ in range(100):
        kept.append(bytearray(b"x") * (16 << 20))
        await asyncio.sleep(_SLICE)


@forkq.job(name="Grow")
async def grow(megabytes: int, path: str) -> None:
    """Takes memory, and keeps it until there is a file."""
    record("begin")
    kept = bytearray(b"x") * (megabytes << 20)
    while not Path(path).exists():
        await asyncio.sleep(_LOOK_EVERY)
    record("end" if kept else "")


@forkq.job(name="BlockUntil")
async def block_until(path: str) -> None:
    """Blocks the loop until there is a file."""
    record("begin")
    while not Path(path).exists():
        time.sleep(_SLICE)
    record("end")


def _reads_until(path: str) -> None:
    while not Path(path).exists():
        time.sleep(_SLICE)


@forkq.job(name="BlockLater")
async def block_later(path: str) -> None:
    """Has the loop call what blocks it until there is a file, and is no job's."""
    record("begin")
    asyncio.get_running_loop().call_soon(_reads_until, path)


@forkq.job(name="Hold")
async def hold(seconds: int) -> None:
    """Holds the interpreter's lock in one call into C."""
    record("begin")
    ctypes.PyDLL(None).sleep(seconds)
