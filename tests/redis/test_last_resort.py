"""Failures that cannot be logged or recorded, and exceptions that are raised outside of a job: each
job is settled all the same, and the child goes on."""

from __future__ import annotations

import ctypes
import operator
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from redis import Redis

import forkq
from forkq import middleware, registry
from forkq.child import job_way, processor
from forkq.child.fetch.plan import FetchPace
from forkq.child.fetch_turn import FetchTurn, Hand
from forkq.child.heartbeat.stats import Tally
from forkq.child.processor import Processor
from forkq.runtime import log
from forkq.wire.lease import UnitOfWork
from tests.redis.in_process_child import InProcessChild, is_waiting
from tests.redis.test_processor import (
    INFLIGHT,
    LIST,
    clean,  # noqa: F401 - the fixture
    entries,
    good,
    payload,
    settled,
)
from tests.support.server import Server
from tests.support.waiting import wait_until

raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)


class Stray(Exception):
    """What a time-out library raises in another thread, a moment too late."""


class NotesThatRaise(Exception):
    @property
    def __notes__(self) -> NoReturn:
        raise RuntimeError


class NoText(Exception):
    def __str__(self) -> NoReturn:
        raise SystemExit

    __repr__ = __str__


class NoTextButShutdown(Exception):
    """Shutdown means a stop only while the child stops."""

    def __str__(self) -> NoReturn:
        raise forkq.Shutdown

    __repr__ = __str__


class Meta(type):
    @property
    def __module__(cls) -> NoReturn:  # type: ignore[override]
        raise RuntimeError


class NoModule(Exception, metaclass=Meta):
    """One of which not even the class can be named."""


def _syntax_error() -> NoReturn:
    raise SyntaxError("x", ("f", 1, 1, b"\xff"))  # type: ignore[arg-type]


def _in_a_file_that_is_not_utf8() -> None:
    exec(compile("1/0", "job-\udcff\x1b[2J.py", "exec"))  # noqa: S102 - any name a file can have


def _raising(error: type[BaseException]) -> Callable[[], None]:
    def fail() -> None:
        raise error("x")

    return fail


HOSTILE = [
    _syntax_error,
    _in_a_file_that_is_not_utf8,
    _raising(NotesThatRaise),
    _raising(NoText),
    _raising(NoTextButShutdown),
    _raising(NoModule),
]


@pytest.mark.parametrize("fail", HOSTILE)
@pytest.mark.parametrize(("retry", "target"), [(True, "retry"), (0, "dead")])
def test_a_failure_that_cannot_be_logged_is_settled_after_one_run(
    redis: Redis, redis_server: Server, fail: Callable[[], None], retry: Any, target: str
) -> None:
    runs: list[int] = []

    @forkq.job(name="Hostile")
    def hostile() -> None:
        runs.append(1)
        fail()

    ran = good()
    with InProcessChild(redis_server.url, concurrency=1) as child:
        child.job_log._log = log.logger()
        redis.lpush(LIST, payload("Hostile", retry=retry, backtrace=True), payload())
        settled(redis)
        wait_until(lambda: child.manager.counts() == (2, 1), what="the counts")
        assert child.processors[0].alive
    assert (runs, ran) == ([1], [[]])
    [found] = entries(redis, target)
    assert found["retry_count"] == 0
    assert found["error_class"]


@pytest.mark.parametrize("key", ["class", "jid", "queue", "args", "retry", "everything"])
@pytest.mark.parametrize("change", ["removes", "changes"])
@pytest.mark.parametrize("fails", [False, True])
def test_middleware_may_change_a_job_in_any_way(
    redis: Redis, redis_server: Server, key: str, change: str, fails: bool
) -> None:
    @forkq.job(name="Changed")
    def job() -> None:
        if fails:
            raise ValueError("boom")

    @middleware.server.append
    def meddle(job: dict[str, Any], call: Callable[[], None]) -> None:
        call()
        keys = list(job) if key == "everything" else [key]
        for one in keys:
            job[one] = {"rubbish": {1}}
            if change == "removes":
                del job[one]

    with InProcessChild(redis_server.url, concurrency=1) as child:
        redis.lpush(LIST, payload("Changed", forkq={"cron": "n"}))
        settled(redis)
        wait_until(lambda: child.manager.counts() == (1, int(fails)), what="the counts")
        event = "failed" if fails else "done"
        wait_until(lambda: event in child.log.events(), what="its line")
        assert child.processors[0].alive
    [line] = [values for _, logged, values in child.log.lines if logged == event]
    assert (line["class"], line["jid"]) == ("Changed", "m1")
    assert [found["jid"] for found in entries(redis, "retry")] == ["m1"] * fails


