"""Cancelling in a test without Redis: by jid, by class, by the arguments of a unique job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import forkq
from forkq import api, testing


@pytest.fixture
def jobs() -> Iterator[testing.RecordedJobs]:
    with testing.fake() as jobs:
        yield jobs


ran: list[int] = []


@pytest.fixture
def report() -> Any:
    ran.clear()

    @forkq.job(name="report", unique_for=60)
    def report(month: int, year: int = 2026) -> None:
        ran.append(month)

    return report


def test_a_cancelled_job_is_not_run(jobs: testing.RecordedJobs, report: Any) -> None:
    first, later = report.perform_async(1), report.perform_in(60, 2)
    report.perform_async(3)
    assert forkq.cancel(first) == forkq.cancel(later, wait=10) == "removed"
    assert forkq.cancel("nowhere") == "unknown"
    assert api.cancelled_at(first) is not None
    assert not api.is_being_cancelled(first)
    assert jobs.drain() == 1
    assert (ran, [job.jid for job in jobs.cancelled]) == ([3], [first, later])
    jobs.clear()
    assert jobs.cancelled == []


def test_a_cancelled_job_gives_its_lock_back(jobs: testing.RecordedJobs, report: Any) -> None:
    first = report.perform_async(1)
    assert report.perform_async(1) == ""
    assert report.cancel(1) == first
    assert report.cancel(month=1, year=2026) == ""
    assert report.perform_async(1) != ""
    jobs.drain()
    assert ran == [1]


def test_the_newest_of_those_that_replace_each_other_is_cancelled(
    jobs: testing.RecordedJobs,
) -> None:
    @forkq.job(name="index", unique_for=60, unique_by=["doc"], on_duplicate="latest")
    def index(doc: int, version: int) -> None:
        ran.append(version)

    ran.clear()
    index.perform_async(7, 1)
    newest = index.perform_async(7, 2)
    assert index.cancel(doc=7) == newest
    assert (jobs.drain(), ran) == (0, [])


def test_a_class_is_cancelled(jobs: testing.RecordedJobs, report: Any) -> None:
    @forkq.job(name="other")
    def other() -> None: ...

    report.perform_async(1)
    report.perform_in(60, 2)
    other.perform_async()
    api.cancel_class("report")
    jobs.enqueued(other, times=1)
    assert len(jobs) == 1


def test_a_retry_is_cancelled(jobs: testing.RecordedJobs) -> None:
    @forkq.job(name="flaky")
    def flaky() -> None:
        raise ValueError

    jid = flaky.perform_async()
    jobs.perform_one()
    assert [job.retrying for job in jobs] == [True]
    assert forkq.cancel(jid) == "removed"
    assert jobs.drain() == 0


def test_a_job_that_runs_goes_on(jobs: testing.RecordedJobs) -> None:
    """No thread of a test is interrupted."""
    told: list[str] = []

    @forkq.job(name="itself")
    def itself() -> None:
        told.append(forkq.cancel(str(forkq.current_job().jid)))

    itself.perform_async()
    assert jobs.drain() == 1
    assert told == ["unknown"]


def test_all_else_of_the_api_is_refused(jobs: testing.RecordedJobs) -> None:
    with pytest.raises(AssertionError, match="so there is no Redis to look into"):
        api.stats()
    with pytest.raises(AssertionError, match="ask for the fixture `forkq_server`"):
        forkq.Queue("default").pause()
