"""`drain`, `perform_one` and `inline`: jobs run as a child runs them, in the test's process."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from itertools import count
from typing import Any

import pytest

import forkq
from forkq import iteration, testing
from forkq.wire.times import now


class Flaky(Exception):
    """What jobs raise here."""


@pytest.fixture
def jobs() -> Iterator[testing.RecordedJobs]:
    with testing.fake() as jobs:
        yield jobs


@pytest.fixture
def journal() -> list[Any]:
    """What the jobs write down."""
    return []


@pytest.fixture
def note(journal: list[Any]) -> Any:
    @forkq.job(name="note", queue="low")
    def note(value: Any) -> None:
        journal.append(value)

    return note


def test_a_job_gets_what_json_makes_of_its_arguments(
    jobs: testing.RecordedJobs, note: Any, journal: list[Any]
) -> None:
    value: dict[str, list[Any]] = {"list": [1, 2.5, None]}
    note.perform_async(value)
    value["list"].append("too late")
    assert jobs.drain() == 1
    assert journal == [{"list": [1, 2.5, None]}]
    assert (len(jobs), [job.name for job in jobs.performed]) == (0, ["note"])


def test_a_job_knows_itself_and_the_test_is_none(jobs: testing.RecordedJobs) -> None:
    seen: list[Any] = []

    class Asking(forkq.Job, name="Asking", queue="q"):
        def perform(self) -> None:
            self.progress(1, 2)
            seen.extend([self.jid, self.queue, self.retry_count, forkq.current_job().jid])

    jid = Asking.perform_async()
    jobs.drain()
    assert seen == [jid, "q", None, jid]
    with pytest.raises(forkq.ForkqError):
        forkq.current_job()


def test_server_middleware_is_around_each_run(
    jobs: testing.RecordedJobs, note: Any, journal: list[Any]
) -> None:
    @forkq.middleware.server.append
    def around(job, call):  # type: ignore[no-untyped-def]
        journal.append("before")
        call()
        journal.append("after")

    note.perform_async(1)
    jobs.drain()
    assert journal == ["before", 1, "after"]


def test_jobs_of_jobs_run_too_and_all_in_order_of_their_times(
    jobs: testing.RecordedJobs, note: Any, journal: list[Any]
) -> None:
    """A job that runs in an hour counts its own schedules from there."""

    @forkq.job(name="plan")
    def plan(name: str) -> None:
        journal.append(name)
        note.perform_in(1200, f"20 minutes after {name}")
        note.perform_async(f"at once after {name}")

    began, at = time.monotonic(), now()
    note.perform_in(86400, "day")
    plan.perform_in(3600, "hour")
    note.perform_in(4000, "between")
    plan.perform_async("now")
    assert jobs.drain() == 8
    assert journal == [
        "now", "at once after now", "20 minutes after now", "hour", "at once after hour", "between",
        "20 minutes after hour", "day",
    ]  # fmt: skip
    assert now() - at == pytest.approx(time.monotonic() - began, abs=5)


def test_a_scheduled_job_has_the_time_at_which_it_became_due(jobs: testing.RecordedJobs) -> None:
    seen: list[float] = []

    @forkq.job(name="late")
    def late() -> None:
        payload = forkq.current_job().payload
        seen.append(payload["enqueued_at"] - payload["created_at"])

    late.perform_in(3600)
    jobs.drain()
    assert seen == [pytest.approx(3600, abs=5)]


def test_until_runs_what_is_due_then(
    jobs: testing.RecordedJobs, note: Any, journal: list[Any]
) -> None:
    for seconds in (600, 60, 7200):
        note.perform_in(seconds, seconds)
    assert jobs.drain(until=3600) == 2
    assert journal == [60, 600]
    assert [job.args for job in jobs] == [[7200]]


def test_one_queue_or_one_job_is_drained(
    jobs: testing.RecordedJobs, note: Any, journal: list[Any]
) -> None:
    @forkq.job(name="other")
    def other(value: int) -> None:
        journal.append(value)
        note.perform_async("not now")

    note.perform_async(1)
    other.perform_async(2)
    note.set(queue="high").perform_async(3)
    assert jobs.drain(other) == 1
    assert jobs.drain("high") == 1
    assert journal == [2, 3]
    assert jobs.drain("note") == 2


def test_a_failed_job_is_retried_with_its_count(jobs: testing.RecordedJobs) -> None:
    counts: list[int | None] = []

    class Second(forkq.Job, name="Second", retry_queue="slow"):
        def perform(self) -> None:
            counts.append(self.retry_count)
            if len(counts) < 3:
                raise Flaky(f"attempt {len(counts)}")

    Second.perform_async()
    assert jobs.perform_one() is not None
    (retry,) = jobs
    assert (retry.retrying, retry.queue) == (True, "slow")
    assert retry.payload["error_class"].endswith("Flaky")
    assert retry.payload["error_message"] == "attempt 1"
    jobs.enqueued(Second, retry_count=0)
    assert jobs.drain() == 2
    assert counts == [None, 0, 1]
    assert len(jobs.performed) == 1


def test_a_job_that_always_fails_is_given_up_and_reported(jobs: testing.RecordedJobs) -> None:
    told: list[str] = []
    forkq.on_error(lambda error, context: told.append(context["context"]))
    forkq.on_death(lambda job, error: told.append(f"{job['class']} died"))

    class Broken(forkq.Job, name="Broken", retry=2):
        def perform(self, n: int) -> None:
            raise Flaky(f"boom {n}")

        def retries_exhausted(self, job: dict[str, Any], error: BaseException) -> None:
            told.append("exhausted")

    Broken.perform_async(7)
    with pytest.raises(AssertionError) as raised:
        jobs.drain()
    first, second = str(raised.value).splitlines()
    assert first == "1 job failed and will not be retried any more:"
    assert second.startswith("  Broken(7)  queue=default")
    assert second.endswith(": Flaky: boom 7")
    assert isinstance(raised.value.__cause__, Flaky)
    assert told == ["a job failed"] * 2 + ["exhausted", "a job failed", "Broken died"]
    assert [job.name for job in jobs.dead] == ["Broken"]
    assert jobs.drain() == 0, "the complaint is made once"


@pytest.mark.parametrize(
    ("options", "dead"),
    [({"retry": False}, 0), ({"retry": 0}, 1), ({"retry": 0, "dead": False}, 0)],
)
def test_without_check_a_test_looks_for_itself(
    jobs: testing.RecordedJobs, options: dict[str, Any], dead: int
) -> None:
    @forkq.job(name="broken", **options)
    def broken() -> None:
        raise Flaky

    broken.perform_async()
    assert jobs.drain(check=False) == 1
    assert (len(jobs), len(jobs.dead), jobs.performed) == (0, dead, [])
    broken.perform_async()
    with pytest.raises(AssertionError, match="Flaky"):
        jobs.drain()


def test_a_hook_that_discards_is_no_failure(jobs: testing.RecordedJobs) -> None:
    @forkq.job(name="gone", retry_in=lambda count, error, job: forkq.DISCARD)
    def gone() -> None:
        raise Flaky

    gone.perform_async()
    assert jobs.drain() == 1
    assert (len(jobs), jobs.dead) == (0, [])


def test_retry_in_sets_the_time_of_the_retry(jobs: testing.RecordedJobs) -> None:
    @forkq.job(name="slow", retry=1, retry_in=lambda count, error, job: 5000)
    def slow() -> None:
        raise Flaky

    slow.perform_async()
    jobs.perform_one()
    assert 5000 <= jobs[0].delay < 5030
    assert jobs.drain(until=3600) == 0
    assert jobs.drain(until=6000, check=False) == 1


def test_the_job_of_another_app_waits_unless_it_is_named(jobs: testing.RecordedJobs) -> None:
    forkq.configure("redis://127.0.0.1:1/0").push({"class": "HardJob", "args": [], "retry": 0})
    assert jobs.drain() == 0
    with pytest.raises(AssertionError, match="no job is registered as 'HardJob'"):
        jobs.drain("HardJob")


def test_a_job_that_pushes_itself_again_does_not_run_for_ever(
    jobs: testing.RecordedJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkq.testing.jobs._ENDLESS", 100)

    @forkq.job(name="again")
    def again() -> None:
        again.perform_in(60)

    again.perform_async()
    assert jobs.drain(until=3600 - 1) == 60
    with pytest.raises(AssertionError, match=r"has run 100 jobs, and again\(\).* pass until="):
        jobs.drain()


def test_what_jobs_push_is_recorded_after_the_end_of_fake_too(
    note: Any, journal: list[Any]
) -> None:
    @forkq.job(name="first")
    def first() -> None:
        note.perform_async("second")

    with testing.fake() as jobs:
        first.perform_async()
    assert jobs.drain() == 2
    assert journal == ["second"]


def test_perform_one_runs_the_next(jobs: testing.RecordedJobs, note: Any) -> None:
    note.perform_in(60, 2)
    note.perform_async(1)
    done = [jobs.perform_one(note) for _ in range(3)]
    assert [job and job.args for job in done] == [[1], [2], None]


def test_ctrl_c_ends_the_test_and_not_the_job(jobs: testing.RecordedJobs) -> None:
    @forkq.job(name="endless")
    def endless() -> None:
        raise KeyboardInterrupt

    endless.perform_async()
    with pytest.raises(KeyboardInterrupt):
        jobs.drain()


def test_an_exit_in_a_job_is_a_failure_of_the_job(jobs: testing.RecordedJobs) -> None:
    @forkq.job(name="exits", retry=0)
    def exits() -> None:
        raise SystemExit(3)

    exits.perform_async()
    with pytest.raises(AssertionError, match="SystemExit: 3"):
        jobs.drain()


def test_a_failure_is_one_line_of_the_log(
    jobs: testing.RecordedJobs, caplog: pytest.LogCaptureFixture
) -> None:
    @forkq.job(name="broken", retry=1)
    def broken() -> None:
        raise Flaky("100%s")

    broken.perform_async()
    jobs.drain(check=False)
    assert [(record.name, record.levelno) for record in caplog.records] == [
        ("forkq", logging.WARNING)
    ] * 2
    assert "failed class=broken" in caplog.text
    assert "Flaky: 100%s" in caplog.text
    assert not {"Traceback", "_sentence"} & set(re.findall(r"\w+", caplog.text))


def test_a_job_runs_in_the_thread_of_the_test(jobs: testing.RecordedJobs) -> None:
    """It sees an open transaction of the test; a context variable that it sets stays its own."""
    variable: ContextVar[str] = ContextVar("variable", default="")
    seen: list[Any] = []

    @forkq.job(name="look")
    def look() -> None:
        seen.extend([threading.current_thread(), variable.get()])
        variable.set("of the job")

    variable.set("of the test")
    look.perform_async()
    jobs.drain()
    assert seen == [threading.current_thread(), "of the test"]
    assert variable.get() == "of the test"


def test_an_async_test_drains_jobs_that_use_asyncio(jobs: testing.RecordedJobs) -> None:
    seen: list[Any] = []

    @forkq.job(name="fetch")
    def fetch(n: int) -> None:
        seen.append(asyncio.run(asyncio.sleep(0, n)))

    async def body() -> None:
        fetch.perform_async(1)
        jobs.drain()
        with testing.inline():
            fetch.perform_async(2)

    asyncio.run(body())
    assert seen == [1, 2]


# inline


def test_inline_performs_at_the_push(note: Any, journal: list[Any]) -> None:
    with testing.inline() as jobs:
        jid = note.perform_async({"a": [1]})
        assert journal == [{"a": [1]}]
        note.perform_bulk([(2,), (3,)])
        note.perform_in(60, 4)
    assert journal == [{"a": [1]}, 2, 3]
    assert jobs.performed[0].jid == jid
    jobs.enqueued(note, args=[4], at=60, times=1)
    assert len(jobs) == 1


def test_inline_raises_what_the_job_raises_and_keeps_its_retry() -> None:
    @forkq.job(name="broken")
    def broken() -> None:
        raise Flaky("boom")

    with testing.inline() as jobs:
        with pytest.raises(Flaky, match="boom"):
            broken.perform_async()
        jobs.enqueued(broken, retry_count=0, times=1)
        jobs.check()


def test_a_job_that_pushes_inline_stays_the_current_job() -> None:
    seen: list[str] = []

    @forkq.job(name="inner")
    def inner() -> None:
        seen.append(forkq.current_job().jid)

    @forkq.job(name="outer")
    def outer() -> None:
        inner.perform_async()
        seen.append(forkq.current_job().jid)

    with testing.inline():
        jid = outer.perform_async()
    assert seen[1] == jid
    assert seen[0] != jid


def test_the_drain_of_the_module_is_that_of_the_innermost(note: Any, journal: list[Any]) -> None:
    with testing.fake():
        note.perform_async(1)
        assert testing.drain(note) == 1
    assert journal == [1]


def test_an_iterable_job_goes_on_from_its_cursor(
    jobs: testing.RecordedJobs, journal: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failure, a snooze, and its max_runtime."""
    ends: dict[int, BaseException] = {2: Flaky(), 4: forkq.Snooze(60)}
    moments = count(step=0.25)
    monkeypatch.setattr(iteration, "monotonic", lambda: next(moments))

    @forkq.job(name="walk", iterable=True, max_runtime=1)
    def walk(total: int, cursor: int = 0) -> Iterator[int]:
        for item in range(cursor, total):
            if item in ends:
                raise ends.pop(item)
            journal.append(item)
            yield item + 1

    walk.perform_async(12)
    runs = jobs.drain()
    assert journal == list(range(12))
    assert runs > 4
    assert not ends


def test_an_iterable_class_walks_where_the_test_calls_it() -> None:
    seen: list[str] = []

    class Letters(forkq.IterableJob, name="letters"):
        def build_enumerator(self, word: str, cursor: int | None = None) -> Any:
            return forkq.cursors.sequence(word, cursor)

        def each_iteration(self, letter: str, word: str) -> None:
            seen.append(letter)

    Letters().perform("abc")
    assert seen == ["a", "b", "c"]