@pytest.mark.parametrize("where", ["loads", "JobRun.loaded", "decide", "caused_by_shutdown"])
def test_an_error_in_forkq_costs_the_job_a_retry_and_no_processor(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """At each step of a job's way."""
    runs: list[int] = []

    @forkq.job(name="Bad")
    def bad() -> None:
        runs.append(1)
        raise ValueError("boom")

    path = f"forkq.child.job_way.{where}"
    original = operator.attrgetter(where)(job_way)
    calls: list[int] = []

    def break_off(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise Stray("ours")
        return original(*args)

    monkeypatch.setattr(job_way, "stopping", lambda: True)
    monkeypatch.setattr(processor, "stopping", lambda: True)
    monkeypatch.setattr(path, break_off)
    with InProcessChild(redis_server.url, concurrency=1) as child:
        redis.lpush(LIST, payload("Bad"))
        settled(redis)
        assert child.processors[0].alive
    [found] = entries(redis, "retry")
    assert found["retry_count"] == 0
    assert found["error_class"] == "forkq.errors.Unsettled"
    assert len(runs) <= 1
    assert "forkq failed while it processed a job" in child.log.events()


def test_a_failure_is_settled_before_the_error_handlers_run(
    redis: Redis, redis_server: Server
) -> None:
    """An error handler that hangs holds no lease, and sees the job in its new place."""
    seen: list[bool] = []

    @forkq.job(name="Bad")
    def bad() -> None:
        raise ValueError("boom")

    @registry.error_handlers.append
    def look(error: BaseException, context: dict[str, Any]) -> None:
        seen.append(bool(redis.exists("retry")) and not redis.exists(INFLIGHT))

    with InProcessChild(redis_server.url, concurrency=1):
        redis.lpush(LIST, payload("Bad", retry="rubbish"), b"{nope")
        settled(redis)
        wait_until(lambda: len(seen) == 3, what="the handlers")
    assert seen[:2] == [True, True]


def test_exceptions_that_strike_while_processors_wait_stop_no_child(
    redis: Redis, redis_server: Server
) -> None:
    """The processor that has the turn and those that wait for it, again and again: the dead are
    replaced, and a job that is pushed then runs."""
    ran = good()
    with InProcessChild(redis_server.url, concurrency=4) as child:
        for round_ in range(10):
            wait_until(lambda: is_waiting(child.fetcher), what="a leader that waits")
            for processor in child.manager._processors:
                raise_in(processor._thread.ident or 0, Stray)
            redis.lpush(LIST, payload("Good", round_))

            def done(expected: int = round_) -> bool:
                child.manager.replace_the_dead()
                return [expected] in ran

            wait_until(done, what=f"the job of round {round_}")
            settled(redis)


def test_the_turn_is_never_lost_whenever_an_exception_strikes() -> None:
    """Threads take, leave and renew the turn as fast as they can; any bytecode may be struck."""
    unused: Any = None
    pace = FetchPace(4, time.monotonic())
    turn, over, rounds = FetchTurn(unused, unused, pace, unused), threading.Event(), [0]
    hands: list[Hand] = []
    in_use: dict[int, Hand] = {}

    def follow() -> None:
        hand = Hand()
        hands.append(hand)
        in_use[threading.get_ident()] = hand
        while not over.is_set():
            try:
                if not turn.resume(hand):
                    turn.wait(hand)
                rounds[0] += 1
                pace.performed(0)
                turn.leave(hand, performs=True)
                if hand.reserved:
                    turn.renew(hand, time.monotonic())
            except Stray:
                turn.drop_locks(hand)

    def survive() -> None:
        while not over.is_set():
            try:
                follow()
            except Stray:  # struck in the handler itself: its hand is dead
                continue

    threads = [threading.Thread(target=survive, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 1.5
    strikes = 0
    while time.monotonic() < end:
        raise_in(threads[strikes % 4].ident or 0, Stray)
        strikes += 1
        time.sleep(0.001)
    before = rounds[0]

    def goes_on() -> bool:
        for hand in set(hands).difference(in_use.values()):
            turn.release(hand)  # as the manager does with the hands of the dead
        return rounds[0] > before + 100

    wait_until(goes_on, what="the turn to go round")
    over.set()
    turn._free.put(True)
    for thread in threads:
        thread.join(10)


def test_when_several_processors_die_no_job_runs_twice_at_once(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All the dead are abandoned before the first replacement can fetch. A unit is known by the
    processor that took it: a thread's ident is given out again at once."""
    lock, running, together = threading.Lock(), [0], [0]

    @forkq.job(name="Good")
    def job() -> None:
        with lock:
            running[0] += 1
            together[0] = max(together[0], running[0])
        time.sleep(0.02)
        with lock:
            running[0] -= 1

    deaths: list[int] = []
    process = Processor.process

    def die(self: Processor, unit: UnitOfWork) -> None:
        unit.start(threading.get_ident(), 1.0)
        if len(deaths) < 4:
            deaths.append(1)
            raise SystemExit
        process(self, unit)

    monkeypatch.setattr(Processor, "process", die)
    order: list[str] = []
    with InProcessChild(redis_server.url, concurrency=4) as child:
        abandon, make_processor = child.fetch.turn.abandon, child.manager._make_processor

        def note_abandon(hand: Hand) -> None:
            order.append("abandon")
            abandon(hand)

        def note_make(name: str, tally: Tally) -> Processor:
            order.append("make")
            return make_processor(name, tally)

        monkeypatch.setattr(child.fetch.turn, "abandon", note_abandon)
        monkeypatch.setattr(child.manager, "_make_processor", note_make)
        redis.lpush(LIST, *[payload("Good", jid=str(n)) for n in range(4)])
        wait_until(
            lambda: all(p.has_died for p in child.manager._processors), what="the end of all four"
        )
        child.manager.replace_the_dead()
        settled(redis)
        wait_until(lambda: child.manager.counts() == (4, 0), what="the counts")
    assert order == ["abandon"] * 4 + ["make"] * 4
    assert together[0] <= 4
