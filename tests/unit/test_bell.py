"""The bell on which a fetcher sleeps."""

from __future__ import annotations

import os

import pytest

from forkq.child.bell import Bell


def test_a_ring_ends_the_next_sleep() -> None:
    bell = Bell()
    for _ in range(100_000):  # more than a pipe holds
        bell.ring()
    bell.sleep(60)
    assert not os.get_blocking(bell.fd)
    with pytest.raises(BlockingIOError):
        os.read(bell.fd, 1)


def test_a_bell_that_is_dropped_closes_its_pipe() -> None:
    bell = Bell()
    fd = bell.fd
    del bell
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
