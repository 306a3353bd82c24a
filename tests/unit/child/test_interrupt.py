"""The region: Shutdown reaches a thread inside it, and never one that has left.

Thousands of races, because the fault that this guards against is one bytecode wide.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from forkq.child.interrupt import InterruptRegion
from forkq.errors import Shutdown
from tests.support.waiting import wait_until

RACES = 2000
PATIENCE = 120.0  # seconds; a free machine takes less than ten for all races


@pytest.fixture(autouse=True)
def brisk_switches() -> Iterator[None]:
    """Threads take turns a thousand times as often as usual: more races in less time."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(usual)


def in_thread(run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def spin_until(fact: Callable[[], bool], deadline: float = 20.0) -> None:
    """As wait_until, in pure bytecode: where an interruption lands."""
    end = time.monotonic() + deadline
    while not fact():
        assert time.monotonic() < end


def leave(region: InterruptRegion) -> bool:
    """As the processor does it: the exception may strike at the call itself, once."""
    try:
        return region.leave()
    except Shutdown:
        return region.leave()


def test_outside_of_the_region_nothing_is_raised() -> None:
    region = InterruptRegion()
    assert region.interrupt() is False
    region.enter()
    assert leave(region) is False
    assert region.interrupt() is False


def test_a_thread_inside_is_interrupted_and_knows_it() -> None:
    region, outcome = InterruptRegion(), []
    inside = threading.Event()

    def perform() -> None:
        raised = False
        try:
            region.enter()
            inside.set()
            spin_until(lambda: False)
        except Shutdown:
            raised = True
        outcome.append((raised, leave(region)))

    thread = in_thread(perform)
    assert inside.wait(10)
    assert region.interrupt() is True
    thread.join(20)
    assert outcome == [(True, True)]


def test_a_swallowed_interruption_is_still_known_and_comes_only_once() -> None:
    region, outcome = InterruptRegion(), []
    inside, swallowed, go = threading.Event(), threading.Event(), threading.Event()

    def perform() -> None:
        times = 0
        try:
            region.enter()
            inside.set()
            while not go.is_set():
                try:
                    spin_until(go.is_set)
                except Shutdown:
                    times += 1
                    swallowed.set()
        finally:
            outcome.append((times, leave(region), leave(region)))

    thread = in_thread(perform)
    assert inside.wait(10)
    assert region.interrupt() is True
    assert swallowed.wait(10)
    assert region.interrupt() is True
    go.set()
    thread.join(20)
    assert outcome == [(1, True, False)]


def test_an_interruption_that_was_not_delivered_yet_is_taken_back() -> None:
    """It stays pending while the thread is in C; the way out clears it."""
    region, lock = InterruptRegion(), threading.Lock()
    outcome: list[bool] = []

    def perform() -> None:
        try:
            region.enter()
            lock.acquire()
        except Shutdown:
            outcome.append(True)  # 3.10 may deliver it here; then there is nothing to take back
        outcome.append(leave(region))
        for _ in range(1000):
            pass

    lock.acquire()
    thread = in_thread(perform)
    wait_until(lambda: region._inside, what="the thread to be inside")
    assert region.interrupt() is True
    lock.release()
    thread.join(20)
    assert outcome
    assert outcome[-1] is True


class Racer:
    """A processor that enters and leaves its region as fast as it can, and what went wrong."""

    def __init__(self) -> None:
        self.region = InterruptRegion()
        self.rounds = 0
        self.raised = 0
        self.leaks: list[str] = []
        self.lost = 0
        self.over = False
        self.known = 0

    def run(self) -> None:
        try:
            while not self.over:
                self._round()
        except Shutdown:
            self.leaks.append(f"in round {self.rounds}")

    def _round(self) -> None:
        raised = False
        try:
            self.region.enter()
            for _ in range(200):  # long enough to be hit inside, too
                pass
        except Shutdown:
            raised = True
        try:
            interrupted = self.region.leave()
        except Shutdown:
            interrupted = self.region.leave()
        # From here on nothing may strike: this is the processor's own code.
        for _ in range(20):
            self.rounds += 1
        self.raised += raised
        self.known += interrupted
        if raised and not interrupted:
            self.lost += 1


def test_in_thousands_of_races_nothing_leaks_out_of_the_region() -> None:
    racer = Racer()
    thread = in_thread(racer.run)
    hits = 0
    end = time.monotonic() + PATIENCE
    while hits < RACES and thread.is_alive() and time.monotonic() < end:
        before = racer.known
        hits += racer.region.interrupt()
        while racer.region._interrupted and racer.known == before and thread.is_alive():
            time.sleep(0)  # one hit a round: let it come out before the next
    racer.over = True
    thread.join(20)
    assert not thread.is_alive()
    assert racer.leaks == []
    assert racer.lost == 0
    assert hits >= RACES / 10  # on a machine that is busy elsewhere, too
    assert racer.raised > 0
    assert racer.known >= racer.raised


def test_each_interruption_delivers_at_most_one_late_exception() -> None:
    """On every version: what the processor's outermost guard must catch is a Shutdown, no more."""
    region, stop = InterruptRegion(), threading.Event()
    strays = [0]

    def run() -> None:
        while not stop.is_set():
            try:
                with contextlib.suppress(Shutdown):
                    region.enter()
                leave(region)
            except Shutdown:
                strays[0] += 1
                region.leave()

    thread = in_thread(run)
    hits = 0
    end = time.monotonic() + PATIENCE
    while hits < 500 and time.monotonic() < end:
        hits += region.interrupt()
    stop.set()
    thread.join(20)
    assert not thread.is_alive()
    assert hits >= 500
    assert strays[0] <= hits


def test_regions_do_not_affect_each_other() -> None:
    """The manager interrupts one processor; its neighbour goes on."""
    mine, neighbours = InterruptRegion(), InterruptRegion()
    ready, go = threading.Event(), threading.Event()
    outcome: list[bool] = []

    def neighbour() -> None:
        neighbours.enter()
        ready.set()
        spin_until(go.is_set)
        outcome.append(leave(neighbours))

    thread = in_thread(neighbour)
    assert ready.wait(10)
    with contextlib.suppress(Shutdown):
        mine.enter()
        mine.interrupt()
    leave(mine)
    go.set()
    thread.join(20)
    assert outcome == [False]
