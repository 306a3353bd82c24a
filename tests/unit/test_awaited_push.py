"""`await job.perform_async()`: refused before anything is pushed, with a sentence that says why."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import forkq
from forkq import InvalidJob, testing


@pytest.fixture
def jobs() -> Iterator[testing.RecordedJobs]:
    with testing.fake() as jobs:
        yield jobs


@forkq.job
def mail(number: int, subject: str = "") -> None: ...


class Thumbnail(forkq.Job):
    def perform(self, path: str) -> None: ...


# What no type checker lets pass.
_mail: Any = mail
_thumbnail: Any = Thumbnail


async def plain() -> Any:
    return await _mail.perform_async(1)


async def by_name() -> Any:
    return await _mail.perform_async(1, subject="hi")


async def later() -> Any:
    return await _thumbnail.perform_in(60, *["a.png"])


async def at_a_time() -> Any:
    return await _thumbnail.set(queue="low").perform_at(2e9, path="a.png")


async def on_commit() -> Any:
    return await _mail.perform_async_on_commit(1)


async def bulk() -> Any:
    return await _mail.perform_bulk([(1,), (2,)])


async def in_a_generator() -> Any:
    async def pushing() -> AsyncIterator[Any]:
        yield await _mail.perform_async(1)

    return [each async for each in pushing()]


async def often() -> Any:
    """Python rewrites the instructions of a loop that has run a few times."""
    refused = 0
    for number in range(200):
        try:
            await _mail.perform_async(number)
        except InvalidJob:
            refused += 1
    assert refused == 200
    return await _mail.perform_async(0)


CALLS = (plain, by_name, later, at_a_time, on_commit, bulk, in_a_generator, often)


def traced(frame: FrameType, event: str, value: object) -> Any:
    """Python changes the instructions of a function that a debugger or a coverage tool traces."""
    return traced


@pytest.mark.parametrize("trace", [None, traced], ids=["", "traced"])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_an_awaited_push_is_refused_and_nothing_is_pushed(
    jobs: testing.RecordedJobs,
    call: Callable[[], Awaitable[Any]],
    trace: Callable[[FrameType, str, object], Any] | None,
) -> None:
    async def run() -> None:
        before = sys.gettrace()
        sys.settrace(trace or before)
        try:
            await call()
        finally:
            sys.settrace(before)

    with pytest.raises(
        InvalidJob, match=r"takes no `await`; nothing was pushed: write `await J.aperform_async"
    ):
        asyncio.run(run())
    assert len(jobs) == 0


def test_a_coroutine_may_push_and_await_something_else(jobs: testing.RecordedJobs) -> None:
    async def handler() -> str:
        jids = [mail.perform_async(number) for number in range(3)]
        jids.append(await asyncio.to_thread(Thumbnail.perform_async, "a.png"))
        jids.append(await asyncio.sleep(0, mail.perform_async(4)))
        jid = mail.perform_async(5)
        await asyncio.sleep(0)
        return jid if len(set(jids)) == 5 else ""

    assert asyncio.run(handler())
    assert len(jobs) == 6


def test_a_jid_that_is_awaited_later_has_been_pushed(jobs: testing.RecordedJobs) -> None:
    """docs/jobs.md says so: the error is Python's own, when the push is over."""

    async def handler() -> None:
        jid: Any = mail.perform_async(1)
        await jid

    with pytest.raises(TypeError, match=r"'?str'? "):
        asyncio.run(handler())
    assert len(jobs) == 1
