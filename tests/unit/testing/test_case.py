"""`JobsMixin` records in every test of a class, whatever its setUp does."""

from __future__ import annotations

import asyncio
import unittest
from typing import Any

import pytest

import forkq
from forkq import testing


@forkq.job(name="mail")
def mail(number: int) -> None:
    seen.append(number)


seen: list[int] = []


class Recording(testing.JobsMixin, unittest.TestCase):
    """What a user writes; run by the tests below."""

    def setUp(self) -> None:
        mail.perform_async(1)

    def test_recorded(self) -> None:
        mail.perform_async(2)
        self.forkq_jobs.enqueued(mail, times=2)

    def test_each_test_has_its_own(self) -> None:
        self.forkq_jobs.enqueued(mail, args=[1], times=1)


class AtClass(testing.JobsMixin, unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        mail.perform_async(0)

    def test_nothing_of_the_class(self) -> None:
        self.forkq_jobs.not_enqueued()


class Inline(testing.JobsMixin, unittest.TestCase):
    forkq_mode = "inline"

    def test_performed(self) -> None:
        forkq.registry.add(mail.spec)
        mail.perform_async(7)
        assert seen[-1] == 7


class Async(testing.JobsMixin, unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        mail.perform_async(1)

    async def test_recorded(self) -> None:
        await asyncio.to_thread(mail.perform_async, 2)
        self.forkq_jobs.enqueued(mail, times=2)


# pytest would run them on their own, too, and so run each twice.
CASES = [Recording, AtClass, Inline, Async]
for case in CASES:
    case.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("case", CASES)
def test_its_tests_pass_and_restore_what_was_before(case: Any) -> None:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    assert not result.errors + result.failures, (result.errors + result.failures)[0][1]
    assert result.testsRun > 0
    with pytest.raises(AssertionError, match="no pushes are recorded here"):
        testing.recorded()


def test_the_mixin_stands_before_the_test_case() -> None:
    with pytest.raises(TypeError, match="write JobsMixin before TestCase"):
        type("Wrong", (unittest.TestCase, testing.JobsMixin), {})
