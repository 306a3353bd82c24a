"""The thread that watches what is leased ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import cast

import pytest

from forkq.child.fetch.fetcher import Fetcher
from forkq.child.fetch_turn import LeaseWatch
from tests.support.waiting import wait_until


class FakeFetcher:
    """Counts the looks; ``answers`` are what they return, then None."""

    def __init__(self) -> None:
        self.count = 0
        self.answers: SimpleQueue[float] = SimpleQueue()
        self.watch = "none"
        self.dies = False
        self.lock = threading.RLock()
        self._news: SimpleQueue[bool] = SimpleQueue()

    def look(self, pause: float | None) -> float | None:
        """As the fetcher's, which asks twice before there is nothing to look for."""
        with suppress(Empty):
            self._news.get(timeout=pause)
        if self.dies:
            self.lock.acquire()  # the exception strikes before the ``try`` that would release it
            raise SystemExit
        self.count += 1
        return None if self.answers.empty() else self.answers.get()

    def drop_locks(self) -> None:
        """As the fetcher's: frees the lock that this thread has."""
        with suppress(RuntimeError):
            self.lock.release()

    def note_watch(self, *, on: bool) -> None:
        """A thread begins to look, or ends."""
        self.watch = "awake" if on else "none"
        self._news.put(True)


@pytest.fixture
def fetcher() -> FakeFetcher:
    return FakeFetcher()


@pytest.fixture
def watch(fetcher: FakeFetcher) -> Iterator[LeaseWatch]:
    made = LeaseWatch(cast("Fetcher", fetcher))
    yield made
    made.end()
    wait_until(lambda: not made.runs, what="the end of the thread")


def test_there_is_no_thread_before_it_is_wanted(watch: LeaseWatch, fetcher: FakeFetcher) -> None:
    watch.start_if_wanted()
    assert not watch.runs
    fetcher.watch = "wanted"
    watch.start_if_wanted()
    assert watch.runs


def test_it_looks_as_often_as_a_look_asks_for_and_then_sleeps(
    watch: LeaseWatch, fetcher: FakeFetcher
) -> None:
    for _ in range(10):
        fetcher.answers.put(0.001)
    fetcher.watch = "wanted"
    watch.start_if_wanted()
    wait_until(fetcher.answers.empty, what="ten looks")
    wait_until(lambda: fetcher.watch == "awake", what="the note that it runs")


def test_a_system_without_another_thread_leases_nothing_ahead(
    watch: LeaseWatch, fetcher: FakeFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    fetcher.watch = "wanted"
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        watch.start_if_wanted()
        assert (watch.runs, fetcher.watch) == (False, "wanted")
    watch.start_if_wanted()
    assert watch.runs
    watch.end()
    wait_until(lambda: not watch.runs, what="its end")
    fetcher.watch = "wanted"
    watch.start_if_wanted()
    assert not watch.runs


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_an_exception_has_ended_is_replaced(
    watch: LeaseWatch, fetcher: FakeFetcher
) -> None:
    """Until then nothing is leased ahead."""
    fetcher.watch, fetcher.dies = "wanted", True
    watch.start_if_wanted()
    wait_until(lambda: not watch.runs, what="its end")
    assert fetcher.watch == "none"
    assert fetcher.lock.acquire(blocking=False), "processors fetch on"
    fetcher.lock.release()
    fetcher.watch, fetcher.dies = "wanted", False
    watch.start_if_wanted()
    wait_until(lambda: fetcher.count, what="the looks of another one")
