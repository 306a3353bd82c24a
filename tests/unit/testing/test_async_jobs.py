"""``async def`` jobs under ``fake`` and ``inline``: in tests with a loop, and without one."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import forkq
import forkq.testing
from forkq import registry
from tests.support.waiting import PATIENCE

seen: list[Any] = []


@pytest.fixture(autouse=True)
def jobs_of_this_module(own_jobs: None) -> None:
    """The conftest has emptied the registry."""
    seen.clear()
    for job in (notes, place, plain, outer):
        registry.add(job.spec)


@forkq.job(retry=1, backoff=5)
async def notes(word: str) -> None:
    await asyncio.sleep(0)
    seen.append((word, forkq.current_job().jid != ""))
    if word == "fails":
        raise ValueError(word)


@forkq.job
async def place() -> None:
    seen.append((asyncio.get_running_loop(), threading.get_ident()))


@forkq.job
def plain() -> None:
    seen.append(threading.get_ident())


@forkq.job
async def outer() -> None:
    place.perform_async()
    await place()


def test_drain_runs_them_and_their_retries() -> None:
    with forkq.testing.fake() as jobs:
        notes.perform_async("good")
        notes.perform_async("fails")
        with pytest.raises(AssertionError, match="ValueError: fails"):
            jobs.drain()
    assert seen == [("good", True), ("fails", True), ("fails", True)]
    assert [job.name.rpartition(".")[2] for job in jobs.dead] == ["notes"]


def test_all_of_one_drain_share_a_loop_in_the_thread_of_the_test() -> None:
    with forkq.testing.fake() as jobs:
        for _ in range(2):
            place.perform_async()
        jobs.drain()
    assert seen[0] == seen[1]
    assert seen[0][1] == threading.get_ident()
    assert seen[0][0].is_closed()


def test_inline_runs_one_at_its_push_and_raises_what_it_raises() -> None:
    with forkq.testing.inline():
        notes.perform_async("good")
        with pytest.raises(ValueError, match="fails"):
            notes.perform_async("fails")
    assert seen == [("good", True), ("fails", True)]


@pytest.mark.parametrize("has_loop", [False, True])
def test_inline_may_be_nested_and_used_under_a_running_loop(has_loop: bool) -> None:
    async def test() -> None:
        outer.perform_async()

    with forkq.testing.inline():
        if has_loop:
            asyncio.run(test())
        else:
            outer.perform_async()
    (inner, _), (own, _) = seen
    assert inner is not own


def test_an_awaited_push_at_once_leaves_the_loop_to_others() -> None:
    """A coroutine is a task of that loop, and a `def` job runs in a thread."""

    async def test() -> None:
        gate, door = asyncio.Event(), threading.Event()

        @forkq.job(name="waits")
        async def waits() -> None:
            seen.append(asyncio.get_running_loop())
            await gate.wait()

        @forkq.job(name="blocks")
        def blocks() -> None:
            seen.append(door.wait(PATIENCE))

        with forkq.testing.inline() as jobs:
            pushes = asyncio.gather(waits.aperform_async(), blocks.aperform_async())
            await asyncio.sleep(0.001)
            assert not pushes.done()
            gate.set()
            door.set()
            jids = await pushes
        assert {job.jid for job in jobs.performed} == set(jids)
        assert seen == [asyncio.get_running_loop(), True]

    asyncio.run(test())


def test_an_awaited_push_at_once_raises_what_the_job_raises() -> None:
    async def test() -> None:
        with forkq.testing.inline() as jobs:
            with pytest.raises(ValueError, match="fails"):
                await notes.aperform_async("fails")
            await notes.aperform_bulk([("good",), ("fine",)])
            await notes.aperform_in(60, "later")
        assert [job.args for job in jobs.performed] == [["good"], ["fine"]]
        assert [job.args for job in jobs] == [["fails"], ["later"]]

    asyncio.run(test())


@pytest.mark.parametrize("has_loop", [True, False])
def test_jobs_at_once_may_await_the_pushes_of_others(has_loop: bool) -> None:
    """Also when there are more of them than ``asyncio.to_thread`` has threads."""

    @forkq.job(name="pushes")
    async def pushes() -> None:
        await place.aperform_async()

    async def test() -> None:
        await asyncio.gather(*(pushes.aperform_async() for _ in range(100)))
        assert {loop for loop, _ in seen} == {asyncio.get_running_loop()}

    with forkq.testing.inline():
        if has_loop:
            asyncio.run(test())
        else:
            pushes.perform_async()
    assert len(seen) == (100 if has_loop else 1)


def test_adrain_runs_coroutines_in_the_loop_of_the_test_and_the_rest_in_a_thread() -> None:
    async def test() -> None:
        with forkq.testing.fake():
            place.perform_async()
            plain.perform_async()
            place.perform_in(3600)
            assert await forkq.testing.adrain() == 3
        here = (asyncio.get_running_loop(), threading.get_ident())
        assert seen[0] == seen[2] == here
        assert seen[1] != threading.get_ident()

    asyncio.run(test())


def test_adrain_leaves_the_loop_to_others_and_fails_as_drain_does() -> None:
    async def test() -> None:
        gate = asyncio.Event()

        async def waits() -> None:
            await gate.wait()
            raise ValueError("odd")

        job = forkq.job(name="waits", retry=0)(waits)
        with forkq.testing.fake() as jobs:
            job.perform_async()
            draining = asyncio.create_task(jobs.adrain())
            await asyncio.sleep(0)
            gate.set()
            with pytest.raises(AssertionError, match="ValueError: odd"):
                await draining

    asyncio.run(test())


def test_a_task_that_a_job_leaves_is_cancelled_at_the_end_of_the_drain() -> None:
    cleaned = []

    async def polls() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            cleaned.append(1)

    @forkq.job(name="leaves")
    async def leaves() -> None:
        seen.append(asyncio.create_task(polls()))
        await asyncio.sleep(0)

    with forkq.testing.fake() as jobs:
        leaves.perform_async()
        jobs.drain()
    assert cleaned == [1]
