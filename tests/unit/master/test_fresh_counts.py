"""The counts that a command asks for: each child reports at once, and the file says when."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, cast

import pytest

from forkq.config.capsule import Capsule
from forkq.master.child_handle import ChildHandle
from forkq.master.children import Children
from forkq.master.fresh_counts import FreshCounts
from forkq.master.slot import Slot
from forkq.runtime.pipe import Beat, Fact, Order, PipeReader, Ready, Report, facts, orders


class ManyChildren(list[ChildHandle]):
    """As much of Children as FreshCounts uses."""

    @property
    def by_pid(self) -> dict[int, ChildHandle]:
        return {child.pid: child for child in self}


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def child(pid: int, control: int, ready: Ready) -> ChildHandle:
    slot = Slot("default.0", Capsule("default", (("default", 0),), 5))
    handle = ChildHandle(slot, pid, None, control, PipeReader[Fact](0, facts), "h:1:a")
    handle._apply(ready)
    return handle


def test_the_counts_are_fresh_when_each_child_that_knows_the_order_has_answered(
    pipe: tuple[int, int],
) -> None:
    """A child of an older version would not understand it, and take the pipe for broken."""
    new, old = child(1, pipe[1], Ready("h:1:a", reports=True)), child(2, -1, Ready("h:2:a"))
    fresh = FreshCounts(cast(Children, ManyChildren([new, old])))
    assert fresh.reported_at == 0.0
    fresh.ask()
    [order] = cast(list[Any], PipeReader[Order](pipe[0], orders).read())
    assert type(order) is Report
    new._apply(Beat(0, "running", 6, 1))  # was on its way already
    assert fresh.reported_at == 0.0
    new._apply(Beat(0, "running", 7, 1, asked_at=order.asked_at))
    assert fresh.reported_at == order.asked_at
    assert new.processed == 7


def test_a_child_that_has_ended_is_not_waited_for(pipe: tuple[int, int]) -> None:
    children = ManyChildren([child(1, pipe[1], Ready("h:1:a", reports=True))])
    fresh = FreshCounts(cast(Children, children))
    fresh.ask()
    assert fresh.reported_at == 0.0
    children.clear()
    assert fresh.reported_at > 0.0
