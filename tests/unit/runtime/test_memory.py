"""The memory of a process."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

import psutil
import pytest

from forkq.runtime.memory import measure, resident

MB = 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="smaps_rollup is Linux's")
def test_pages_that_a_fork_shares_count_for_both_by_half() -> None:
    """RSS counts them twice."""
    shared = mmap.mmap(-1, 64 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    shared.write(b"x" * 64 * MB)
    before = measure(os.getpid())
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    os.close(read_end)
    child, rss = measure(pid), psutil.Process(pid).memory_info().rss
    os.close(write_end)
    os.waitpid(pid, 0)
    shared.close()
    assert before
    assert child
    assert child.shared >= 64 * MB
    assert child.private < before.private - 60 * MB
    assert child.used < rss - 30 * MB
    assert abs(child.shared + child.private - rss) < 8 * MB


def test_a_process_that_has_ended_has_none() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert measure(process.pid) is None


def test_what_a_process_uses_is_never_more_than_what_it_has() -> None:
    found = measure(os.getpid())
    assert found
    assert found.private <= found.used <= resident(os.getpid()) + MB
