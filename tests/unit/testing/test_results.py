"""Results in a test without Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import forkq
import forkq.testing
from forkq import middleware, registry


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    monkeypatch.setattr(middleware, "pushes", middleware.Chain())


def job(perform: Callable[..., Any] | None = None, **options: Any) -> Any:
    made = {"name": f"Job{len(registry._jobs)}", "result_ttl": 60, "retry": 0, **options}
    return forkq.job(**made)(perform or (lambda value: value))


def fail(value: object) -> None:
    raise ValueError(f"no {value}")


def call(how: str, jid: str) -> Any:
    if how == "thread":
        return forkq.result(jid, 5)
    return asyncio.run(forkq.aresult(jid, 5))


HOW = pytest.mark.parametrize("how", ["thread", "loop"])


@HOW
def test_a_recorded_job_has_its_result_once_it_was_drained(how: str) -> None:
    with forkq.testing.fake():
        jid = job(lambda value: (value, "a")).perform_async(1)
        for _ in range(2):
            with pytest.raises(AssertionError, match=r"has not run yet.*drain"):
                call(how, jid)
        forkq.testing.drain()
        assert call(how, jid) == [1, "a"]
        with pytest.raises(forkq.ResultUnknown):
            call(how, "other")


@HOW
def test_a_job_that_runs_inline_has_its_result_at_once(how: str) -> None:
    async def coroutine(value: int) -> int:
        await asyncio.sleep(0)
        return value + 1

    with forkq.testing.inline():
        assert call(how, job().perform_async(7)) == 7
        assert call(how, job(coroutine).perform_async(7)) == 8
        jids = job().perform_bulk([[1], [2]])
        assert [call(how, jid) for jid in jids] == [1, 2]
        with pytest.raises(forkq.ResultUnknown):
            call(how, job(result_ttl=0).perform_async(7))


def discard(value: object) -> None:
    raise forkq.Discard("not today")


def bury(value: object) -> None:
    raise forkq.Dead("hopeless")


@HOW
@pytest.mark.parametrize(
    ("perform", "options", "outcome", "name", "message"),
    [
        (fail, {}, "dead", "ValueError", "no 1"),
        (fail, {"retry": False}, "dropped", "ValueError", "no 1"),
        (fail, {"dead": False}, "dropped", "ValueError", "no 1"),
        (discard, {}, "discarded", "forkq.errors.Discard", "not today"),
        (bury, {}, "dead", "forkq.errors.Dead", "hopeless"),
    ],
)
def test_a_job_that_has_ended_otherwise_says_so(
    perform: Any, options: Any, outcome: str, name: str, message: str, how: str
) -> None:
    with forkq.testing.fake():
        jid = job(perform, **options).perform_async(1)
        forkq.testing.drain(check=False)
        with pytest.raises(forkq.JobFailed) as caught:
            call(how, jid)
    error = caught.value
    assert (error.outcome, error.error_class, error.error_message) == (outcome, name, message)


def test_a_job_that_fails_inline_raises_at_the_push_and_has_its_result() -> None:
    with forkq.testing.inline():
        failing = job(fail).set({"jid": "f" * 24})
        with pytest.raises(ValueError, match="no 1"):
            failing.perform_async(1)
        with pytest.raises(forkq.JobFailed, match="ValueError: no 1"):
            forkq.result("f" * 24)


def test_a_retry_waits_for_its_second_run() -> None:
    runs: list[int] = []

    def flaky(value: int) -> int:
        runs.append(value)
        if len(runs) == 1:
            raise ValueError(value)
        return len(runs)

    with forkq.testing.fake():
        jid = job(flaky, retry=3).perform_async(1)
        forkq.testing.drain()
        assert (forkq.result(jid), runs) == (2, [1, 1])


def test_a_job_that_is_cancelled_expired_or_replaced_says_so() -> None:
    with forkq.testing.fake():
        cancelled = job().perform_async(1)
        forkq.cancel(cancelled)
        late = job(expires_in=0.0001)
        expired = late.perform_async(1)
        newest = job(unique_for=60, on_duplicate="latest")
        replaced = newest.perform_async(1)
        newest.perform_async(1)
        forkq.testing.drain(check=False)
        with pytest.raises(forkq.JobCancelled):
            forkq.result(cancelled)
        with pytest.raises(forkq.JobExpired):
            forkq.result(expired)
        with pytest.raises(forkq.JobFailed, match="replaced"):
            forkq.result(replaced)


def test_a_value_that_cannot_be_kept_repeats_no_work() -> None:
    with forkq.testing.fake():
        jids = [
            job(lambda _: {1, 2}).perform_async(0),
            job(lambda _: "x" * 300_000).perform_async(0),
        ]
        forkq.testing.drain()
        with pytest.raises(forkq.ResultNotKept, match="is a set"):
            forkq.result(jids[0])
        with pytest.raises(forkq.ResultTooLarge):
            forkq.result(jids[1])


def test_what_a_test_leaves_is_unknown_to_the_next_one() -> None:
    with forkq.testing.fake():
        jid = job().perform_async(1)
        forkq.testing.drain()
        assert forkq.result(jid) == 1
    with forkq.testing.fake(), pytest.raises(forkq.ResultUnknown):
        forkq.result(jid)


def test_the_callback_of_a_batch_has_a_result() -> None:
    last = job(lambda number: 2 * number)
    with forkq.testing.fake():
        with forkq.Batch(on_success=last.set({"jid": "c" * 24}).s(21)):
            job().perform_async(1)
        with pytest.raises(AssertionError, match="has not run yet"):
            forkq.result("c" * 24)
        forkq.testing.drain()
        assert forkq.result("c" * 24) == 42
