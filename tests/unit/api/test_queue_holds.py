"""What holds a queue, from counts of who serves it; made-up values, no Redis."""

from __future__ import annotations

from typing import Any

import pytest

from forkq.api import Process, QueueState
from forkq.api.queue_report import Crew, holds
from forkq.screens.flow import QueueFlow, Sample


def process(*queues: str, **fields: Any) -> Process:
    values: dict[str, Any] = {
        "identity": "h:1:a", "hostname": "h", "pid": 1, "tag": "", "queues": queues,
        "concurrency": 5, "busy": 0, "quiet": False, "started_at": 0.0, "beat": 0.0, "rss": 0,
        "rtt_us": 0, "labels": (), "version": "forkq 1", "master": 9,
    }  # fmt: skip
    return Process(**{**values, **fields})


def state(name: str = "mail", **fields: Any) -> QueueState:
    values: dict[str, Any] = {
        "name": name, "size": 3, "busy": 0, "paused": False, "limit": None,
        "process_limit": None, "rate": None, "burst": None, "tokens": None, "blocking": False,
        "changed": (),
    }  # fmt: skip
    return QueueState(**{**values, **fields})


def kinds(one: QueueState, *processes: Process, blocking: tuple[QueueState, ...] = ()) -> list[str]:
    return [h.kind for h in holds(one, Crew.of(processes), blocking, process_limit_reached=False)]


def test_a_process_that_is_able_is_enough() -> None:
    lost = process("mail", silent_for=40.0)
    refused = process("mail", refused="no permission")
    assert kinds(state(), lost, refused, process("mail", quiet=True), process("mail")) == []
    assert kinds(state(), lost, lost) == ["silent"]
    assert kinds(state(), lost, refused) == ["refused"]
    assert kinds(state(), lost, process("mail", busy=5)) == ["full"]


@pytest.mark.parametrize(
    ("processes", "said"),
    [
        ([process("mail", quiet=True)], "the only process that serves it is quiet"),
        ([process("mail", quiet=True)] * 2, "all 2 processes that serve it are quiet"),
        ([process("mail", concurrency=1, busy=1)], "the only thread that serves it is busy"),
        ([process("mail", busy=5)], "all 5 threads that serve it are busy"),
    ],
)
def test_one_that_serves_it_is_not_all_of_them(processes: list[Process], said: str) -> None:
    [hold] = holds(state(), Crew.of(processes), (), process_limit_reached=False)
    assert hold.text == said


@pytest.mark.parametrize("blocking", [True, ("ma*",)])
def test_a_blocking_queue_holds_those_after_it(blocking: bool | tuple[str, ...]) -> None:
    first = state("first", busy=2, blocking=blocking)
    assert kinds(state(), process("first", "mail"), blocking=(first,)) == ["blocked"]
    assert kinds(state(), process("mail", "first"), blocking=(first,)) == []
    both = (process("first", "mail"), process("mail"))
    assert kinds(state(), *both, blocking=(first,)) == [], "another process may take its jobs"
    idle = state("first", blocking=blocking)
    assert kinds(state(), process("first", "mail"), blocking=(idle,)) == []


def test_suspects_that_no_process_of_forkq_runs() -> None:
    [hold] = holds(
        state(suspects=3), Crew.of([process("mail", master=0)]), (), process_limit_reached=False
    )
    assert hold.kind == "alone"
    assert hold.text.endswith("which no process that serves it has")


def flow_of(*samples: tuple[float, int, int, float, bool]) -> QueueFlow:
    flow = QueueFlow()
    for sample in samples:
        flow.add(Sample(*sample))
    return flow


def test_a_queue_stands_still_while_threads_are_free() -> None:
    still = flow_of((0, 9, 0, 50, True), (20, 9, 0, 50, True), (40, 12, 0, 50, True)).flow()
    assert (still.moves, still.still, still.a_minute) == (False, 40, 0)
    held = flow_of((0, 9, 0, 50, True), (20, 9, 0, 50, False), (40, 9, 0, 50, True)).flow()
    assert held.still == 0


def test_what_shows_that_a_job_has_left() -> None:
    """Fewer jobs, a younger one at the head, or what children say that they began."""
    assert flow_of((0, 9, 0, 50, True), (20, 8, 0, 50, True)).flow().moves
    assert flow_of((0, 9, 0, 50, True), (20, 9, 0, 60, True)).flow().moves
    began = flow_of((0, 9, 100, 50, True), (20, 9, 130, 50, True)).flow()
    assert (began.moves, began.still, began.a_minute) == (True, 0, 90)
    assert not flow_of((0, 0, 0, 50, False), (20, 9, 0, 60, True)).flow().moves, "only a push"


def test_only_the_last_minute_counts() -> None:
    flow = flow_of((0, 9, 0, 50, True), (20, 8, 0, 50, True), (90, 8, 0, 50, True)).flow()
    assert (flow.moves, flow.still) == (False, 70)
