"""The turn that a processor has reserved, and renews from job to job."""

from __future__ import annotations

import threading
import time

import pytest

from forkq.child.fetch import fetch_turn
from forkq.child.fetch.fetch_turn import FetchTurn, Holdings
from tests.support.waiting import wait_until


@pytest.fixture
def turn(monkeypatch: pytest.MonkeyPatch) -> FetchTurn:
    """A turn whose processors have performed many tiny jobs. A reservation lasts long enough to be
    renewed on a busy machine."""
    monkeypatch.setattr(fetch_turn, "_RESERVED_FOR", 0.2)
    turn = FetchTurn()
    for _ in range(100):
        turn.performed(0.0)
    return turn


def reserve(turn: FetchTurn) -> tuple[Holdings, threading.Thread]:
    """Who has reserved the turn, and a thread that waits for it. The reservation does not end."""
    holdings = Holdings()
    turn.wait(holdings)
    watcher = threading.Thread(target=turn.wait, args=(Holdings(),), daemon=True)
    watcher.start()
    wait_until(lambda: turn._watched, what="the watcher")
    turn.leave(holdings, performs=True)
    turn.renew(holdings, time.monotonic() + 3600)
    assert holdings.reserved
    return holdings, watcher


def test_a_turn_that_is_renewed_stays_reserved_until_it_is_not_renewed(turn: FetchTurn) -> None:
    holdings, watcher = reserve(turn)
    time.sleep(0.5)
    assert watcher.is_alive()
    assert holdings.reserved
    turn.renew(holdings, time.monotonic() - 1)
    watcher.join(10)
    assert not watcher.is_alive()
    assert not holdings.reserved
    assert not turn.resume(holdings)


def test_a_turn_is_free_at_the_next_job_after_one_that_was_not_tiny(turn: FetchTurn) -> None:
    holdings, watcher = reserve(turn)
    turn.performed(1.0)
    turn.renew(holdings, time.monotonic() + 3600)
    watcher.join(10)
    assert not watcher.is_alive()
    assert not holdings.reserved


def test_a_turn_that_was_taken_over_is_not_renewed(turn: FetchTurn) -> None:
    holdings, watcher = reserve(turn)
    turn.renew(holdings, time.monotonic() - 1)
    watcher.join(10)
    turn.renew(holdings, time.monotonic())
    assert not holdings.reserved
    assert not holdings.turn
