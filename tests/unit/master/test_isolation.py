"""Which solo child gets which suspect, and when solo children are forked and ended; with handles
that have no process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import cast

import pytest

from forkq.config.capsule import Capsule
from forkq.master import isolation
from forkq.master.child_handle import ChildHandle
from forkq.master.children import Children
from forkq.master.isolation import MOST_SOLO, Isolation
from forkq.master.slot import Slot
from forkq.runtime.pipe import (
    Adopt,
    Adopted,
    Fact,
    Order,
    Reader,
    Release,
    SoloFree,
    Stop,
    SuspectHeld,
    facts,
    orders,
)

CAPSULE = Capsule("default", (("mail", 0), ("tenant-*", 0)), 10)


class FakeChildren:
    """Stands for the master's children: it makes handles instead of processes."""

    def __init__(self) -> None:
        self.by_pid: dict[int, ChildHandle] = {}
        self._dead: list[ChildHandle] = []
        self.solo_slots: list[Slot] = []
        self._readers: dict[int, Reader[Order]] = {}

    def __iter__(self) -> Iterator[ChildHandle]:
        return iter(list(self.by_pid.values()))

    def fill(self, slot: Slot) -> None:
        """A child that is ready at once."""
        pid = 100 + len(self._readers)
        child_control, control = os.pipe()
        report, child_report = os.pipe()
        os.close(child_report)
        os.set_blocking(control, False)
        child = ChildHandle(slot, pid, None, control, Reader[Fact](report, facts), f"h:{pid}:solo")
        child.was_ready, child.state = True, "running"
        slot.child = self.by_pid[pid] = child
        self._readers[pid] = Reader(child_control, orders)

    def orders(self, child: ChildHandle) -> list[Order]:
        """What the master has told that child."""
        return self._readers[child.pid].read()

    def die(self, child: ChildHandle) -> None:
        """It has been reaped."""
        del self.by_pid[child.pid]
        child.slot.child = None
        self._dead.append(child)

    def close(self) -> None:
        """Closes all pipes."""
        for child in (*self, *self._dead):
            child.close()
        for reader in self._readers.values():
            os.close(reader.fd)


class Ward:
    """One capsule with an ordinary child, which holds suspects."""

    def __init__(self) -> None:
        self.children = FakeChildren()
        self.isolation = Isolation((CAPSULE,), cast("Children", self.children))
        self.holder = self.new_holder()

    def new_holder(self) -> ChildHandle:
        """An ordinary child."""
        slot = Slot("default.0", CAPSULE)
        self.children.fill(slot)
        assert slot.child is not None
        return slot.child

    def hold(self, sequence: int, queue: str = "mail") -> None:
        """The holder reports a suspect."""
        self.holder.isolation_facts.append(SuspectHeld(queue, sequence))

    def turn(self, *, quiet: bool = False) -> None:
        """Two turns of the master's loop: forks, then names."""
        for _ in range(2):
            self.isolation.advance(quiet=quiet)

    def solo(self) -> list[ChildHandle]:
        """The living solo children."""
        return [child for child in self.children if child.slot.solo]


@pytest.fixture
def ward() -> Iterator[Ward]:
    made = Ward()
    yield made
    made.children.close()


def test_a_solo_child_that_cannot_boot_is_missing_while_a_suspect_waits(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ward.children, "fill", lambda _: None)
    monkeypatch.setattr(isolation, "_LINGER", 0.0)
    slot = ward.children.solo_slots[0]
    slot.boot_failures, slot.reason = 1, "OSError: no database"
    ward.hold(1)
    ward.turn()
    assert slot.missing == "default.solo0 cannot boot: OSError: no database"
    ward.children.die(ward.holder)  # the suspect goes elsewhere
    ward.turn()
    assert not slot.missing


def test_each_suspect_gets_a_solo_child_up_to_the_most(ward: Ward) -> None:
    for sequence in range(MOST_SOLO + 2):
        ward.hold(sequence)
    ward.turn()
    named = [order for child in ward.solo() for order in ward.children.orders(child)]
    identity = ward.holder.identity
    assert named == [Adopt(identity, "mail", sequence) for sequence in range(MOST_SOLO)]


def test_a_solo_child_that_is_free_gets_the_next_one_and_no_other_is_forked(ward: Ward) -> None:
    ward.hold(1)
    ward.turn()
    [solo] = ward.solo()
    solo.isolation_facts += [Adopted(found=True), SoloFree()]
    ward.hold(2)
    ward.turn()
    assert ward.solo() == [solo]
    assert [type(order) for order in ward.children.orders(solo)] == [Adopt, Adopt]
    assert ward.children.orders(ward.holder) == [Release(1)]


def test_a_lease_that_is_gone_frees_both(ward: Ward) -> None:
    ward.hold(1)
    ward.turn()
    [solo] = ward.solo()
    solo.isolation_facts.append(Adopted(found=False))
    ward.hold(2)
    ward.turn()
    assert len(ward.children.orders(solo)) == 2
    assert ward.children.orders(ward.holder) == [Release(1)]


@pytest.mark.parametrize("adopted", [False, True])
def test_what_a_dead_solo_child_had_not_taken_over_goes_to_another_one(
    ward: Ward, adopted: bool
) -> None:
    """What it had taken over is the rescue's."""
    ward.hold(1)
    ward.turn()
    [dead] = ward.solo()
    if adopted:
        dead.isolation_facts.append(Adopted(found=True))
        ward.turn()
    ward.children.die(dead)
    ward.turn()
    assert len(ward.solo()) == (0 if adopted else 1)


def test_the_suspects_of_a_dead_holder_are_forgotten(ward: Ward) -> None:
    for sequence in range(MOST_SOLO + 1):
        ward.hold(sequence)
    ward.turn()
    ward.children.die(ward.holder)
    solo = ward.solo()[0]
    ward.children.orders(solo)
    solo.isolation_facts += [Adopted(found=False)]
    ward.turn()
    assert ward.children.orders(solo) == []


@pytest.mark.parametrize(("queue", "taken"), [("mail", 1), ("tenant-7", 1), ("dropped", 0)])
def test_a_suspect_of_a_queue_that_the_capsule_does_not_serve_stays_with_its_holder(
    ward: Ward, queue: str, taken: int
) -> None:
    """A rolling restart may have dropped the queue: a solo child could not acknowledge there."""
    ward.hold(1, queue)
    ward.turn()
    assert len(ward.solo()) == taken


def test_solo_children_without_a_job_end_after_a_while_and_at_once_in_a_quiet_tree(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    ward.hold(1)
    ward.turn()
    [solo] = ward.solo()
    solo.isolation_facts += [Adopted(found=True), SoloFree()]
    ward.turn()
    ward.children.orders(solo)
    ward.turn()
    assert ward.children.orders(solo) == []
    monkeypatch.setattr(isolation, "_LINGER", 0.0)
    ward.turn()
    assert ward.children.orders(solo) == [Stop(None)]
    ward.hold(2)
    ward.turn()
    other = ward.solo()[1]
    other.isolation_facts += [Adopted(found=True), SoloFree()]
    ward.turn(quiet=True)
    assert ward.children.orders(other)[-1] == Stop(None)


def test_a_quiet_solo_child_is_ended_and_another_one_runs_the_suspect(ward: Ward) -> None:
    ward.hold(1)
    ward.turn()
    [solo] = ward.solo()
    solo.state = "quiet"
    ward.turn()
    assert ward.children.orders(solo)[-1] == Stop(None)
    ward.children.die(solo)
    ward.turn()
    [other] = ward.solo()
    assert [type(order) for order in ward.children.orders(other)] == [Adopt]
