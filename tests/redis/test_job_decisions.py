"""A job says what becomes of it: Snooze, Discard, Dead; nothing else of it changes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest
from redis import Redis

import forkq
from forkq import middleware, registry
from forkq.errors import ForkqError, JobDecision, decision_in
from forkq.wire.payload import dumps
from forkq.wire.times import now
from tests.redis.in_process_child import InProcessChild
from tests.support.server import Server
from tests.support.waiting import wait_until

QUEUE, INFLIGHT, ENDS = "queue:default", "{queue:default}:inflight", "forkq:totals:ends"
handled: list[str] = []


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(registry, "death_handlers", [lambda job, error: handled.append("death")])
    monkeypatch.setattr(registry, "error_handlers", [lambda error, more: handled.append("error")])
    monkeypatch.setattr(middleware, "server", middleware.Chain())
    handled.clear()


def run(
    redis: Redis, server: Server, perform: Callable[[], None], **keys: Any
) -> tuple[InProcessChild, dict[str, Any]]:
    """Runs one job to its end. Returns the child, and the payload that it was."""
    forkq.job(name="Says")(perform)
    job = {"class": "Says", "args": [], "jid": "m1", "queue": "default", **keys}
    redis.lpush(QUEUE, dumps(job))
    with InProcessChild(server.url) as child:
        wait_until(lambda: not redis.exists(QUEUE, INFLIGHT), what="the end")
    return child, job


def scheduled(redis: Redis, key: str = "schedule") -> tuple[dict[str, Any], float]:
    found: Any = redis.zrange(key, 0, -1, withscores=True)
    [(member, score)] = found
    return json.loads(member), score


def raises(error: BaseException) -> Callable[[], None]:
    def perform() -> None:
        raise error

    return perform


@pytest.mark.parametrize("after", [30, 30.5, timedelta(seconds=30)])
def test_a_snooze_is_later_and_no_failure(redis: Redis, redis_server: Server, after: Any) -> None:
    failed = {"retry_count": 2, "error_message": "x", "failed_at": 1795216066.5}
    before = now()
    child, job = run(redis, redis_server, raises(forkq.Snooze(after)), **failed, custom=[1])
    found, at = scheduled(redis)
    assert 30 <= at - before < 60
    marks = found.pop("forkq")
    assert found == job
    assert marks["snoozed"]["count"] == 1
    assert before <= marks["snoozed"]["since"] <= now()
    assert handled == []
    assert redis.hgetall(ENDS) == {b"Says|snoozed": b"1"}
    totals = child.manager.tally({}, {})
    assert (totals.processed, totals.failed) == (0, 0)
    [line] = [more for _, event, more in child.log.lines if event == "snoozed"]
    assert (line["jid"], line["class"]) == ("m1", "Says")


def test_a_snooze_costs_the_token_of_its_run(redis: Redis, redis_server: Server) -> None:
    redis.set("{queue:default}:bucket", "0.000000000 1")
    run(redis, redis_server, raises(forkq.Snooze(5)))
    assert redis.get("{queue:default}:bucket") == b"0.000000000 1"


def test_a_day_of_nothing_but_snoozes_is_a_failure(redis: Redis, redis_server: Server) -> None:
    row = {"since": now() - 24 * 3600 - 1, "count": 41}
    run(redis, redis_server, raises(forkq.Snooze(30)), forkq={"snoozed": row})
    found, _ = scheduled(redis, "retry")
    assert found["error_class"] == "forkq.errors.SnoozedTooLong"
    assert "42 times" in found["error_message"]
    assert "forkq" not in found  # a new row begins
    assert handled == ["error"]


def test_a_row_of_snoozes_counts_and_a_failure_ends_it(redis: Redis, redis_server: Server) -> None:
    row = {"since": now() - 3600, "count": 7}
    run(redis, redis_server, raises(forkq.Snooze(30)), forkq={"snoozed": row})
    found, _ = scheduled(redis)
    assert found["forkq"]["snoozed"] == {"since": row["since"], "count": 8}
    redis.delete("schedule")
    run(redis, redis_server, raises(ValueError("x")), forkq={"snoozed": row})
    found, _ = scheduled(redis, "retry")
    assert "forkq" not in found


@pytest.mark.parametrize("odd", [7, [], {"since": "x", "count": 1}, {"since": 1}])
def test_an_odd_note_of_snoozes_is_replaced(redis: Redis, redis_server: Server, odd: Any) -> None:
    run(redis, redis_server, raises(forkq.Snooze(30)), forkq={"snoozed": odd})
    found, _ = scheduled(redis)
    assert found["forkq"]["snoozed"]["count"] == 1


def test_a_snooze_beyond_the_expiry_ends_the_job(redis: Redis, redis_server: Server) -> None:
    marks = {"v": 1, "needs": {"expires_at": now() + 20}}
    child, _ = run(redis, redis_server, raises(forkq.Snooze(30)), forkq=marks)
    assert not redis.exists("schedule", "retry", "dead")
    assert redis.hgetall(ENDS) == {b"Says|expired": b"1"}
    [line] = [more for _, event, more in child.log.lines if event == "expired"]
    assert line["reason"] == "a snooze of 30 s would end beyond its expiry"


def test_a_discard_ends_it_and_calls_no_handler(redis: Redis, redis_server: Server) -> None:
    child, _ = run(redis, redis_server, raises(forkq.Discard("withdrawn")))
    assert not redis.exists("schedule", "retry", "dead")
    assert handled == []
    assert redis.hgetall(ENDS) == {b"Says|discarded": b"1"}
    [line] = [more for _, event, more in child.log.lines if event == "discarded"]
    assert line["reason"] == "withdrawn"


def test_dead_is_dead_at_once(redis: Redis, redis_server: Server) -> None:
    child, _ = run(redis, redis_server, raises(forkq.Dead("no PDF")), retry=25)
    found, _ = scheduled(redis, "dead")
    assert (found["error_class"], found["error_message"]) == ("forkq.errors.Dead", "no PDF")
    assert found["retry_count"] == 0  # it has failed once
    assert handled == ["error", "death"]
    assert child.manager.tally({}, {}).failed == 1
    redis.delete("dead")
    run(redis, redis_server, raises(forkq.Dead()), dead=False)
    assert not redis.exists("schedule", "retry", "dead")


def test_a_broad_except_does_not_swallow_it_and_finally_runs(
    redis: Redis, redis_server: Server
) -> None:
    ran = []

    def perform() -> None:
        try:
            raise forkq.Discard
        except Exception:  # noqa: BLE001 - what apps write
            ran.append("swallowed")
        finally:
            ran.append("finally")

    run(redis, redis_server, perform)
    assert ran == ["finally"]


@pytest.mark.parametrize("bad", [0, -1, True, "5", float("nan"), float("inf"), 1e10])
def test_a_snooze_of_no_time_is_a_failure_that_says_so(
    redis: Redis, redis_server: Server, bad: Any
) -> None:
    def perform() -> None:
        raise forkq.Snooze(bad)

    run(redis, redis_server, perform)
    found, _ = scheduled(redis, "retry")
    assert "pass a number of seconds above 0" in found["error_message"]


def test_a_snooze_without_a_time_says_what_to_write(redis: Redis, redis_server: Server) -> None:
    def perform() -> None:
        raise forkq.Snooze

    run(redis, redis_server, perform)
    found, _ = scheduled(redis, "retry")
    assert found["error_class"].endswith("ValueError")
    assert "write raise forkq.Snooze(30)" in found["error_message"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no groups of exceptions")
def test_a_group_of_nothing_else_is_the_one_that_ends_more() -> None:
    group: Any = vars(__import__("builtins"))["BaseExceptionGroup"]
    snooze, discard, dead = forkq.Snooze(1), forkq.Discard(), forkq.Dead()
    assert decision_in(group("g", [snooze])) is snooze
    assert decision_in(group("g", [snooze, group("h", [discard, snooze])])) is discard
    assert decision_in(group("g", [snooze, dead, discard])) is dead
    assert decision_in(group("g", [snooze, ValueError()])) is None
    assert decision_in(ValueError()) is None


def test_a_large_job_that_snoozes_has_its_queue_where_the_clock_looks(
    redis: Redis, redis_server: Server
) -> None:
    def perform(text: str) -> None:
        raise forkq.Snooze(60)

    forkq.job(name="Says")(perform)
    redis.lpush(QUEUE, dumps({"args": ["x" * 300_000], "class": "Says", "jid": "m1"}))
    with InProcessChild(redis_server.url):
        wait_until(lambda: not redis.exists(QUEUE, INFLIGHT), what="the end")
    [member] = cast("list[bytes]", redis.zrange("schedule", 0, -1))
    assert member.index(b'"queue":"default"') < member.index(b'"args"')


class _Unpayable(forkq.Dead):
    """What an app makes of it."""


class _SeveralFailures(Exception):
    """What other libraries raise: ``exceptions`` is theirs."""

    def __init__(self, exceptions: Any) -> None:
        super().__init__("several")
        self.exceptions = exceptions


def test_a_class_that_an_app_derives_from_it_is_the_same_decision(
    redis: Redis, redis_server: Server
) -> None:
    run(redis, redis_server, raises(_Unpayable("no account")), retry=25)
    found, _ = scheduled(redis, "dead")
    assert found["error_message"] == "no account"
    assert handled == ["error", "death"]


@pytest.mark.parametrize("exceptions", [None, 3, ["a text"], {"jid": "a text"}])
def test_an_attribute_of_that_name_makes_no_group_of_an_error(
    redis: Redis, redis_server: Server, exceptions: Any
) -> None:
    run(redis, redis_server, raises(_SeveralFailures(exceptions)), retry=25)
    found, _ = scheduled(redis, "retry")
    assert found["error_message"] == "several"


def test_an_integration_refuses_it_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobDecision, "refusal", staticmethod(lambda: "a transaction is open"))
    for make in (lambda: forkq.Snooze(1), forkq.Discard, forkq.Dead):
        with pytest.raises(ForkqError, match="cannot be raised here: a transaction is open"):
            make()


def test_a_periodic_job_notes_it(redis: Redis, redis_server: Server) -> None:
    from forkq.child.cron.outcome import CronOutcomes  # noqa: PLC0415
    from forkq.store.pool import RedisPool  # noqa: PLC0415
    from forkq.wire.keys import Keys  # noqa: PLC0415
    from tests.support.recorded_log import RecordedLog  # noqa: PLC0415

    pool = RedisPool(redis_server.url, size=1, timeout=5, connect_timeout=2)
    forkq.job(name="Says")(raises(forkq.Discard()))
    redis.lpush(QUEUE, dumps({"class": "Says", "args": [], "jid": "m1", "forkq": {"cron": "c"}}))
    with InProcessChild(redis_server.url, observers=[CronOutcomes(Keys(), pool, RecordedLog())]):
        wait_until(lambda: redis.exists("forkq:cron:runs:c"), what="a line")
    [line] = redis.lrange("forkq:cron:runs:c", 0, -1)
    assert json.loads(line)["event"] == "discarded"
    pool.close()


def test_the_modes_of_tests_obey(monkeypatch: pytest.MonkeyPatch) -> None:
    import forkq.testing  # noqa: PLC0415

    ran: list[int] = []

    @forkq.job(name="Says")
    def says(word: str) -> None:
        ran.append(len(ran))
        if word == "snooze" and len(ran) == 1:
            raise forkq.Snooze(3600)
        if word == "discard":
            raise forkq.Discard

    with forkq.testing.fake() as jobs:
        says.perform_async("discard")
        forkq.testing.drain()
        assert len(ran) == 1
        ran.clear()
        says.perform_async("snooze")
        jobs.perform_one()
        assert [(job.retrying, job.delay > 3500) for job in jobs] == [(False, True)]
        forkq.testing.drain()
        assert ran == [0, 1]
    with forkq.testing.inline():
        says.perform_async("discard")
