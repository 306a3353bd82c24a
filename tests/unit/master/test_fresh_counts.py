"""The counts that a command asks for: each child reports at once, and the file says when."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, cast

import pytest

from forkq.config.capsule import Capsule
from forkq.master.child_handle import ChildHandle
from forkq.master.children import Children
from forkq.master.relays import FreshCounts
from forkq.master.slot import CLOCK, Slot
from forkq.runtime.pipe import Order, PipeReader, SendBeat
from tests.unit.master.handles import get_ready, make, tell


class ManyChildren(list[ChildHandle]):
    """As much of Children as FreshCounts uses."""

    def __init__(self) -> None:
        super().__init__()
        self._made: list[tuple[ChildHandle, PipeReader[Order]]] = []

    def fork(self, slot: Slot) -> tuple[ChildHandle, PipeReader[Order]]:
        """A child in its boot, with what the master tells it."""
        made = make(slot, len(self._made) + 1, "h:1:a")
        self._made.append(made)
        self.append(made[0])
        return made

    def close(self) -> None:
        """Closes all pipes."""
        for child, reader in self._made:
            child.close()
            os.close(reader.fd)


@pytest.fixture
def children() -> Iterator[ManyChildren]:
    made = ManyChildren()
    yield made
    made.close()


SLOT = Slot("default.0", Capsule("default", (("default", 0),), 5))


def test_the_counts_are_fresh_when_each_child_that_has_some_has_answered(
    children: ManyChildren,
) -> None:
    """The clock has none, nor has a child in its boot."""
    (child, told), (clock, told_clock), (_, told_booting) = (
        children.fork(slot) for slot in (SLOT, Slot(CLOCK, None), SLOT)
    )
    get_ready(child)
    get_ready(clock)
    fresh = FreshCounts(cast(Children, children))
    assert fresh.note_answers() == 0.0
    fresh.ask()
    [order] = cast(list[Any], told.read())
    assert type(order) is SendBeat
    assert told_clock.read() == told_booting.read() == []
    tell(child, processed=6)  # was on its way already
    assert fresh.note_answers() == 0.0
    tell(child, processed=7, asked_at=order.asked_at)
    assert fresh.note_answers() == order.asked_at
    assert child.beat.processed == 7


def test_a_child_that_has_ended_is_not_waited_for(children: ManyChildren) -> None:
    get_ready(children.fork(SLOT)[0])
    fresh = FreshCounts(cast(Children, children))
    fresh.ask()
    assert fresh.note_answers() == 0.0
    children.clear()
    assert fresh.note_answers() > 0.0
