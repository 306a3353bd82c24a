"""``freeze_time``: the time of forkq moves when a test says so."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest

import forkq
from forkq import registry, testing
from forkq.testing import freeze_time
from forkq.wire.times import now

ran: list[str] = []


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_jobs", {})
    ran.clear()
    yield
    ran.clear()


def test_a_sleep_passes_when_the_time_is_moved() -> None:
    @forkq.job
    def naps() -> None:
        forkq.step("before", ran.append, "before")
        forkq.sleep("nap", timedelta(days=3))
        ran.append("after")

    with testing.fake() as jobs, freeze_time() as time:
        naps.perform_async()
        assert jobs.drain() == 1
        time.move(timedelta(days=2, hours=23))
        assert jobs.drain() == 0
        time.move(3601)
        assert jobs.drain() == 1
    assert ran == ["before", "after"]


def test_a_signal_before_the_time_out_and_one_after_it() -> None:
    @forkq.job
    def waits(key: int) -> None:
        found = forkq.wait_for("approved", key=key, timeout=60)
        ran.append("none" if found is None else found.data)

    with testing.fake() as jobs, freeze_time() as time:
        waits.perform_async(1)
        waits.perform_async(2)
        jobs.drain()
        time.move(59)
        forkq.signal("approved", key=1, data="in time")
        jobs.drain()
        time.move(2)
        forkq.signal("approved", key=2, data="late")
        jobs.drain()
    assert ran == ["in time", "none"]


def test_it_stands_still_at_any_moment_and_is_set_back() -> None:
    @forkq.job
    def later() -> None:
        ran.append("later")

    noon = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
    before = now()
    with testing.fake() as jobs, freeze_time(noon) as time:
        assert now() == time.now == pytest.approx(noon.timestamp(), abs=1e-5)
        assert now() == time.now
        later.perform_in(10)
        assert jobs.drain() == 0
        assert jobs.drain(until=60) == 1
        assert time.now == pytest.approx(noon.timestamp(), abs=1e-5)  # as it was before
        with freeze_time(5):
            assert now() == pytest.approx(noon.timestamp() + 5, abs=1e-5)
        time.move(noon + timedelta(seconds=9))
        assert len(jobs) == 0
    assert before <= now() < before + 600
    with pytest.raises(forkq.InvalidJob, match="no time zone"), freeze_time(datetime(2030, 1, 1)):
        pass
