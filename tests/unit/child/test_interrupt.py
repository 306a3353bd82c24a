"""The region: Shutdown reaches a thread inside it, and never one that has left.

Many races, because the fault that this guards against is one bytecode wide; thousands in
`make test-slow`.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from forkq.child.interrupt import InterruptRegion
from forkq.errors import Shutdown, TimeLimit
from tests.support.waiting import wait_until

MANY_RACES = pytest.mark.parametrize("races", [200, pytest.param(2000, marks=pytest.mark.slow)])
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
    """As the processor does it: an exception may strike at the call itself, one of each."""
    try:
        return region.leave() == "stop"
    except (Shutdown, TimeLimit):
        try:
            return region.leave() == "stop"
        except (Shutdown, TimeLimit):
            return region.leave() == "stop"


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
        self.known += bool(interrupted)
        if raised and not interrupted:
            self.lost += 1


@MANY_RACES
def test_in_many_races_nothing_leaks_out_of_the_region(races: int) -> None:
    racer = Racer()
    thread = in_thread(racer.run)
    hits = 0
    end = time.monotonic() + PATIENCE
    while hits < races and thread.is_alive() and time.monotonic() < end:
        before = racer.known
        hits += racer.region.interrupt()
        while racer.region._cut_short and racer.known == before and thread.is_alive():
            time.sleep(0)  # one hit a round: let it come out before the next
    racer.over = True
    thread.join(20)
    assert not thread.is_alive()
    assert racer.leaks == []
    assert racer.lost == 0
    assert hits >= races / 10  # on a machine that is busy elsewhere, too
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


class Timed:
    """A job with a time limit."""

    def __init__(self) -> None:
        self.raised = False


def run_inside(region: InterruptRegion, job: Timed | None, inside: threading.Event) -> list[str]:
    """Enters the region for ``job`` and spins until an exception comes. What came."""
    outcome = []
    try:
        region.enter(job)
        inside.set()
        spin_until(lambda: False)
    except (Shutdown, TimeLimit) as error:
        outcome.append(type(error).__name__)
    outcome.append("interrupted" if leave(region) else "left")
    return outcome


def test_a_time_limit_is_raised_in_its_own_job_and_is_no_interruption() -> None:
    region, job, inside = InterruptRegion(), Timed(), threading.Event()
    outcome: list[str] = []
    thread = in_thread(lambda: outcome.extend(run_inside(region, job, inside)))
    assert inside.wait(10)
    region.expire(Timed())  # of a job that was here before
    assert thread.is_alive()
    region.expire(job)
    thread.join(20)
    assert outcome == ["TimeLimit", "left"]
    assert job.raised


def test_a_time_limit_reaches_no_later_job() -> None:
    region, job = InterruptRegion(), Timed()
    region.enter(job)
    assert leave(region) is False
    region.expire(job)
    region.enter(Timed())
    region.expire(job)
    spin_until(lambda: True)
    assert leave(region) is False
    assert not job.raised


def test_the_stop_wins_over_a_time_limit() -> None:
    """A job that was interrupted gets no TimeLimit. One that swallowed it is still interrupted."""
    region, job, inside = InterruptRegion(), Timed(), threading.Event()
    outcome: list[str] = []
    thread = in_thread(lambda: outcome.extend(run_inside(region, job, inside)))
    assert inside.wait(10)
    region.interrupt()
    region.expire(job)
    thread.join(20)
    assert (outcome, job.raised) == (["Shutdown", "interrupted"], False)


def test_a_job_that_swallowed_its_time_limit_is_interrupted_by_the_stop() -> None:
    region, job, inside = InterruptRegion(), Timed(), threading.Event()
    swallowed, outcome = threading.Event(), []

    def run() -> None:
        try:
            region.enter(job)
            try:
                inside.set()
                spin_until(lambda: False)
            except TimeLimit:
                swallowed.set()
            spin_until(lambda: False)
        except Shutdown:
            outcome.append("Shutdown")
        outcome.append("interrupted" if leave(region) else "left")

    thread = in_thread(run)
    assert inside.wait(10)
    region.expire(job)
    assert swallowed.wait(10)
    assert region.interrupt() is True
    thread.join(20)
    assert outcome == ["Shutdown", "interrupted"]


@MANY_RACES
def test_in_many_races_no_time_limit_leaks_out_of_its_job(races: int) -> None:
    """Each round is a job of its own; another thread limits it at any bytecode."""
    region, stop = InterruptRegion(), threading.Event()
    current: list[Timed] = [Timed()]
    problems: list[str] = []
    hits = [0]

    def round_trip(job: Timed) -> None:
        struck = False
        try:
            region.enter(job)
            for _ in range(100):
                pass
        except TimeLimit:
            struck = True
        try:
            region.leave()
        except TimeLimit:
            region.leave()
        for _ in range(20):  # the processor's own code
            pass
        hits[0] += struck
        if struck and not job.raised:
            problems.append("struck by another job's limit")

    def run() -> None:
        try:
            while not stop.is_set():
                current[0] = Timed()
                round_trip(current[0])
        except TimeLimit:
            problems.append("leaked")

    thread = in_thread(run)
    end = time.monotonic() + PATIENCE
    while hits[0] < races and thread.is_alive() and time.monotonic() < end:
        region.expire(current[0])
    stop.set()
    thread.join(20)
    assert problems == []
    assert not thread.is_alive()
    assert hits[0] >= races / 10


AFTER_AN_INTERRUPTION = """
import sys
from forkq.child.interrupt import InterruptRegion
from forkq.errors import Shutdown

region = InterruptRegion()
try:
    region.enter()
    region.interrupt()  # by the thread itself, so that it is raised at once
except Shutdown:
    pass
region.leave()
sys.settrace(lambda *_: None)

def traced():
    return "traced"

print(traced())
"""


def test_a_debugger_works_in_a_process_that_has_interrupted_a_job() -> None:
    """Python 3.11 would look for one more exception before it begins a function that is traced,
    again and again."""
    command = [sys.executable, "-c", AFTER_AN_INTERRUPTION]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.stdout == b"traced\n", done.stderr.decode()
