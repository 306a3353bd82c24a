"""Time limits in real processors: TimeLimit is an ordinary failure, and hits no other job."""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import middleware, registry
from forkq.runtime import shared_files
from forkq.runtime.deadlines import DeadlineTable, next_deadline, overdue
from forkq.store.connection import RedisConnection
from forkq.store.dead_set import DeadSetLimits
from forkq.store.recovery import Recovery
from forkq.store.steps import carry_out
from forkq.wire.keys import Keys
from forkq.wire.payload import dumps
from forkq.wire.printable import traceback_of
from tests.process.shared import payloads
from tests.redis.in_process_child import IDENTITY, InProcessChild
from tests.support.server import Server
from tests.support.waiting import wait_until, within

LIST, INFLIGHT = "queue:default", "{queue:default}:inflight"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry and a middleware chain of this test's own."""
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(registry, "with_time_limit", set())
    monkeypatch.setattr(registry, "death_handlers", [])
    monkeypatch.setattr(middleware, "server", middleware.Chain())


def push(redis: Redis, name: str, *args: Any, **keys: Any) -> None:
    """With its class's ``retry``, as each client does. The payload alone counts for a limit that
    strikes before the job's own code runs; without it such a job would be retried."""
    known = registry.find(name)
    retry = known.options.get("retry", True) if known else True
    job = {"class": name, "args": list(args), "jid": name.lower(), "retry": retry, **keys}
    redis.lpush(LIST, dumps(job))


def keep_time(child: InProcessChild, until: Callable[[], object], what: str) -> None:
    """Does what the child's main thread does, until something is true."""

    def look() -> object:
        child.limits.enforce()
        return until()

    wait_until(look, what=what, every=0.005)


def settle(child: InProcessChild, redis: Redis) -> None:
    keep_time(child, lambda: not redis.exists(LIST, INFLIGHT), "everything to be settled")


def lines(child: InProcessChild, event: str) -> list[dict[str, Any]]:
    """The values of the log's lines that report ``event``."""
    return [values for _, found, values in child.log.lines if found == event]


def wait_counts(child: InProcessChild, counts: tuple[int, int]) -> None:
    """Until so many jobs were processed, and so many of them failed: all was told of them."""
    wait_until(lambda: child.manager.counts() == counts, what=f"{counts} processed and failed")


def spin() -> None:
    while True:
        pass


@pytest.fixture
def child(redis: Redis, redis_server: Server) -> Iterator[InProcessChild]:
    with InProcessChild(redis_server.url) as child:
        yield child


def test_a_job_over_its_limit_fails_by_its_own_rules(redis: Redis, child: InProcessChild) -> None:
    seen = []

    def retry_in(count: int, error: BaseException, job: dict[str, Any]) -> float:
        seen.append((count, type(error)))
        return 1000.0

    forkq.job(name="Spin", timeout=0.2, retry_in=retry_in)(spin)
    began = time.monotonic()
    push(redis, "Spin")  # as a Ruby client does it: without the options of the definition
    settle(child, redis)
    assert time.monotonic() - began < within(5)
    (job,) = payloads(redis, "retry")
    assert job["error_class"] == "forkq.errors.TimeLimit"
    assert job["error_message"] == "the job has run for its timeout of 0.2 s"
    assert seen == [(0, forkq.TimeLimit)]
    wait_counts(child, (1, 1))
    (line,) = wait_until(lambda: lines(child, "failed"), what="the line")
    assert (line["class"], line["jid"]) == ("Spin", "spin")


@pytest.mark.parametrize(
    ("timeout", "told"), [(60, "at last"), (0.2, "(its message cannot be read: TimeLimit)")]
)
def test_an_error_is_asked_for_its_text_once_and_within_the_limit(
    redis: Redis, child: InProcessChild, timeout: float, told: str
) -> None:
    """Its text is code of the app: it may ask a database. The error stays what it was."""
    asked = []

    class Slow(Exception):
        def __str__(self) -> str:
            asked.append(self)
            while timeout < 1 and self.__cause__ is not None:
                time.sleep(0.01)
            return "at last"

    @forkq.job(name="Slowly", timeout=timeout)
    def slowly() -> None:
        raise Slow from ValueError(Slow())

    push(redis, "Slowly")
    settle(child, redis)
    (job,) = payloads(redis, "retry")
    assert (job["error_class"].rpartition(".")[2], job["error_message"]) == ("Slow", told)
    (line,) = wait_until(lambda: lines(child, "failed"), what="the line")
    assert line["error"] == told
    own = [error for error in asked if error.__cause__ is not None]
    assert len(own) == 1
    if timeout > 1:
        assert len(asked) == 2  # and the cause, for the traceback
        shown = traceback_of(line["exc_info"])
        assert shown.endswith("Slow: at last")
        assert "The above exception was the direct cause" in shown
        assert "ValueError: at last" in shown
        assert len(asked) == 2


