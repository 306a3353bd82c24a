"""The memory of a process, and how often the master measures it."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from typing import Any, cast

import psutil
import pytest

from forkq.config.capsule import Capsule
from forkq.config.recycling import Recycling
from forkq.master import memory_meter
from forkq.master.child_handle import ChildHandle
from forkq.master.memory import Memory, measure
from forkq.master.memory_meter import MemoryMeter

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


class Measured:
    """Stands for a child in the meter's eyes."""

    def __init__(self, limits: Recycling | None = None) -> None:
        self.pid, self.was_ready, self.frozen, self.memory_due = id(self), True, False, 0.0
        self.memory: Memory | None = None
        self.slot: Any = type("Slot", (), {})()
        self.slot.capsule = None if limits is None else Capsule("default", recycling=limits)


def test_each_turn_measures_one_child_and_a_slow_one_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A child with a limit more often than others."""
    limited, slow, clock = Measured(Recycling(max_memory=MB)), Measured(Recycling()), Measured()
    booting = Measured()
    booting.was_ready = False
    taken: list[int] = []

    def measure_slowly(pid: int) -> Memory:
        taken.append(pid)
        if pid == slow.pid:
            time.sleep(0.3)
        return Memory(1, 2, 3)

    monkeypatch.setattr(memory_meter, "measure", measure_slowly)
    everyone = {each.pid: cast("ChildHandle", each) for each in (limited, slow, clock, booting)}
    meter = MemoryMeter(everyone)
    while meter.measure_next():
        pass
    assert taken == [limited.pid, slow.pid, clock.pid]
    now = time.monotonic()
    assert 0 < limited.memory_due - now <= 1.0 < clock.memory_due - now <= 10.0
    assert slow.memory_due - now >= 13.0
    assert meter.due == limited.memory_due
