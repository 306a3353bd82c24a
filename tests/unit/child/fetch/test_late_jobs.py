"""The thread that watches what is leased ahead."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from forkq.child.fetch.late_jobs import LateJobs
from tests.support.waiting import wait_until


class Looks:
    """Counts the looks; ``answers`` are what they return, then None."""

    def __init__(self) -> None:
        self.count = 0
        self.answers: SimpleQueue[float] = SimpleQueue()

    def __call__(self) -> float | None:
        self.count += 1
        return None if self.answers.empty() else self.answers.get()


@pytest.fixture
def looks() -> Looks:
    return Looks()


@pytest.fixture
def late_jobs(looks: Looks) -> Iterator[LateJobs]:
    made = LateJobs(looks)
    yield made
    made.end()
    wait_until(lambda: not made.runs, what="the end of the thread")


def test_there_is_no_thread_before_it_is_needed(late_jobs: LateJobs) -> None:
    assert not late_jobs.runs


def test_it_looks_as_often_as_a_look_asks_for_and_then_sleeps(
    late_jobs: LateJobs, looks: Looks
) -> None:
    for _ in range(10):
        looks.answers.put(0.001)
    late_jobs.watch()
    wait_until(lambda: looks.count == 12, what="ten looks, and two that found nothing")


def test_it_is_woken(late_jobs: LateJobs, looks: Looks) -> None:
    late_jobs.watch()
    wait_until(lambda: looks.count == 2, what="it to sleep")
    late_jobs.watch()
    wait_until(lambda: looks.count == 4, what="another look, and one before it sleeps")
    late_jobs.hurry()
    wait_until(lambda: looks.count == 6, what="a look at once")


def test_a_system_without_another_thread_leases_nothing_ahead(
    late_jobs: LateJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert not late_jobs.starts()
    assert late_jobs.starts()
    late_jobs.end()
    assert not late_jobs.starts()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_an_exception_has_ended_is_replaced(
    late_jobs: LateJobs, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it slept: to wake it would be in vain."""
    late_jobs.watch()
    wait_until(lambda: looks.count == 2, what="it to sleep")
    monkeypatch.setattr(late_jobs, "_look", sys.exit)
    late_jobs.watch()
    wait_until(lambda: not late_jobs.runs, what="its end")
    monkeypatch.setattr(late_jobs, "_look", looks)
    late_jobs.watch()
    wait_until(lambda: looks.count >= 4, what="the looks of another one")