def test_the_payload_says_more_than_the_definition_and_that_more_than_the_capsule(
    redis: Redis, child: InProcessChild
) -> None:
    ran: list[str] = []

    @forkq.job(name="Short", timeout=0.05)
    def short() -> None:
        if ran:
            spin()  # the second run ends by its limit alone
        time.sleep(0.2)
        ran.append("Short")

    push(redis, "Short", timeout=0)  # 0 is no limit
    settle(child, redis)
    assert ran == ["Short"]
    assert not payloads(redis, "retry")
    push(redis, "Short", timeout="soon")  # no number: the definition counts
    settle(child, redis)
    assert [job["jid"] for job in payloads(redis, "retry")] == ["short"]
    event = "`timeout` is no time limit; that of the definition counts"
    (line,) = wait_until(lambda: lines(child, event), what="the line")
    assert str(line["exc_info"]) == "timeout is 'soon'"


def test_the_limit_of_the_capsule_is_for_jobs_that_set_none(
    redis: Redis, redis_server: Server
) -> None:
    forkq.job(name="Spin")(spin)
    with InProcessChild(redis_server.url, job_timeout=0.05) as child:
        push(redis, "Spin")
        settle(child, redis)
    (job,) = payloads(redis, "retry")
    assert job["error_class"] == "forkq.errors.TimeLimit"


def test_a_job_may_catch_it_and_fail_in_its_own_words(redis: Redis, child: InProcessChild) -> None:
    inside: list[int] = []
    cleaned = []

    @forkq.job(name="Careful", timeout=0.05)
    def careful() -> None:
        try:
            try:
                inside.append(1)
                spin()
            except Exception:  # noqa: BLE001 - it must not be enough
                cleaned.append("except Exception")
            finally:
                cleaned.append("finally")
        except forkq.TimeLimit as limit:
            raise ValueError("half done") from limit

    push(redis, "Careful")
    wait_until(lambda: inside, what="the job to be where it may catch it")
    settle(child, redis)
    (job,) = payloads(redis, "retry")
    assert (job["error_class"], job["error_message"]) == ("ValueError", "half done")
    assert cleaned == ["finally"]


def test_a_job_that_swallows_it_is_done_and_logged_once(
    redis: Redis, child: InProcessChild
) -> None:
    inside: list[int] = []

    @forkq.job(name="Stubborn", timeout=0.05)
    def stubborn() -> None:
        with contextlib.suppress(BaseException):
            inside.append(1)
            spin()

    push(redis, "Stubborn")
    wait_until(lambda: inside, what="the job to be where it swallows it")
    settle(child, redis)
    wait_counts(child, (1, 0))
    event = "a job swallowed its TimeLimit, or ended before it was delivered"
    (line,) = wait_until(lambda: lines(child, event), what="the line")
    assert (line["class"], line["timeout"]) == ("Stubborn", 0.05)
    assert not lines(child, "interrupted by the stop; goes back to the head of its queue")


