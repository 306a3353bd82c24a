"""Durable steps in tests without Redis."""

from __future__ import annotations

from typing import Any

import pytest

import forkq
from forkq import registry, testing


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})


@pytest.fixture
def journal() -> list[Any]:
    return []


def order(journal: list[Any], *, is_async: bool) -> Any:
    """Charges, waits three days for an approval, and ships; the parcel service is down once."""
    down = [ConnectionError("down")]

    def ship() -> None:
        if down:
            raise down.pop()
        journal.append("ship")

    if is_async:

        @forkq.job(name="order")
        async def by_loop() -> None:
            await forkq.astep("charge", journal.append, "charge")
            signal = await forkq.await_for("approved", key=7, timeout=3 * 86_400)
            journal.append(signal and signal.data)
            await forkq.asleep("cool", 3600)
            await forkq.astep("ship", ship)

        return by_loop

    @forkq.job(name="order")
    def by_thread() -> None:
        forkq.step("charge", journal.append, "charge")
        signal = forkq.wait_for("approved", key=7, timeout=3 * 86_400)
        journal.append(signal and signal.data)
        forkq.sleep("cool", 3600)
        forkq.step("ship", ship)

    return by_thread


@pytest.mark.parametrize("is_async", [False, True])
def test_drain_takes_a_job_through_its_steps(journal: list[Any], *, is_async: bool) -> None:
    """Without waiting: the time that forkq tells moves on. No signal comes, so the wait ends."""
    job = order(journal, is_async=is_async)
    with testing.fake() as jobs:
        job.perform_async()
        assert jobs.drain() == 4  # until the time-out, the sleep, the failure, and the end
    assert journal == ["charge", None, None, None, "ship"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_signal_wakes_the_job_that_waits(journal: list[Any], *, is_async: bool) -> None:
    job = order(journal, is_async=is_async)
    with testing.fake() as jobs:
        job.perform_async()
        jobs.drain(until=3600)  # the wait goes on
        assert journal == ["charge"]
        assert [each.at is None for each in jobs] == [False]
        assert forkq.signal("approved", key=7, data="ann")
        assert not forkq.signal("approved", key=7, data="bob")
        assert [each.at is None for each in jobs] == [True]
        jobs.drain()
    assert journal == ["charge", "ann", "ann", "ann", "ship"]


def test_a_signal_for_one_job_is_for_one(journal: list[Any]) -> None:
    @forkq.job(name="waits")
    def waits(number: int) -> None:
        signal = forkq.wait_for("go", timeout=60)
        journal.append((number, signal and signal.data))

    with testing.fake() as jobs:
        forkq.signal("go", data="first", for_one=True)
        for number in range(3):
            waits.perform_async(number)
        jobs.drain(until=1)
        assert journal == [(0, "first")]
        forkq.signal("go", data="second", for_one=True)
        jobs.drain()
    assert journal == [(0, "first"), (1, "second"), (2, None)]


def test_inline_a_signal_runs_the_job_on(journal: list[Any]) -> None:
    job = order(journal, is_async=False)
    with testing.inline():
        job.perform_async()
        assert journal == ["charge"]
        forkq.signal("approved", key=7, data="ann")
        assert journal == ["charge", "ann"]


def test_a_job_that_is_done_is_forgotten(journal: list[Any]) -> None:
    @forkq.job(name="charges")
    def charges() -> None:
        forkq.step("charge", journal.append, "charge")

    with testing.fake() as jobs:
        for _ in range(2):
            charges.set({"jid": "0123456789abcdef01234567"}).perform_async()
            jobs.drain()
    assert journal == ["charge", "charge"]


@pytest.mark.parametrize(("value", "what"), [(object(), "JSON"), ("x" * 300_000, "300,002")])
def test_a_value_that_cannot_be_kept_is_dead_as_in_a_child(value: Any, what: str) -> None:
    @forkq.job(name="charges")
    def charges() -> None:
        forkq.step("charge", lambda: value)

    with testing.fake() as jobs:
        charges.perform_async()
        with pytest.raises(AssertionError, match=what):
            jobs.drain()
        assert len(jobs.dead) == 1


def test_a_value_without_room_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with Redis: the next run does not get it either."""
    monkeypatch.setattr(testing.steps, "MOST_BYTES", 1000)
    runs: list[str] = []

    @forkq.job(name="grows", retry=1)
    def grows() -> None:
        with pytest.raises(forkq.Dead, match="its value is not kept"):
            forkq.step("large", lambda: "v" * 1500)
        runs.append("over")
        if len(runs) == 1:
            raise ValueError("again")

    with testing.fake() as jobs:
        grows.perform_async()
        jobs.drain()
    assert runs == ["over", "over"]
