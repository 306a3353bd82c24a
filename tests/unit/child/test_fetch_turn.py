"""The turn that a processor has reserved, and renews from job to job."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest

from forkq.child import fetch_turn
from forkq.child.fetch.plan import FetchPace
from forkq.child.fetch_turn import FetchTurn, Hand
from tests.support.waiting import wait_until


@pytest.fixture
def turn(monkeypatch: pytest.MonkeyPatch) -> FetchTurn:
    """A turn whose processors have performed many tiny jobs. A reservation lasts long enough to be
    renewed on a busy machine."""
    monkeypatch.setattr(fetch_turn, "_RESERVED_FOR", 0.2)
    pace, unused = FetchPace(4, 0.0), cast("Any", None)
    for _ in range(100):
        pace.performed(0.0)
    return FetchTurn(unused, unused, pace, unused)


def reserve(turn: FetchTurn) -> tuple[Hand, threading.Thread]:
    """Who has reserved the turn, and a thread that waits for it. The reservation does not end."""
    hand = Hand()
    turn.wait(hand)
    watcher = threading.Thread(target=turn.wait, args=(Hand(),), daemon=True)
    watcher.start()
    wait_until(lambda: turn._watched, what="the watcher")
    turn.leave(hand, performs=True)
    turn.renew(hand, time.monotonic() + 3600)
    assert hand.reserved
    return hand, watcher


def test_a_turn_that_is_renewed_stays_reserved_until_it_is_not_renewed(turn: FetchTurn) -> None:
    hand, watcher = reserve(turn)
    time.sleep(0.5)
    assert watcher.is_alive()
    assert hand.reserved
    turn.renew(hand, time.monotonic() - 1)
    watcher.join(10)
    assert not watcher.is_alive()
    assert not hand.reserved
    assert not turn.resume(hand)


def test_a_turn_is_free_at_the_next_job_after_one_that_was_not_tiny(turn: FetchTurn) -> None:
    hand, watcher = reserve(turn)
    turn._pace.performed(1.0)
    turn.renew(hand, time.monotonic() + 3600)
    watcher.join(10)
    assert not watcher.is_alive()
    assert not hand.reserved


def test_a_turn_that_was_taken_over_is_not_renewed(turn: FetchTurn) -> None:
    hand, watcher = reserve(turn)
    turn.renew(hand, time.monotonic() - 1)
    watcher.join(10)
    turn.renew(hand, time.monotonic())
    assert not hand.reserved
    assert not hand.turn
