"""For tests of the standard library's unittest, and those of Django."""

from __future__ import annotations

import unittest
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .jobs import RecordedJobs
from .modes import fake, inline

if TYPE_CHECKING:
    from .modes import Scope

    _Base = unittest.TestCase
else:
    _Base = object


class JobsMixin(_Base):
    """``class MailTest(forkq.testing.JobsMixin, TestCase)``: pushes are recorded, and each test has
    its own in ``self.forkq_jobs``. ``forkq_mode = "inline"`` performs them at the push.

    What ``setUpClass`` and Django's ``setUpTestData`` push leaves the process no more than the
    rest, and is in no test's ``forkq_jobs``.
    """

    forkq_mode: ClassVar[Literal["fake", "inline"]] = "fake"
    forkq_jobs: RecordedJobs

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        order = cls.__mro__
        if unittest.TestCase in order and order.index(unittest.TestCase) < order.index(JobsMixin):
            raise TypeError(f"{cls.__qualname__}: write JobsMixin before TestCase")

    @classmethod
    def setUpClass(cls) -> None:
        scope = cls._scope()
        scope.__enter__()
        cls.addClassCleanup(scope.__exit__, None, None, None)
        super().setUpClass()

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        """Runs the test within its mode. That is not in setUp, so that a class may have its own
        without calling this one's."""
        with self._scope() as self.forkq_jobs:
            return super().run(result)

    @classmethod
    def _scope(cls) -> Scope[RecordedJobs]:
        return {"fake": fake, "inline": inline}[cls.forkq_mode]()
