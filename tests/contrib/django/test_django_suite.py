"""Django's own tests of its task backends, with forkq's backend in the place of each of Django's.

They are not in Django's wheel: FORKQ_TEST_DJANGO names the unpacked source distribution of the
version that is installed (`pip download --no-deps --no-binary :all: django`).
"""

from __future__ import annotations

import importlib
import os
import unittest
from pathlib import Path
from typing import Any

import django
import pytest

from tests.contrib.django.run_here import run_waiting
from tests.support.server import Server

SOURCE = os.environ.get("FORKQ_TEST_DJANGO", "")
if django.VERSION < (6,) or not SOURCE:
    pytest.skip(
        "Django's own tests: they need Django 6 (Python 3.12), and FORKQ_TEST_DJANGO=/path/to/its "
        "source distribution",
        allow_module_level=True,
    )

# What a test expects of one backend alone.
NOT_OURS = {
    "test_cannot_get_result": "forkq keeps results",
    "test_cannot_refresh_result": "forkq keeps results",
    "test_cannot_pass_run_after": "forkq takes run_after",
    "test_throws_keyboard_interrupt": "it is raised in the child, not where the task is enqueued",
    "test_refresh_result": "DummyBackend: the test changes the record in the process's memory",
    "test_refresh_result_async": "as above",
}


@pytest.mark.parametrize("module", ["test_tasks", "test_dummy_backend", "test_immediate_backend"])
def test_djangos_tests_pass(
    project: Any, redis_server: Server, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    put_forkq_in_place(monkeypatch, redis_server)
    monkeypatch.syspath_prepend(str(Path(SOURCE) / "tests"))
    found = importlib.import_module(f"tasks.{module}")
    suite = unittest.defaultTestLoader.loadTestsFromModule(found)
    result = unittest.TestResult()
    unittest.TestSuite(each for each in flat(suite) if applies(each, module)).run(result)
    assert [text for _, text in result.errors + result.failures] == []
    assert result.testsRun >= 10


def flat(suite: Any) -> list[Any]:
    return [
        test for each in suite for test in (flat(each) if hasattr(each, "__iter__") else [each])
    ]


def applies(test: Any, module: str) -> bool:
    name = test._testMethodName
    return name not in NOT_OURS or (module == "test_tasks" and name.startswith("test_refresh"))


def put_forkq_in_place(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    """The settings of these tests name Django's classes."""
    from forkq.contrib.django.tasks import ForkqBackend  # noqa: PLC0415 - it needs settings

    class Waits(ForkqBackend):
        """For DummyBackend: a test sees what was enqueued."""

        supports_priority = True

        def __init__(self, alias: str, params: Any) -> None:
            super().__init__(alias, params)
            self.results: list[Any] = []

        def clear(self) -> None:
            self.results.clear()
            server.client().flushall()

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            self.results.append(super().enqueue(task, args, kwargs))
            return self.results[-1]

    class RunsAtOnce(ForkqBackend):
        """For ImmediateBackend: the task has run when it is enqueued."""

        supports_priority = True

        def __init__(self, alias: str, params: Any) -> None:
            super().__init__(alias, {**params, "OPTIONS": {"retry": False}})
            self.options = {}

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            run_waiting(server)
            result.refresh()
            return result

    monkeypatch.setattr("django.tasks.backends.dummy.DummyBackend", Waits)
    monkeypatch.setattr("django.tasks.backends.immediate.ImmediateBackend", RunsAtOnce)
