"""The pipe on which a fetcher sleeps."""

from __future__ import annotations

import os

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


def test_a_waker_that_is_dropped_closes_its_pipe() -> None:
    waker = Waker()
    fd = waker.fd
    del waker
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
