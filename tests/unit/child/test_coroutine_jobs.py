"""A batch of an async capsule that an exception strikes: each unit has a way out all the same."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

import forkq
from forkq import registry
from forkq.child import coroutine_jobs
from forkq.child.coroutine_jobs import CoroutineJobs
from forkq.child.failure.ends import OpenEndings
from forkq.child.fetch.leases import Leases
from forkq.child.job_run import JobRun
from forkq.runtime.deadlines import UnitCells
from forkq.store.outage import Outage
from forkq.wire.lease import UnitOfWork
from tests.support.recorded_log import RecordedLog


class Struck(BaseException):
    """What an app raises in any thread."""


class Child:
    """The parts of an async child without threads. ``strikes``: which calls are struck."""

    def __init__(self, *strikes: int) -> None:
        log = RecordedLog()
        self.leases = Leases(10, OpenEndings(log, Outage(log)))
        self.leases.wake = self._wake
        self.returned: list[int] = []
        self.work: list[Callable[[], None]] = []
        self._strikes, self._calls = strikes, 0
        self.defer: Callable[[Callable[[], None]], None] | None = None  # what the loop is to call
        ends = SimpleNamespace(return_to_queue=lambda unit: unit)
        fetch: Any = SimpleNamespace(ends=ends, fetcher=self, leases=self.leases)
        waiting: Any = SimpleNamespace(
            closed=self._closed, knows=lambda _: False, offer=lambda _: False, end=self._end
        )
        loop: Any = SimpleNamespace(call_started=self._call, thread=threading.current_thread())
        self.woken = 0
        settling: Any = SimpleNamespace(call=lambda _, work: self.work.append(work))
        self.way: Any = SimpleNamespace(new_run=JobRun)
        cells = UnitCells.unread(10)
        parts: Any = (self.way, None, loop, waiting, settling, cells, lambda _: None)
        self.jobs = CoroutineJobs(fetch, *parts)

    @contextmanager
    def _closed(self) -> Iterator[None]:
        yield

    def _call(self, function: Callable[[], None]) -> None:
        if self.defer is not None:
            self.defer(function)
            return
        with suppress(Struck):
            function()

    def _wake(self) -> None:
        self.woken += 1

    def _end(self) -> list[UnitOfWork]:
        ended = self.leases.endings.moving
        return [unit for unit in self.leases.units().values() if unit.sequence not in ended]

    def done(self, unit: UnitOfWork, ending: object) -> None:
        self._calls += 1
        if self._calls in self._strikes:
            raise Struck
        self.returned.append(unit.sequence)
        self.leases.units()  # as the fetcher: it stays until Redis has told
        self.leases.endings.moving[unit.sequence] = ending  # type: ignore[assignment]

    def fetch(self, count: int) -> list[UnitOfWork]:
        payload = b'{"class": "Sync", "args": [], "jid": "m1"}'
        units = [UnitOfWork(1, "q", number, payload) for number in range(1, count + 1)]
        self.leases.add(units)
        return units


@pytest.fixture(autouse=True)
def sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    forkq.job(name="Sync")(lambda: None)


@pytest.mark.parametrize("strike", [1, 2, 3])
def test_what_finds_no_place_goes_back_though_its_return_is_struck(strike: int) -> None:
    child = Child(strike)
    child.jobs.begin_soon(child.fetch(3))
    assert not child.jobs.is_empty, "the batch is not forgotten before all of it has gone back"
    for work in child.work:
        work()
    assert sorted(child.returned) == [1, 2, 3]
    assert child.jobs.is_empty


def test_a_large_batch_begins_by_portions_and_what_goes_back_keeps_its_order() -> None:
    """What else is due in the loop comes between two portions. The youngest goes back first: then
    the oldest is the head of its queue again."""
    child = Child()
    calls: deque[Callable[[], None]] = deque()
    child.defer = calls.append
    child.jobs.begin_soon(child.fetch(120))
    child.jobs.quiet()
    portions = 0
    while calls:
        calls.popleft()()
        portions += 1
        assert child.returned == [] or len(calls) <= 1, "none is back before all are begun"
    assert portions > 3
    assert child.returned == [*range(120, 0, -1)]
    assert child.jobs.is_empty


def test_the_ends_of_one_turn_of_the_loop_wake_the_fetching_thread_once() -> None:
    """That thread would else ask Redis for one job at the first end, while a thousand end."""
    child = Child()
    woken_by = child.leases.wake  # as the fetcher calls it
    calls: list[Callable[[], None]] = []
    child.defer = calls.append
    for turn in (1, 2):
        for _ in range(50):
            woken_by()
        assert child.woken == turn - 1
        [wake] = calls
        calls.clear()
        wake()
        assert child.woken == turn
    elsewhere = threading.Thread(target=woken_by)
    elsewhere.start()
    elsewhere.join()
    assert (child.woken, calls) == (3, []), "an end in a settling thread is told at once"


def test_what_waits_goes_back_at_a_stop_though_its_return_is_struck() -> None:
    child = Child(2)
    child.fetch(3)
    child.jobs.quiet()
    for work in child.work:
        work()
    assert sorted(child.returned) == [1, 2, 3]
    assert child.jobs.is_empty


def test_a_pause_keeps_a_place_and_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    time = [100.0]
    monkeypatch.setattr(coroutine_jobs, "monotonic", lambda: time[0])
    child = Child()
    for consumer in range(8):
        child.way.pause(consumer, 1.0)
    assert child.leases.count().free == 2
    child.jobs.end_pauses()
    assert child.leases.count().free == 2
    time[0] += 1.0
    child.jobs.end_pauses()
    assert child.leases.count().free == 10
