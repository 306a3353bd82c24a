"""How often the master measures the memory of its children."""

from __future__ import annotations

from typing import Any, cast

import pytest

from forkq.config.capsule import Capsule
from forkq.config.recycling import Recycling
from forkq.master import recycling
from forkq.master.child_handle import ChildHandle
from forkq.master.recycling import MemoryMeter
from forkq.master.slot import Slot
from forkq.runtime.memory import Memory
from forkq.runtime.shared_files import SharedFiles
from tests.unit.master.handles import get_ready

MB = 1 << 20


class Meter:
    """A meter whose measurements take ``cost`` seconds; the test says what each child has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.cost = 1000.0, 0.0
        self.taken: list[int] = []
        self.rss: dict[int, int] = {}
        self.children: dict[int, ChildHandle] = {}
        self._meter = MemoryMeter()
        monkeypatch.setattr(recycling, "measure", self._measure)
        monkeypatch.setattr(recycling, "resident", lambda pid: self.rss[pid])
        for clock in ("monotonic", "thread_time"):
            monkeypatch.setattr(f"forkq.master.recycling.time.{clock}", lambda: self.now)

    def _measure(self, pid: int) -> Memory:
        self.taken.append(pid)
        self.now += self.cost
        return Memory(1, 2, 3)

    def child(self, limits: Recycling | None, rss: int = 0) -> int:
        """One more child. Returns its pid."""
        pid = len(self.children) + 1
        slot = Slot("a", None if limits is None else Capsule("a", recycling=limits))
        handle = ChildHandle(slot, pid, None, -1, cast("Any", None), SharedFiles(-1, -1), "a")
        get_ready(handle)
        self.children[pid], self.rss[pid] = handle, rss
        return pid

    @property
    def due(self) -> float | None:
        """When the next child is due."""
        dues = (self._meter.due(child) for child in self.children.values())
        return min((due for due in dues if due is not None), default=None)

    def taken_within(self, seconds: float) -> list[int]:
        """Which children are measured, in turns of the master's loop."""
        self.taken.clear()
        end = self.now + seconds
        while self.now < end:
            self._meter.measure_next(self.children.values())
            due = self.due
            assert due is not None
            self.now = max(self.now + 0.001, due)
        return self.taken


def test_the_pss_of_a_child_is_measured_seldom_until_its_rss_is_above_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meter = Meter(monkeypatch)
    limited, hard = (
        meter.child(Recycling(max_memory=100 * MB), rss=50 * MB),
        meter.child(Recycling(hard_max_memory=100 * MB), rss=50 * MB),
    )
    unlimited, clock = meter.child(Recycling(), rss=500 * MB), meter.child(None, rss=500 * MB)
    assert meter.taken_within(9) == [limited, hard, unlimited, clock]
    meter.rss[limited] = meter.rss[hard] = 101 * MB
    taken = meter.taken_within(9)
    assert all(8 <= taken.count(pid) <= 10 for pid in (limited, hard))
    assert all(taken.count(pid) <= 1 for pid in (unlimited, clock))


def test_a_measurement_that_takes_long_is_made_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in 5 s for a limit, and once in 100 s for the status alone, if it takes 0.2 s."""
    meter = Meter(monkeypatch)
    meter.cost = 0.2
    limited = meter.child(Recycling(max_memory=100 * MB), rss=200 * MB)
    meter.child(Recycling(), rss=200 * MB)
    assert meter.taken_within(100).count(limited) in range(19, 26)
    assert len(meter.taken) - meter.taken.count(limited) in (1, 2)


def test_a_child_that_boots_or_is_frozen_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter(monkeypatch)
    booting, frozen = meter.children[meter.child(None)], meter.children[meter.child(None)]
    booting.told.ready_at, frozen.frozen = None, True
    assert meter.due is None
    meter._meter.measure_next(meter.children.values())
    assert meter.taken == []
