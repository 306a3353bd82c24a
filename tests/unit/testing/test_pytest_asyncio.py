"""``forkq.testing`` in the async tests of a user with pytest-asyncio, in both of its modes."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

JOBS = """
import asyncio
import threading

import forkq

forkq.configure("redis://127.0.0.1:1/0")
seen = []

@forkq.job
async def note(word: str) -> None:
    await asyncio.sleep(0)
    seen.append((word, asyncio.get_running_loop()))

@forkq.job
def plain(word: str) -> None:
    seen.append((word, threading.get_ident()))

@forkq.job
async def fails() -> None:
    raise ValueError("no such user")
"""

TESTS = """
import asyncio
import threading

import pytest
import pytest_asyncio

import forkq.testing
from jobs import fails, note, plain, seen

MARK

@FIXTURE
async def queue():
    seen.clear()
    made = asyncio.Queue()
    yield made
    assert made.empty()

async def test_without_the_fixture_a_push_is_refused():
    with pytest.raises(forkq.testing.PushRefused, match="`forkq_jobs`"):
        await note.aperform_async("a")
    with pytest.raises(forkq.testing.PushRefused, match="`forkq_jobs`"):
        note.perform_async("a")

async def test_adrain_runs_jobs_in_the_loop_of_the_test_and_its_fixtures(forkq_jobs, queue):
    @forkq.job
    async def hand_over(word: str) -> None:
        await queue.put((word, asyncio.get_running_loop()))

    await hand_over.aperform_async("a")
    plain.perform_async("b")
    forkq_jobs.enqueued(hand_over, args=["a"], times=1)
    assert await forkq_jobs.adrain() == 2
    assert await queue.get() == ("a", asyncio.get_running_loop())
    assert seen[0][0] == "b" and seen[0][1] != threading.get_ident()

async def test_drain_has_a_loop_of_its_own(forkq_jobs, queue):
    note.perform_async("a")
    assert forkq_jobs.drain() == 1
    assert seen[0][0] == "a" and seen[0][1] is not asyncio.get_running_loop()

async def test_a_job_that_is_given_up_fails_the_test(forkq_jobs, queue):
    fails.perform_async()
    with pytest.raises(AssertionError, match="no such user"):
        await forkq_jobs.adrain()

@pytest.mark.forkq("inline")
async def test_inline_runs_a_job_before_its_push_returns(forkq_jobs, queue):
    await note.aperform_async("a")
    assert seen == [("a", asyncio.get_running_loop())]
    await plain.aperform_async("b")
    assert seen[1][1] != threading.get_ident()
    with pytest.raises(ValueError, match="no such user"):
        await fails.aperform_async()

@forkq.testing.fake()
async def test_a_decorated_test(queue):
    await note.aperform_async("a")
    [job] = forkq.testing.enqueued(note, args=["a"])
    assert await forkq.testing.recorded().adrain() == 1
    assert [word for word, _ in seen] == ["a"]

async def test_pushes_of_tasks_that_run_at_once(queue):
    with forkq.testing.fake() as jobs:
        await asyncio.gather(*(note.aperform_async(f"{n}") for n in range(10)))
        assert await jobs.adrain() == 10
    assert {loop for _, loop in seen} == {asyncio.get_running_loop()}

class TestOneLoopForAllTests:
    pytestmark = pytest.mark.asyncio(loop_scope="class")

    async def test_the_first(self, forkq_jobs):
        seen.clear()
        note.perform_async("a")
        assert await forkq_jobs.adrain() == 1

    async def test_the_second(self, forkq_jobs):
        assert len(forkq_jobs) == 0
        note.perform_async("b")
        assert await forkq_jobs.adrain() == 1
        assert seen[0][1] is seen[1][1] is asyncio.get_running_loop()
"""

WITHOUT_A_LOOP = """
from jobs import note, seen

def test_its_jobs_have_one(forkq_jobs):
    seen.clear()
    note.perform_async("a")
    assert forkq_jobs.drain() == 1
    assert [word for word, _ in seen] == ["a"]
"""


@pytest.mark.parametrize(
    ("mode", "mark", "fixture"),
    [
        ("strict", "pytestmark = pytest.mark.asyncio", "pytest_asyncio.fixture"),
        ("auto", "", "pytest.fixture"),
    ],
)
def test_pushes_and_runs(pytester: pytest.Pytester, mode: str, mark: str, fixture: str) -> None:
    """In a process of its own: this one does without the plugin."""
    tests = TESTS.replace("MARK", mark).replace("FIXTURE", fixture)
    pytester.makeini(f"[pytest]\nasyncio_mode = {mode}\nfilterwarnings = error\n")
    pytester.makepyfile(jobs=JOBS, test_async=tests, test_plain=WITHOUT_A_LOOP)
    result = pytester.runpytest_subprocess("-p", "no:xdist", "-p", "no:anyio", "-p", "no:valkey")
    result.assert_outcomes(passed=tests.count("def test_") + 1)