def test_one_that_goes_on_is_logged_with_its_stack_while_it_runs(
    redis: Redis, child: InProcessChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkq.child.time_limits._CLEANUP", 0.1)
    inside: list[int] = []
    over: list[int] = []

    @forkq.job(name="Deaf", timeout=0.05)
    def deaf() -> None:
        while not over:
            with contextlib.suppress(BaseException):
                inside.append(1)
                time.sleep(0.005)

    push(redis, "Deaf")
    wait_until(lambda: inside, what="the job to be where it swallows it")
    event = "a job goes on after its TimeLimit: it swallowed it, or is in a call that blocks"
    keep_time(child, lambda: lines(child, event), "the line")
    over.append(1)
    settle(child, redis)
    (line,) = lines(child, event)
    assert "in deaf" in line["stack"]
    assert not lines(child, "a job swallowed its TimeLimit, or ended before it was delivered")


def test_the_stop_wins_over_the_limit(
    redis: Redis, child: InProcessChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkq.child.job_way.stopping", lambda: True)
    forkq.job(name="Spin", timeout=0.2)(spin)
    push(redis, "Spin")
    wait_until(lambda: child.manager.busy, what="the job to run")
    child.manager.quiet()
    child.manager.interrupt()
    keep_time(child, lambda: child.manager.idle, "the job to end")
    wait_counts(child, (0, 0))
    assert redis.hlen(INFLIGHT) == 1  # until the stop returns it: the line speaks of what comes
    [line] = lines(child, "interrupted by the stop; goes back to the head of its queue")
    assert line["class"] == "Spin"
    assert not payloads(redis, "retry")


def test_the_limit_ends_one_job_and_no_later_one(redis: Redis, child: InProcessChild) -> None:
    """Thousands of short jobs with a limit that strikes at any bytecode of some of them."""
    done = []

    @forkq.job(name="Brief", timeout=0.0008, retry=0)
    def brief() -> None:
        for _ in range(1500):
            pass
        done.append(1)

    forkq.job(name="Plain")(lambda: done.append(2))
    for number in range(1500):
        push(redis, "Brief", jid=f"b{number}")
        push(redis, "Plain", jid=f"p{number}")
    settle(child, redis)
    assert done.count(2) == 1500  # none was hit by the limit of the job before
    dead = redis.zcard("dead")
    assert {job["error_class"] for job in payloads(redis, "dead")} <= {"forkq.errors.TimeLimit"}
    assert payloads(redis, "retry") == []
    assert done.count(1) >= 1500 - dead
    wait_counts(child, (3000, dead))
    assert not lines(child, "a processor died; replaced")


def register(**options: Any) -> None:
    forkq.job(name="Spin", **options)(spin)


def test_a_limit_that_cannot_be_is_refused_with_the_jobs_name() -> None:
    for bad in (-1, "30", True, float("nan"), float("inf"), 2e9):
        for key in ("timeout", "hard_timeout"):
            with pytest.raises(forkq.InvalidJob, match=rf"job '.*spin': `{key}` is .*; pass a num"):
                register(**{key: bad})
    with pytest.raises(forkq.InvalidJob, match=r"job 'spin': `hard_timeout` is 20.0; pass 0"):
        forkq.job(timeout=30, hard_timeout=20)(spin)
    job = forkq.job(name="Spin", timeout=30, hard_timeout=60)(spin)
    with pytest.raises(forkq.InvalidJob, match=r"job 'Spin': `hard_timeout` is 60.0"):
        job.set(timeout=90)

    class Base(forkq.Job, timeout=30):
        pass

    with pytest.raises(forkq.InvalidJob, match=r"job 'Late': `hard_timeout` is 20.0"):
        type("Late", (Base,), {"perform": lambda self: None}, hard_timeout=20)
    assert not isinstance(forkq.TimeLimit(), Exception)


FAILED = {"class": "forkq.errors.TimeLimit", "message": "the job went on"}


def test_a_job_that_failed_in_another_process_is_settled_by_its_own_rules_and_not_run(
    redis: Redis, child: InProcessChild
) -> None:
    ran: list[str] = []
    told: list[Any] = []

    def exhausted(job: dict[str, Any], error: BaseException) -> None:
        told.append(("exhausted", type(error), str(error)))

    @forkq.job(name="Stuck", retry=1, retry_in=lambda *_: 500, retries_exhausted=exhausted)
    def stuck() -> None:
        ran.append("Stuck")

    forkq.on_death(lambda job, error: told.append(("death", job["jid"])))
    push(redis, "Stuck", retry=1, forkq={"failed": FAILED, "crashes": []})
    settle(child, redis)
    (job,) = payloads(redis, "retry")
    assert (job["error_class"], job["error_message"]) == tuple(FAILED.values())
    assert (job["retry_count"], job["forkq"]) == (0, {"crashes": []})
    entries: Any = redis.zrange("retry", 0, -1, withscores=True)
    ((_, at),) = entries
    assert at > time.time() + 400  # the default is about 15 s
    redis.lpush(LIST, dumps({**job, "forkq": {"failed": FAILED}}))
    settle(child, redis)
    (job,) = payloads(redis, "dead")
    assert "forkq" not in job
    wait_until(lambda: ("death", "stuck") in told, what="the death handler")  # after the burial
    assert told == [("exhausted", forkq.TimeLimit, "the job went on"), ("death", "stuck")]
    assert ran == []
    wait_counts(child, (2, 2))


@pytest.mark.parametrize("failed", [{}, {"class": 7}, {"class": "os.system", "message": ["x"]}])
def test_a_mark_that_names_another_error_settles_the_job_too(
    redis: Redis, child: InProcessChild, failed: Any
) -> None:
    """Only forkq's own errors are made of a name in a payload."""
    push(redis, "Nowhere", retry=0, forkq={"failed": failed})
    settle(child, redis)
    (job,) = payloads(redis, "dead")
    assert job["error_class"] == "forkq.errors.Unsettled"


def test_the_lease_of_an_overdue_job_is_marked_and_all_go_back_in_their_order(
    redis: Redis, redis_server: Server
) -> None:
    recovery, connection = Recovery(DeadSetLimits(Keys())), RedisConnection(redis_server.url)
    connection.connect()
    long = "x" * 100_000
    for number, args in ((7, []), (8, [long]), (9, [1])):
        job = {"class": "J", "args": args, "jid": f"j{number}", "forkq": {"crashes": [1]}}
        redis.hset(INFLIGHT, f"{IDENTITY}/{number}", dumps(job))
    redis.hset(INFLIGHT, "another:1:aa/8", b"untouched")
    error = {8: forkq.TimeLimit("too long"), 99: forkq.TimeLimit("gone")}
    try:
        for _ in range(2):  # as after a lost reply
            found = carry_out(
                connection, recovery.mark_failed(["default"], IDENTITY, error, {8: 2.5})
            )
            assert found == ["J j8"]
        carry_out(connection, recovery.requeue(["default"], IDENTITY))
    finally:
        connection.close()
    jobs = [json.loads(text) for text in redis.lrange(LIST, 0, -1)][::-1]
    assert [job["jid"] for job in jobs] == ["j7", "j8", "j9"]
    mark = {"class": "forkq.errors.TimeLimit", "message": "too long", "ran": 2.5}
    assert [job["forkq"].get("failed") for job in jobs] == [None, mark, None]
    assert jobs[1]["args"] == [long]
    assert jobs[1]["forkq"]["crashes"] == [1]
    assert redis.hgetall(INFLIGHT) == {b"another:1:aa/8": b"untouched"}


@pytest.fixture
def deadlines() -> Iterator[int]:
    """The file that the master shares with a child."""
    descriptor = shared_files.make("deadlines")
    yield descriptor
    os.close(descriptor)


def test_a_hard_limit_stands_in_the_shared_table_while_the_job_runs(
    redis: Redis, redis_server: Server, deadlines: int
) -> None:
    table = DeadlineTable(deadlines, 2)
    over: list[int] = []

    @forkq.job(name="Long", hard_timeout=0.2)
    def long() -> None:
        wait_until(lambda: over, what="the end")

    with InProcessChild(redis_server.url, table=table) as child:
        push(redis, "Long")
        keep_time(child, lambda: next_deadline(deadlines), "the deadline")
        assert overdue(deadlines, (next_deadline(deadlines) or 0.0) - 0.01) == []
        keep_time(
            child,
            lambda: [job for job in overdue(deadlines, time.monotonic()) if job.told],
            "the job to be overdue, and its stack in the log",
        )
        over.append(1)
        settle(child, redis)
        assert next_deadline(deadlines) is None
    event = "a job goes on beyond its hard_timeout"
    (line,) = lines(child, event)
    assert "in long" in line["stack"]
    assert (line.get("timeout"), line["hard_timeout"]) == (None, 0.2)


def test_a_default_hard_limit_is_no_shorter_than_a_jobs_own_limit(
    redis: Redis, redis_server: Server, deadlines: int
) -> None:
    table = DeadlineTable(deadlines, 2)
    over: list[int] = []
    forkq.job(name="Long", timeout=600)(lambda: wait_until(lambda: over, what="the end"))
    with InProcessChild(redis_server.url, table=table, job_hard_timeout=5) as child:
        began = time.monotonic()
        push(redis, "Long")
        assert (
            wait_until(lambda: next_deadline(deadlines) or 0.0, what="the deadline") > began + 600
        )
        over.append(1)
        settle(child, redis)


def test_a_limit_before_the_next_look_of_the_main_thread_ends_its_wait(
    redis: Redis, child: InProcessChild
) -> None:
    over: list[int] = []
    forkq.job(name="Long")(lambda: wait_until(lambda: over, what="the end"))
    assert child.limits.wait(60.0) == 60.0
    push(redis, "Long", timeout=600)  # the main thread looks before that anyway
    wait_until(lambda: child.manager.busy == 1, what="the first job to run")
    push(redis, "Long", timeout=20)
    assert select.select([child.limits.waker.fd], [], [], within(10))[0]
    child.limits.waker.clear()
    assert child.limits.wait(60.0) < 20.0
    over.append(1)
    settle(child, redis)
    assert child.limits.wait(60.0) == 60.0
    assert not select.select([child.limits.waker.fd], [], [], 0)[0]
