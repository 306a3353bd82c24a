"""Observers of jobs: called in order, and only for the events that they override."""

from __future__ import annotations

from forkq.child.failure.retry import Decision, Drop
from forkq.child.job_run import JobRun
from forkq.child.observers import JobObserver, Observers, SoloRuns
from forkq.store.watch.waker import Waker
from forkq.wire.lease import UnitOfWork

RUN = JobRun(UnitOfWork(1, "q", 1, b""))


class Recorder(JobObserver):
    """Notes its events in a list that it shares."""

    def __init__(self, name: str, events: list[str]) -> None:
        self._name = name
        self._events = events

    def done(self, run: JobRun) -> None:
        self._events.append(f"{self._name} done")

    def failed(self, run: JobRun, error: BaseException, decision: Decision) -> None:
        self._events.append(f"{self._name} failed: {error}")


def test_all_observers_are_called_in_their_order() -> None:
    events: list[str] = []
    observers = Observers([Recorder("first", events), Recorder("second", events)])
    for done in observers.done:
        done(RUN)
    for failed in observers.failed:
        failed(RUN, ValueError("boom"), Drop(None))
    assert events == ["first done", "second done", "first failed: boom", "second failed: boom"]


def test_an_event_that_no_observer_overrides_costs_no_call() -> None:
    observers = Observers([Recorder("only", []), JobObserver()])
    assert (observers.started, observers.interrupted) == ([], [])
    assert len(observers.done) == len(observers.failed) == 1


def test_an_observer_of_marked_jobs_costs_others_no_call() -> None:
    class OfMarkedJobs(Recorder):
        only_marked = True

    events: list[str] = []
    observers = Observers([OfMarkedJobs("first", events), Recorder("second", events)])
    for done in observers.done:
        done(RUN)
    assert events == ["second done"]
    for done in observers.done_marked:
        done(RUN)
    assert events == ["second done", "first done", "second done"]


def test_a_solo_child_tells_when_its_run_is_a_long_one() -> None:
    """The payload knows for how long the job had run before it crashed."""
    runs, run = SoloRuns(Waker()), JobRun(UnitOfWork(1, "q", 1, b"", taken=1000.0))
    run.loaded({"class": "J", "forkq": {"suspect": True, "crashes": [{"ran": 90.0}]}})
    runs.started(run)
    assert runs.long_at == 1900.0
    runs.done(run)
    assert runs.long_at == 0.0
