"""Flows in tests without Redis: ``drain`` and ``inline`` run them to their ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import forkq
from forkq import registry, testing

ran: list[Any] = []


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_jobs", {})
    ran.clear()
    yield
    ran.clear()


def made(name: str, **options: Any) -> Any:
    def perform(*args: Any) -> list[Any]:
        ran.append((name, *args))
        if "bad" in args:
            raise ValueError(name)
        return list(args)

    return forkq.job(name=name, **{"retry": 0, **options})(perform)


def graph(job: Any, **more: Any) -> forkq.Flow:
    flow = forkq.Flow("graph", **more)
    flow.add("first", job.s(1))
    flow.add("left", job.s(flow.result("first"), 2), after=["first"])
    flow.add("right", job.s(forkq.BEFORE, 3), after=["first"])
    flow.add("end", job.s(forkq.BEFORE), after=["left", "right"])
    return flow


@pytest.mark.parametrize("mode", ["fake", "inline"])
def test_a_flow_runs_to_its_end(mode: str) -> None:
    with getattr(testing, mode)():
        flow = graph(made("job"), on_success=made("told").s("success"))
        flow.push()
        if mode == "fake":
            assert len(testing.recorded()) == 1
            with pytest.raises(AssertionError, match=r"call `forkq.testing.drain\(\)` before"):
                flow.get("end")
            testing.drain()
        assert flow.get("end", timeout=1) == [[[[1], 2], [[1], 3]]]
        assert ran[-1] == ("told", "success")
        assert len(ran) == 5


def test_a_bad_end_waits_cancels_and_runs() -> None:
    with testing.fake():
        job, told = made("job"), made("told")
        flow = forkq.Flow("", on_finish=told.s("finish"), on_success=told.s("success"))
        flow.add("bad", job.s("bad"))
        flow.add("cancelled", job.s(1), after=["bad"], on_failure="cancel")
        flow.add("behind", job.s(2), after=["cancelled"], on_failure="run")
        flow.add("runs", job.s(flow.result("bad"), 3), after=["bad"], on_failure="run")
        flow.push()
        testing.drain(check=False)
        assert [one[1:] for one in ran] == [("bad",), (2,), (None, 3), ("finish",)]
        with pytest.raises(forkq.JobCancelled):
            flow.get("cancelled")
        with pytest.raises(forkq.JobFailed):
            flow.get("bad")


def test_a_cancelled_flow_starts_nothing_more() -> None:
    with testing.fake():
        flow = graph(made("job"))
        flow.push()
        flow.cancel()
        testing.drain()
        assert ran == []
        with pytest.raises(forkq.JobCancelled):
            flow.get("end")


def test_a_step_adds_steps_once() -> None:
    with testing.fake():
        job = made("job")
        runs: list[int] = []

        @forkq.job(name="grow", retry=2)
        def grow() -> None:
            runs.append(1)
            flow = forkq.Flow.current()
            flow.add("more", job.s(len(runs)))
            flow.add("end", job.s(flow.result("more")), after=["more", "grow"])
            flow.push()
            if len(runs) == 1:
                raise ValueError("again")

        flow = forkq.Flow("", grow.s())
        flow.push()
        testing.drain()
        assert len(runs) == 2
        assert ran == [("job", 1), ("job", [1])]


def test_a_flow_takes_no_more_steps_than_one_in_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forkq.flows.flow.MOST", 3)
    with testing.fake():
        job = made("job")

        @forkq.job(name="grow", retry=0)
        def grow(count: int) -> None:
            flow = forkq.Flow.current()
            for number in range(count):
                flow.add(f"new-{number}", job.s(number))
            flow.push()

        forkq.Flow("", grow.s(2)).push()
        testing.drain()
        assert ran == [("job", 0), ("job", 1)]
        forkq.Flow("", grow.s(3)).push()
        with pytest.raises(AssertionError, match="3 steps at most: 'new-2' is one more"):
            testing.drain()
        assert len(ran) == 2
