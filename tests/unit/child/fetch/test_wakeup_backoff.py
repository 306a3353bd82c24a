"""How long a child holds back after a wake-up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from forkq.child.fetch import wakeup_backoff
from forkq.child.fetch.wakeup_backoff import WakeupBackoff

LONG = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(wakeup_backoff, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def woken(backoff: WakeupBackoff, *, won: bool) -> float:
    pause = backoff.pause_after_wakeup()
    backoff.fetched(woken=True, won=won)
    return pause


def test_a_child_goes_at_once_until_it_is_woken_in_vain(clock: Clock) -> None:
    backoff = WakeupBackoff()
    assert woken(backoff, won=True) == 0
    assert woken(backoff, won=False) == 0
    assert 0.001 <= woken(backoff, won=False) <= 0.002
    assert 0.002 <= woken(backoff, won=True) <= 0.004
    assert woken(backoff, won=True) == 0


def test_a_child_that_was_woken_in_vain_holds_back_after_a_quiet_time_too(clock: Clock) -> None:
    """One of several idle children goes at once: the one that had the last job."""
    backoff = WakeupBackoff()
    for _ in range(9):
        woken(backoff, won=False)
    clock.now += LONG
    assert 0.001 <= woken(backoff, won=False) <= 0.002
    clock.now += LONG
    assert 0.001 <= woken(backoff, won=True) <= 0.002
    clock.now += LONG
    assert woken(backoff, won=True) == 0
