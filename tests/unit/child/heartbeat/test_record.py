"""The processor time in a child's record."""

from __future__ import annotations

import time

import pytest

from forkq.child.heartbeat.record import CpuMeter


def test_it_is_the_share_since_about_the_last_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"at": 100.0, "used": 7.0}
    monkeypatch.setattr(time, "monotonic", lambda: clock["at"])
    monkeypatch.setattr(time, "process_time", lambda: clock["used"])
    meter = CpuMeter()
    clock |= {"at": 110.0, "used": 22.0}
    assert meter.percent() == 150.0  # one and a half processors
    clock |= {"at": 110.2, "used": 22.2}
    assert meter.percent() == 150.0  # too short a time to say
    clock |= {"at": 120.0, "used": 22.0}
    assert meter.percent() == 0.0
