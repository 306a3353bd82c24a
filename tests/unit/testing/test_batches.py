"""Batches in a test without Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import forkq
import forkq.testing
from forkq import middleware, registry

ran: list[Any] = []


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    monkeypatch.setattr(middleware, "pushes", middleware.Chain())
    ran.clear()


def jobs() -> tuple[Any, Any, dict[str, Any]]:
    def perform(number: int) -> None:
        ran.append(number)
        if number < 0:
            raise ValueError(number)

    told = forkq.job(name="Told")(ran.append)
    calls = {f"on_{each}": told.s(each) for each in ("death", "finish", "success")}
    return forkq.job(name="Load", retry=0)(perform), told, calls


@pytest.fixture(autouse=True)
def fake(clean: None) -> Iterator[None]:
    with forkq.testing.fake():
        yield


def test_drain_runs_a_batch_to_its_end() -> None:
    load, _, calls = jobs()
    with forkq.Batch(**calls):
        load.perform_bulk([[1], [2]])
    assert ran == []
    forkq.testing.drain()
    assert ran == [1, 2, "finish", "success"]


def test_a_dead_member_is_a_death_and_no_success() -> None:
    load, _, calls = jobs()
    with forkq.Batch(**calls):
        load.perform_bulk([[1], [-1]])
    forkq.testing.drain(check=False)
    assert sorted(map(str, ran)) == ["-1", "1", "death", "finish"]


def test_nothing_fires_before_the_end_of_the_block() -> None:
    load, _, calls = jobs()
    with forkq.Batch(**calls):
        load.perform_async(1)
        forkq.testing.drain()
        assert ran == [1]
    forkq.testing.drain()
    assert ran == [1, "finish", "success"]


def test_batches_within_and_members_from_within() -> None:
    load, told, _ = jobs()

    def perform() -> None:
        with forkq.Batch.current() as batch:
            batch.perform_bulk(load, [[1], [2]])

    more = forkq.job(name="More")(perform)
    with (
        forkq.Batch(on_success=told.s("outer")) as outer,
        forkq.Batch(on_success=told.s("inner")) as inner,
    ):
        more.perform_async()
    assert outer.bid != inner.bid
    forkq.testing.drain()
    assert ran == [1, 2, "inner", "outer"]


def test_a_cancelled_job_is_no_success() -> None:
    load, _, calls = jobs()
    with forkq.Batch(**calls):
        jid = load.perform_async(1)
    forkq.cancel(jid)
    forkq.testing.drain()
    assert ran == ["finish"]


def test_a_push_behind_the_end_is_refused() -> None:
    load, _, _ = jobs()
    batch = forkq.Batch()

    def push() -> None:
        with batch:
            load.perform_async(1)
            batch._seal()
            load.perform_async(2)

    with pytest.raises(forkq.BatchFinished):
        push()
    forkq.testing.drain()
    assert ran == [1]


def test_inline_runs_each_callback_when_its_time_comes() -> None:
    load, _, calls = jobs()
    with forkq.testing.inline():
        with forkq.Batch(**calls):
            load.perform_async(1)
            assert ran == [1]
        assert ran == [1, "finish", "success"]


@pytest.mark.parametrize("mode", [forkq.testing.inline, forkq.testing.fake])
def test_what_a_member_pushes_is_no_member_though_the_block_is_open(mode: Any) -> None:
    def perform() -> None:
        try:
            forkq.Batch.current()
        except forkq.ForkqError:
            ran.append("no member")

    second = forkq.job(name="Second")(perform)
    first = forkq.job(name="First")(second.perform_async)
    with mode(), forkq.Batch():
        first.perform_async()
        if mode is forkq.testing.fake:
            forkq.testing.drain()
    assert ran == ["no member"]


def test_a_block_of_an_event_loop() -> None:
    load, _, calls = jobs()

    async def push() -> None:
        async with forkq.Batch(**calls) as batch:
            await batch.aperform_bulk(load, [[1], [2]])

    asyncio.run(push())
    forkq.testing.drain()
    assert ran == [1, 2, "finish", "success"]
