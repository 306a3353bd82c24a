"""What the master's next program knows of the children that it adopts."""

from __future__ import annotations

import os
from contextlib import suppress

import msgspec
import pytest

from forkq.config.capsule import Capsule
from forkq.config.recycling import Recycling
from forkq.master.child_handle import ChildHandle
from forkq.master.handover import described, revived
from forkq.master.slot import Slot
from forkq.runtime.pipe import Fact, PipeReader, facts


@pytest.fixture
def handle() -> ChildHandle:
    """A solo child: in no slot of the configuration, as a child that retires."""
    limits = Recycling(hard_max_memory=200 << 20)
    capsule = Capsule("default", (("default", 0),), 5, recycling=limits)
    slot = Slot("default.solo0", capsule, solo=True)
    return ChildHandle(
        slot, os.getpid(), None, -1, PipeReader[Fact](0, facts), "h:1:solo", was_ready=True
    )


def test_a_child_outside_of_the_slots_keeps_its_limits(handle: ChildHandle) -> None:
    """Otherwise a job that takes all memory would do so unhindered after a rolling restart."""
    [record] = msgspec.json.decode(msgspec.json.encode(described([handle])))
    child = revived(record, {})
    with suppress(TypeError):
        os.close(child.pidfd)  # type: ignore[arg-type]
    assert child.slot.capsule is not None
    assert child.slot.capsule.recycling == Recycling(hard_max_memory=200 << 20)
    assert child.part_of_limits == handle.part_of_limits


@pytest.mark.parametrize("is_clock", [False, True])
def test_a_child_outside_of_the_slots_keeps_its_shard(handle: ChildHandle, is_clock: bool) -> None:
    """Otherwise its jobs would be looked for in another Redis when it dies."""
    handle.slot = Slot("default@mail.solo0", Capsule("default@mail", shard="mail"))
    if is_clock:
        handle.slot = Slot("clock@mail", None, clock_of="mail")
    [record] = msgspec.json.decode(msgspec.json.encode(described([handle])))
    child = revived(record, {})
    with suppress(TypeError):
        os.close(child.pidfd)  # type: ignore[arg-type]
    assert child.slot.shard == "mail"
