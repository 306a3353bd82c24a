"""Which child the master lets lead while the clock holds the leader's lease, and when that child
takes itself for the leader."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from forkq import process_state
from forkq.config.capsule import Capsule
from forkq.config.shards import DEFAULT_SHARD
from forkq.master.child_handle import ChildHandle
from forkq.master.relays import LeaderRelay
from forkq.master.slot import CLOCK, Slot, Slots
from forkq.runtime.pipe import Lead, Order, PipeReader
from tests.unit.master.handles import make, tell


class Tree:
    """Handles of children without processes: two that run jobs, and a clock."""

    def __init__(self) -> None:
        self.relay = LeaderRelay()
        capsule = Capsule("default", (("default", 0),), 1)
        names = ("default.0", "default.1", CLOCK)
        self.slots = Slots(Slot(name, None if name == CLOCK else capsule) for name in names)
        self.by_pid: dict[int, ChildHandle] = {}
        self._readers: dict[int, PipeReader[Order]] = {}
        self._pid = 100
        for slot in self.slots:
            self.spawn(slot)

    def spawn(self, slot: Slot) -> ChildHandle:
        """Fills a slot; the child runs at once."""
        self._pid += 1
        child, self._readers[self._pid] = make(slot, self._pid, "x")
        tell(child, state="running")
        self.by_pid[child.pid] = child
        self.slots.put(child)
        return child

    def reap(self, child: ChildHandle) -> None:
        """The child has died, and the master has reaped it."""
        del self.by_pid[child.pid]
        self.slots.empty(child)
        child.close()
        os.close(self._readers.pop(child.pid).fd)

    def hold(self, until: float) -> None:
        """The clock has reported that it holds the lease until then."""
        self.child(2).told.leads_until = until

    def advance(self) -> dict[str, list[float]]:
        """One turn of the master's loop. Returns which orders the children got: name -> the ends of
        the lease."""
        self.relay.advance(self.slots, self.by_pid)
        found: dict[str, list[float]] = {}
        for pid, reader in self._readers.items():
            untils = [order.until for order in reader.read() if isinstance(order, Lead)]
            if untils:
                found[self.by_pid[pid].name] = untils
        return found

    def child(self, number: int) -> ChildHandle:
        """The child in one slot."""
        child = self.slots.child(self.slots.ordinary[number])
        assert child is not None
        return child

    def close(self) -> None:
        """Closes all pipes."""
        for child in list(self.by_pid.values()):
            self.reap(child)


@pytest.fixture
def tree() -> Iterator[Tree]:
    tree = Tree()
    yield tree
    tree.close()


@pytest.fixture
def soon() -> float:
    return time.monotonic() + 10


def test_no_child_gets_an_order_while_the_clock_holds_no_lease(tree: Tree) -> None:
    assert tree.advance() == {}


def test_one_child_gets_each_renewal_and_the_end(tree: Tree, soon: float) -> None:
    tree.hold(soon)
    assert tree.advance() == {"default.0": [soon]}
    assert tree.advance() == {}
    tree.hold(soon + 5)
    assert tree.advance() == {"default.0": [soon + 5]}
    tree.hold(0.0)
    assert tree.advance() == {"default.0": [0.0]}


def test_when_the_leading_child_is_dead_another_leads(tree: Tree, soon: float) -> None:
    tree.hold(soon)
    tree.advance()
    tree.reap(tree.child(0))
    assert tree.advance() == {"default.1": [soon]}


def test_the_replacement_of_a_dead_leader_does_not_lead(tree: Tree, soon: float) -> None:
    tree.hold(soon)
    tree.advance()
    tree.reap(tree.child(0))
    tree.advance()
    tree.spawn(tree.slots.ordinary[0])
    tree.hold(soon + 5)
    assert tree.advance() == {"default.1": [soon + 5]}


@pytest.mark.parametrize("state", ["quiet", "retiring", "stopping"])
def test_when_the_leading_child_has_gone_quiet_another_leads(
    tree: Tree, soon: float, state: str
) -> None:
    """The child has reported it itself: `is_leader` was false there before."""
    tree.hold(soon)
    tree.advance()
    tell(tree.child(0), state=state)
    assert tree.advance() == {"default.1": [soon]}


def test_a_silent_child_goes_on_leading(tree: Tree, soon: float) -> None:
    """The master does not know whether the child still takes itself for the leader."""
    tree.hold(soon)
    tree.advance()
    tree.hold(soon + 5)
    assert list(tree.advance()) == ["default.0"]


def test_when_the_clock_dies_its_child_leads_no_more_at_once(tree: Tree, soon: float) -> None:
    """Another clock of this host may see that it is dead, and take the lease."""
    tree.hold(soon)
    tree.advance()
    tree.reap(tree.child(2))
    assert tree.advance() == {"default.0": [0.0]}
    tree.spawn(tree.slots.ordinary[2])
    tree.hold(soon + 5)
    assert tree.advance() == {"default.0": [soon + 5]}


def test_no_child_leads_while_none_runs_jobs(tree: Tree, soon: float) -> None:
    tell(tree.child(0), state="booting")
    tell(tree.child(1), state="quiet")
    tree.hold(soon)
    assert tree.advance() == {}
    tell(tree.child(0), state="running")
    assert tree.advance() == {"default.0": [soon]}


# In the child


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_state, "_stopping", False)
    monkeypatch.setattr(process_state, "_leads_until", 0.0)


@pytest.mark.usefixtures("fresh")
def test_it_leads_until_the_end_of_the_lease_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not process_state.is_leader()
    at = time.monotonic()
    process_state.set_leader_until(at + 5)
    assert process_state.is_leader()
    monkeypatch.setattr(time, "monotonic", lambda: at + 5.001)
    assert not process_state.is_leader()


@pytest.mark.usefixtures("fresh")
def test_lead_returns_true_only_when_the_child_begins_to_lead() -> None:
    soon = time.monotonic() + 5
    assert [process_state.set_leader_until(until) for until in (soon, soon + 5, 0.0, soon)] == [
        True, False, False, True
    ]  # fmt: skip
    process_state.set_leader_until(0.0)
    assert not process_state.is_leader()


@pytest.mark.usefixtures("fresh")
def test_a_child_that_goes_quiet_leads_no_more_even_with_a_new_lease() -> None:
    soon = time.monotonic() + 5
    process_state.set_leader_until(soon)
    process_state.announce_stopping()
    assert not process_state.is_leader()
    assert not process_state.set_leader_until(soon + 5)
    assert not process_state.is_leader()


def test_the_lease_of_the_default_shard_counts_and_no_other(tree: Tree, soon: float) -> None:
    """Each shard has a clock that holds a lease there; one process is the leader of all."""
    of_mail = tree.spawn(Slot(f"{CLOCK}@mail", None, clock_of="mail"))
    of_mail.told.leads_until = soon + 5
    assert tree.advance() == {}
    of_default = tree.spawn(Slot(CLOCK, None, clock_of=DEFAULT_SHARD))
    of_default.told.leads_until = soon
    assert tree.advance() == {"default.0": [soon]}
