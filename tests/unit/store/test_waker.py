"""The pipe on which a fetcher sleeps."""

from __future__ import annotations

import os
import select

import pytest

from forkq.store.watch.waker import Waker


def test_a_wake_up_ends_the_next_sleep() -> None:
    waker = Waker()
    for _ in range(100_000):  # more than a pipe holds
        waker.wake()
    waker.sleep(60)
    assert not os.get_blocking(waker.fd)
    with pytest.raises(BlockingIOError):
        os.read(waker.fd, 1)


def test_many_wake_ups_of_one_sleep_write_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each job that ends while a thread waits for the interpreter would cost a system call."""
    waker, written = Waker(), []
    write = os.write

    def count(fd: int, text: bytes) -> int:
        written.append(text)
        return write(fd, text)

    monkeypatch.setattr(os, "write", count)
    for rounds in (1, 2):
        for _ in range(1000):
            waker.wake()
        assert len(written) == rounds
        waker.sleep(60)


def test_a_wake_up_at_each_point_of_the_end_of_a_sleep_ends_the_next_one_or_comes_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that sleeps looks after ``clear``: what was told before it is seen then. A later
    wake-up must end the next sleep."""
    waker, read = Waker(), os.read
    waker.wake()

    def wakes_meanwhile(fd: int, most: int) -> bytes:
        found = read(fd, most)
        waker.wake()  # as another thread, when the pipe has been read
        return found

    monkeypatch.setattr(os, "read", wakes_meanwhile)
    waker.clear()
    monkeypatch.setattr(os, "read", read)
    waker.wake()
    assert select.select([waker.fd], [], [], 0)[0], "the next sleep would last"


def test_a_waker_that_is_dropped_closes_its_pipe() -> None:
    waker = Waker()
    fd = waker.fd
    del waker
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
