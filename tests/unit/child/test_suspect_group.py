"""Which suspects run together in a solo child of an async capsule."""

from __future__ import annotations

from typing import Any, cast

from forkq.child.coroutine_jobs import SuspectGroup
from forkq.child.failure.ends import OpenEndings
from forkq.child.fetch.leases import Leases
from forkq.store.outage import Outage
from forkq.wire.lease import UnitOfWork
from forkq.wire.marks import most_together
from forkq.wire.times import now
from tests.support.recorded_log import RecordedLog


class Child:
    """A group, and the leases of its child."""

    def __init__(self, most: int = 32) -> None:
        log = RecordedLog()
        self.leases = Leases(most, OpenEndings(log, Outage(log)))
        self.woken = 0
        self.group = SuspectGroup(self.leases, most, self._wake)
        self._number = 0

    def _wake(self) -> None:
        self.woken += 1

    def fetch(self) -> UnitOfWork:
        self._number += 1
        unit = UnitOfWork(1, "q", self._number, b"")
        self.leases.add([unit])
        return unit

    def admit(self, bound: int) -> UnitOfWork | None:
        unit = self.fetch()
        if self.group.admit(unit, bound):
            return unit
        self.leases.end(unit, None)
        return None

    def end(self, unit: UnitOfWork | None) -> None:
        self.leases.end(cast("UnitOfWork", unit), None)
        self.group.note_end()


def test_the_first_one_says_how_many_run_together() -> None:
    child = Child()
    assert child.leases.capacity == 1
    assert child.admit(5)
    assert (child.leases.capacity, child.woken) == (5, 1)
    assert all(child.admit(8) for _ in range(4))
    assert child.admit(8) is None, "the first one may run beside four"


def test_one_that_must_run_alone_waits_until_the_group_has_ended() -> None:
    child = Child()
    running = [child.admit(8), child.admit(8)]
    assert child.admit(1) is None
    assert child.leases.capacity == 2, "nothing more is fetched"
    child.end(running[0])
    assert child.leases.capacity == 1
    assert child.admit(8) is None, "the one that waits comes first"
    child.end(running[1])
    assert child.leases.capacity == 1
    assert child.admit(1)
    assert child.admit(8) is None


def test_a_group_is_never_larger_than_its_child_allows() -> None:
    child = Child(most=1)
    first = child.admit(8)
    assert child.admit(8) is None
    child.end(first)
    assert child.admit(8)


def test_one_that_asks_twice_is_one() -> None:
    """A large payload is sorted again when it was read."""
    child = Child()
    unit = child.fetch()
    assert child.group.admit(unit, 1)
    assert child.group.admit(unit, 1)


def test_the_newest_record_says_how_many_run_together() -> None:
    def marks(*crashes: Any) -> dict[str, Any]:
        return {"suspect": True, "crashes": list(crashes)}

    at = now()
    assert most_together(marks({"at": at, "group": 31})) == 15
    assert most_together(marks({"at": at, "group": 2})) == 1
    assert most_together(marks({"at": at, "group": 31}, {"at": at, "signal": 11})) == 1
    assert most_together(marks({"at": at, "group": 31}, {"at": at, "alone": True})) == 1
    assert most_together(marks({"at": at, "tree": True}, {"at": at, "group": 9})) == 1
    for odd in (None, 3, {}, {"crashes": 3}, marks(3), marks({"group": "many"})):
        assert most_together(odd) == 1
