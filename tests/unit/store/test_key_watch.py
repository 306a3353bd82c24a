"""The thread that waits for keys ends, while others come."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from forkq.store.watch.key_watch import KeyWatch
from tests.support.waiting import wait_until


def test_a_thread_that_ends_does_not_go_on_beside_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A waiter comes in the moment in which the thread has let go of the lock."""
    make: Any = None  # no thread makes a connection here
    watch = KeyWatch(make, Exception)
    monkeypatch.setattr(watch, "_run", lambda: None)
    with watch._lock:
        watch._start()

    class Lock:
        def __enter__(self) -> None:
            assert watch._is_running

        def __exit__(self, *_: object) -> None:
            watch._lock = threading.Lock()
            watch.add(SimpleNamespace(key="k", tell=Any))

    monkeypatch.setattr(watch, "_lock", Lock())
    idle: Any = SimpleNamespace(attend=lambda _: None, is_idle=True, is_left=True)
    assert not watch._attend(idle)
    assert watch._is_running  # the next thread, which has the waiter
    assert len(watch._orders) == 1
    with watch._lock:
        watch._note_end()


class Away:
    """A connection to a server that is away."""

    connected, opened, follows = False, 0, False

    def connect(self) -> None:
        raise ConnectionError("away")

    def on_change(self, _: object) -> None: ...

    def close(self) -> None: ...


def test_a_waiter_that_leaves_as_the_thread_ends_writes_into_no_other_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It takes no lock. Once it has looked up the pipe, the thread ends, and files are opened whose
    numbers the pipe has had."""
    make: Any = Away
    watch = KeyWatch(make, lambda error: error)
    waiter = SimpleNamespace(key="k", tell=lambda _: False)
    watch.add(waiter)

    def sleeps() -> bool:
        """Whether the thread has the waiter, and the next wake-up writes."""
        reader, waker = watch._reader, watch._waker
        assert waker is not None
        return reader is not None and bool(reader._waiters) and waker._sleeps > waker._woken_from

    wait_until(sleeps, what="the waiter")
    opened: list[IO[bytes]] = []
    real = os.write

    def late(fd: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", real)
        watch.close()  # wakes the thread, which finds that the waiter has left
        wait_until(lambda: not watch._is_running, what="the end of the thread")
        opened.extend((tmp_path / str(number)).open("wb") for number in range(4))
        return real(fd, data)

    monkeypatch.setattr(os, "write", late)
    watch.drop(waiter)
    for file in opened:
        file.close()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b""] * 4
