"""What `enqueued` finds, and how it tells what it found instead."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any
from unittest import mock

import pytest

import forkq
from forkq import testing


class Picture(forkq.Job, name="Picture", queue="images"):
    def perform(self, path: str, width: Any = 0) -> None: ...


@forkq.job(name="welcome", queue="mail")
def welcome(user_id: int) -> None: ...


@pytest.fixture
def jobs() -> Iterator[testing.RecordedJobs]:
    with testing.fake() as jobs:
        yield jobs


def complaint(jobs: testing.RecordedJobs, *args: Any, **expected: Any) -> list[str]:
    with pytest.raises(AssertionError) as raised:
        jobs.enqueued(*args, **expected)
    return str(raised.value).splitlines()


def test_a_job_is_found_by_class_function_or_name(jobs: testing.RecordedJobs) -> None:
    Picture.perform_async("a.png", 200)
    welcome.perform_async(7)
    assert jobs.enqueued(Picture) == jobs.enqueued("Picture") == [jobs[0]]
    assert jobs.enqueued(welcome) == jobs.enqueued(welcome.set(retry=1)) == [jobs[1]]
    assert len(jobs.enqueued()) == 2
    with pytest.raises(TypeError, match="is no job"):
        jobs.enqueued(print)


def test_arguments_queue_and_keys_are_compared(jobs: testing.RecordedJobs) -> None:
    Picture.set(retry=5).perform_async("a.png", [1, {"b": 2}])
    jobs.enqueued(Picture, args=("a.png", [1, {"b": 2}]), queue="images", retry=5)
    jobs.enqueued(Picture, args=["a.png", mock.ANY])
    for wrong in ({"args": ["a.png"]}, {"queue": "mail"}, {"retry": 4}, {"tags": ["x"]}):
        jobs.not_enqueued(Picture, **wrong)
        complaint(jobs, Picture, **wrong)


def test_times_count_from_the_push(jobs: testing.RecordedJobs) -> None:
    moment = datetime.now(timezone.utc) + timedelta(days=3)
    Picture.perform_in(3600, "hour")
    Picture.perform_at(moment, "days")
    Picture.perform_async("now")
    for at, path in (
        (3600, "hour"), (timedelta(hours=1), "hour"), (moment, "days"),
        (moment.timestamp(), "days"), (None, "now"),
    ):  # fmt: skip
        (job,) = jobs.enqueued(Picture, at=at)
        assert job.args[0] == path
    assert [job.args[0] for job in jobs] == ["now", "hour", "days"]
    assert complaint(jobs, Picture, args=["hour"], at=3700)[2:4] == [
        f"  {jobs[1]}",
        "      at: expected 3700 s after the push, found 3600 s after the push",
    ]
    assert complaint(jobs, Picture, args=["now"], at=60)[3].endswith("found now")


def test_the_nearest_job_comes_first_with_its_differences(jobs: testing.RecordedJobs) -> None:
    welcome.perform_async(7)
    Picture.perform_async("b.png", {"w": 1, "h": 2})
    Picture.perform_async("a.png", {"w": 1, "h": 3})
    lines = complaint(jobs, Picture, args=["a.png", {"w": 1, "h": 2}], queue="images")
    assert lines == [
        "no such job is enqueued: Picture, args=['a.png', {'w': 1, 'h': 2}], queue='images'",
        "enqueued are, the nearest first:",
        f"  {jobs[1]}",
        "      args[0]: expected 'a.png', found 'b.png'",
        f"  {jobs[2]}",
        "      args[1]['h']: expected 2, found 3",
        f"  {jobs[0]}",
        "      job: expected 'Picture', found 'welcome'",
        "      args: expected ['a.png', {'w': 1, 'h': 2}], found [7]",
        "      queue: expected 'images', found 'mail'",
    ]
    assert lines[2].startswith("  Picture('b.png', {'w': 1, 'h': 2})  queue=images  jid=")


def test_a_long_list_is_cut(jobs: testing.RecordedJobs) -> None:
    for number in range(25):
        welcome.perform_async(number)
    lines = complaint(jobs, welcome, args=[99])
    assert lines[-1] == "  and 15 more"
    assert len(lines) == 2 + 2 * 10 + 1


def test_without_jobs_the_complaint_says_so(jobs: testing.RecordedJobs) -> None:
    assert complaint(jobs, welcome) == [
        "no such job is enqueued: welcome",
        "no job is enqueued at all",
    ]


def test_so_many_times_is_exact(jobs: testing.RecordedJobs) -> None:
    welcome.perform_async(7)
    welcome.perform_async(7)
    assert len(jobs.enqueued(welcome, args=[7], times=2)) == 2
    assert complaint(jobs, welcome, times=1)[0] == "expected 1 such job, found 2: welcome"
    with pytest.raises(AssertionError, match="expected 0 such jobs, found 2: any job"):
        jobs.not_enqueued()
    jobs.clear()
    jobs.not_enqueued()


def test_a_job_that_has_run_is_not_enqueued_any_more(jobs: testing.RecordedJobs) -> None:
    welcome.perform_async(7)
    jobs.performed.append(jobs[0])
    assert complaint(jobs, welcome, times=3)[0] == "expected 3 such jobs, found 1: welcome"
    done = jobs.performed[:]
    jobs.clear()
    jobs.performed += done
    assert complaint(jobs, welcome)[1] == "(but so many have run already: 1)"


def test_the_functions_of_the_module_ask_the_innermost(jobs: testing.RecordedJobs) -> None:
    welcome.perform_async(7)
    assert testing.enqueued(welcome, times=1) == list(jobs)
    testing.not_enqueued(Picture)
