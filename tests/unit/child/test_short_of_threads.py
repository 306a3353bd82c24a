"""A system that gives no more threads: the child goes on with those that it has."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from forkq.child.boot import start_threads
from forkq.child.fetch_turn import FetchParts, Hand
from forkq.child.heartbeat.stats import Tally
from forkq.child.lifecycle import Lifecycle
from forkq.child.manager import Manager
from forkq.child.processor import Processor
from forkq.errors import CannotBoot
from tests.support.recorded_log import RecordedLog


def refuse(*_: object) -> None:
    raise RuntimeError("can't start new thread")


class FakeTurn:
    """Remembers whose units were given up."""

    def __init__(self) -> None:
        self.abandoned: list[Hand] = []

    def abandon(self, hand: Hand) -> None:
        """The processor with that hand died."""
        self.abandoned.append(hand)


class FakeProcessor:
    """One that dies at once, or cannot be started."""

    def __init__(self, start: Callable[[], None], *, alive: bool, has_died: bool) -> None:
        self.tally, self.hand = Tally(), Hand()
        self._start = start
        self.alive, self.has_died = alive, has_died

    def start(self, gate: threading.Event) -> None:
        """Starts it, or raises."""
        self._start()


def test_the_reason_of_a_boot_that_failed_names_the_remedies() -> None:
    with pytest.raises(CannotBoot, match=r"no more threads: can't start new thread.*concurrency"):
        start_threads(refuse)


def test_leaders_handlers_that_get_no_thread_do_not_end_the_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are called the next time that it is elected."""
    log = RecordedLog()
    lifecycle = Lifecycle(log)
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", refuse)
        lifecycle.won()
    assert log.events() == ["the leader's handlers cannot be called"]
    lifecycle.won()
    assert len(log.events()) == 1


def test_a_replacement_that_cannot_be_started_is_tried_again() -> None:
    """And nothing is given up in its name: it has never had a thread."""
    log, turn = RecordedLog(), FakeTurn()
    first = FakeProcessor(lambda: None, alive=False, has_died=True)
    unstarted = FakeProcessor(refuse, alive=False, has_died=False)
    processors = iter([first, unstarted, FakeProcessor(lambda: None, alive=True, has_died=False)])

    def make_processor(name: str, tally: Tally) -> Processor:
        return cast("Processor", next(processors))

    fetch = cast("FetchParts", SimpleNamespace(turn=turn, fetcher=None, leases=None))
    manager = Manager(1, fetch, make_processor, log)
    for _ in range(3):
        manager.replace_the_dead()
    assert turn.abandoned == [first.hand]
    assert log.events() == [
        "a processor died; replaced",
        "a processor cannot be started; trying again",
    ]
