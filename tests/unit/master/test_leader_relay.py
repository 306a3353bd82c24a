"""Which child leads while the clock holds the lease, and what it is told, by the master; and what
it believes itself."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from forkq import process_state
from forkq.config.capsule import Capsule
from forkq.master.child_handle import CLOCK, ChildHandle, Slot
from forkq.master.leader_relay import Leadership
from forkq.runtime.pipe import Fact, Lead, Order, Reader, facts, orders


class Tree:
    """Children without processes, and the master's view of them: a clock and two that run jobs."""

    def __init__(self) -> None:
        self.leadership = Leadership()
        capsule = Capsule("default", (("default", 0),), 1)
        self.slots = [Slot("default.0", capsule), Slot("default.1", capsule), Slot(CLOCK, None)]
        self.children: dict[int, ChildHandle] = {}
        self._readers: dict[int, Reader[Order]] = {}
        self._pid = 100
        for slot in self.slots:
            self.spawn(slot)

    def spawn(self, slot: Slot) -> ChildHandle:
        """Fills a place; the child is ready at once."""
        self._pid += 1
        their_control, control = os.pipe()
        report, their_report = os.pipe()
        os.close(their_report)
        os.set_blocking(control, False)
        child = ChildHandle(slot, self._pid, None, control, Reader[Fact](report, facts), "x")
        child.state = "running"
        slot.child = self.children[child.pid] = child
        self._readers[child.pid] = Reader(their_control, orders)
        return child

    def bury(self, child: ChildHandle) -> None:
        """It has died, and was reaped."""
        del self.children[child.pid]
        child.slot.child = None
        child.close()
        os.close(self._readers.pop(child.pid).fd)

    def hold(self, until: float) -> None:
        """The clock has reported until when it holds the lease."""
        clock = self.slots[2].child
        assert clock is not None
        clock.leads_until = until

    def told(self) -> dict[str, list[float]]:
        """One round of the master's loop: child -> what it was told."""
        self.leadership.go_on(self.slots, self.children)
        found: dict[str, list[float]] = {}
        for pid, reader in self._readers.items():
            untils = [order.until for order in reader.read() if isinstance(order, Lead)]
            if untils:
                found[self.children[pid].name] = untils
        return found

    def child(self, number: int) -> ChildHandle:
        """Of one place."""
        child = self.slots[number].child
        assert child is not None
        return child

    def close(self) -> None:
        """Closes all pipes."""
        for child in list(self.children.values()):
            self.bury(child)


@pytest.fixture
def tree() -> Iterator[Tree]:
    tree = Tree()
    yield tree
    tree.close()


@pytest.fixture
def soon() -> float:
    return time.monotonic() + 10


def test_nobody_is_told_anything_while_the_clock_stands_by(tree: Tree) -> None:
    assert tree.told() == {}


def test_one_child_is_told_each_renewal_and_the_end(tree: Tree, soon: float) -> None:
    tree.hold(soon)
    assert tree.told() == {"default.0": [soon]}
    assert tree.told() == {}
    tree.hold(soon + 5)
    assert tree.told() == {"default.0": [soon + 5]}
    tree.hold(0.0)
    assert tree.told() == {"default.0": [0.0]}


def test_when_the_leading_child_is_dead_another_is_told(tree: Tree, soon: float) -> None:
    tree.hold(soon)
    tree.told()
    tree.bury(tree.child(0))
    assert tree.told() == {"default.1": [soon]}


def test_the_replacement_of_the_dead_does_not_take_the_lead_from_its_heir(
    tree: Tree, soon: float
) -> None:
    tree.hold(soon)
    tree.told()
    tree.bury(tree.child(0))
    tree.told()
    tree.spawn(tree.slots[0])
    tree.hold(soon + 5)
    assert tree.told() == {"default.1": [soon + 5]}


@pytest.mark.parametrize("state", ["quiet", "retiring", "stopping"])
def test_when_the_leading_child_has_gone_quiet_another_is_told(
    tree: Tree, soon: float, state: str
) -> None:
    """It has reported so itself: `is_leader` was false there before."""
    tree.hold(soon)
    tree.told()
    tree.child(0).state = state  # type: ignore[assignment]
    assert tree.told() == {"default.1": [soon]}


def test_a_child_that_is_silent_keeps_the_lead(tree: Tree, soon: float) -> None:
    """Nobody knows whether it still believes that it leads."""
    tree.hold(soon)
    tree.told()
    tree.hold(soon + 5)
    assert list(tree.told()) == ["default.0"]


def test_when_the_clock_dies_the_lead_ends_at_once(tree: Tree, soon: float) -> None:
    """Any clock of this host may see that it is dead, and take the lease."""
    tree.hold(soon)
    tree.told()
    tree.bury(tree.child(2))
    assert tree.told() == {"default.0": [0.0]}
    tree.spawn(tree.slots[2])
    tree.hold(soon + 5)
    assert tree.told() == {"default.0": [soon + 5]}


def test_nobody_leads_where_no_child_runs_jobs(tree: Tree, soon: float) -> None:
    tree.child(0).state = "booting"
    tree.child(1).state = "quiet"
    tree.hold(soon)
    assert tree.told() == {}
    tree.child(0).state = "running"
    assert tree.told() == {"default.0": [soon]}


# What the child makes of it


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_state, "_stopping", False)
    monkeypatch.setattr(process_state, "_leads_until", 0.0)


@pytest.mark.usefixtures("fresh")
def test_it_leads_until_the_time_it_was_told_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not process_state.is_leader()
    at = time.monotonic()
    process_state.lead(at + 5)
    assert process_state.is_leader()
    monkeypatch.setattr(time, "monotonic", lambda: at + 5.001)
    assert not process_state.is_leader()


@pytest.mark.usefixtures("fresh")
def test_it_is_news_to_lead_and_none_to_go_on_leading() -> None:
    soon = time.monotonic() + 5
    assert [process_state.lead(until) for until in (soon, soon + 5, 0.0, soon)] == [
        True, False, False, True
    ]  # fmt: skip
    process_state.lead(0.0)
    assert not process_state.is_leader()


@pytest.mark.usefixtures("fresh")
def test_a_child_that_goes_quiet_leads_no_more_whatever_it_was_told() -> None:
    soon = time.monotonic() + 5
    process_state.lead(soon)
    process_state.announce_stopping()
    assert not process_state.is_leader()
    assert not process_state.lead(soon + 5)
    assert not process_state.is_leader()
