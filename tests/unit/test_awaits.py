"""A call for coroutines that nothing awaits: Python would only warn, and the job would be done."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import forkq
from forkq import registry, testing
from forkq.errors import ForkqError

done: list[Any] = []


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    done.clear()


async def step() -> None:
    forkq.astep("pay", done.append, 1)  # type: ignore[unused-coroutine]


async def step_with_names() -> None:
    forkq.astep("pay", done.append, *[1])  # type: ignore[unused-coroutine]
    done.append("after")


async def sleep() -> None:
    if not done:
        forkq.asleep("cool", 1)  # type: ignore[unused-coroutine]


async def wait() -> None:
    forkq.await_for("approved", key=7, timeout=60)  # type: ignore[unused-coroutine]


def in_a_thread() -> None:
    forkq.astep("pay", done.append, 1)  # type: ignore[unused-coroutine]


def traced(frame: FrameType, event: str, value: object) -> Any:
    """Python changes the instructions of a function that a debugger or a coverage tool traces."""
    return traced


@pytest.mark.parametrize("trace", [None, traced], ids=["", "traced"])
@pytest.mark.parametrize("body", [step, step_with_names, sleep, wait, in_a_thread])
def test_a_call_that_nothing_awaits_is_refused_where_it_is(
    body: Callable[[], Any], trace: Callable[[FrameType, str, object], Any] | None
) -> None:
    job: Any = forkq.job(name="order", retry=0)(body)
    before = sys.gettrace()
    with testing.fake() as jobs:
        job.perform_async()
        sys.settrace(trace or before)
        try:
            with pytest.raises(AssertionError, match="nothing awaits this") as found:
                jobs.drain()
        finally:
            sys.settrace(before)
    assert isinstance(found.value.__cause__, ForkqError)
    assert "so it would do nothing: write `await forkq.a" in str(found.value.__cause__)
    assert done == []


def test_what_is_awaited_in_another_way_is_no_mistake() -> None:
    @forkq.job(name="order")
    async def order() -> None:
        later = forkq.astep("a", done.append, "a")
        first = asyncio.create_task(forkq.astep("b", done.append, "b"))
        await asyncio.gather(*(forkq.astep(name, done.append, name) for name in "cd"))
        await asyncio.gather(first, later)
        assert await forkq.astep("e", str, 5) == "5"

    @forkq.job(name="in_a_thread")
    def in_a_thread() -> None:
        asyncio.run(forkq.astep("f", done.append, "f"))

    with testing.fake() as jobs:
        order.perform_async()
        in_a_thread.perform_async()
        assert jobs.drain() == 2
    assert sorted(done) == list("abcdf")
