"""When solo children are forked and ended, and when another child runs the suspects; with handles
that have no process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import cast

import pytest

from forkq.config.capsule import MOST_SOLO, Capsule
from forkq.master import isolation
from forkq.master.child_handle import ChildHandle
from forkq.master.children import Children
from forkq.master.isolation import Isolation
from forkq.master.slot import Slot, Slots
from forkq.runtime.deadlines import DeadlineTable
from forkq.runtime.pipe import Order, PipeReader, RunSuspects, Stop
from tests.unit.master.handles import get_ready, make, tell

CAPSULE = Capsule("default", (("mail", 0), ("tenant-*", 0)), 10)


class FakeChildren:
    """Stands for the master's children: it makes handles instead of processes."""

    def __init__(self) -> None:
        self.by_pid: dict[int, ChildHandle] = {}
        self.slots = Slots([Slot("default.0", CAPSULE), Slot("clock", None)])
        self.deaths = self
        self.rescued: set[str] = set()
        self._dead: list[ChildHandle] = []
        self._readers: dict[int, PipeReader[Order]] = {}

    def __iter__(self) -> Iterator[ChildHandle]:
        return iter(list(self.by_pid.values()))

    def take_suspects(self) -> set[str]:
        rescued, self.rescued = self.rescued, set()
        return rescued

    def fill(self, slot: Slot) -> None:
        """A child that is ready at once."""
        pid = 1_000_000_000 + len(self._readers)  # no process has such a pid
        nonce = "soloaaaaaaaa" if slot.solo else "aaaaaaaaaaaa"
        child, self._readers[pid] = make(slot, pid, f"h:{pid}:{nonce}")
        get_ready(child)
        self.by_pid[pid] = child
        self.slots.put(child)

    def orders(self, child: ChildHandle) -> list[Order]:
        """What the master has told that child."""
        return self._readers[child.pid].read()

    def die(self, child: ChildHandle) -> None:
        """It has been reaped."""
        del self.by_pid[child.pid]
        self.slots.empty(child)
        self._dead.append(child)

    def close(self) -> None:
        """Closes all pipes."""
        for child in (*self, *self._dead):
            child.close()
        for reader in self._readers.values():
            os.close(reader.fd)


class Ward:
    """One capsule with an ordinary child and a clock. No time passes between two turns, unless a
    test says so."""

    def __init__(self, capsule: Capsule = CAPSULE, *more: Capsule) -> None:
        self.children = FakeChildren()
        self.free_memory = 1 << 40
        self.silent: set[ChildHandle] = set()
        self.capsules = (capsule, *more)
        self.children.slots.ordinary += [Slot(f"{one.name}.0", one) for one in more]
        self.isolation = self.next_program()
        for slot in self.children.slots:
            self.children.fill(slot)
        [self.ordinary, self.clock, *_] = self.children

    def next_program(self) -> Isolation:
        """The master's, which knows the children and nothing else."""
        children = cast("Children", self.children)
        self.isolation = Isolation(
            self.capsules, children, self.silent.__contains__, lambda: self.free_memory
        )
        return self.isolation

    def suspects(self, *, wait: bool) -> None:
        """The clock reports, for all capsules."""
        self.clock.told.suspects = tuple(one.name for one in self.capsules) if wait else ()

    def turn(self, *, quiet: bool = False) -> None:
        """Two turns of the master's loop."""
        for _ in range(2):
            self.isolation.advance(quiet=quiet)

    def solo(self) -> list[ChildHandle]:
        """The living solo children that are not told to end."""
        found = [child for child in self.children if child.slot.solo]
        return [child for child in found if child.ordered.stop_at is None]

    def all_busy(self) -> None:
        """Each solo child has a job."""
        for child in self.solo():
            tell(child, busy=1)


@pytest.fixture
def ward() -> Iterator[Ward]:
    made = Ward()
    yield made
    made.children.close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the master waits for has passed."""
    monkeypatch.setattr(isolation, "_LINGER", 0.0)
    monkeypatch.setattr(isolation, "_NEWS_TRAVELS", 0.0)


def test_the_clock_or_a_rescue_brings_one_solo_child(ward: Ward) -> None:
    ward.turn()
    assert ward.solo() == []
    ward.suspects(wait=True)
    ward.turn()
    assert [child.name for child in ward.solo()] == ["default.solo0"]
    other = Ward()
    other.children.rescued.add("default")
    other.turn()
    assert len(other.solo()) == 1
    other.children.close()


def test_more_are_forked_only_while_each_has_a_job_and_more_suspects_wait(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as many each time, up to the most."""
    monkeypatch.setattr(isolation, "_NEWS_TRAVELS", 0.0)
    ward.suspects(wait=True)
    ward.turn()
    for most in (1, 2, 4, 8, 10, 10):
        ward.turn()
        assert len(ward.solo()) == most
        ward.all_busy()
        ward.isolation.advance(quiet=False)
    assert CAPSULE.most_solo == 10


def test_the_master_waits_for_the_news_that_the_last_suspect_was_taken(ward: Ward) -> None:
    ward.suspects(wait=True)
    ward.turn()
    ward.all_busy()
    ward.turn()
    assert len(ward.solo()) == 1
    assert ward.isolation.due is not None


def test_how_many_run_side_by_side() -> None:
    assert Capsule("a", concurrency=5, workers=2).most_solo == 10
    assert Capsule("a", concurrency=50).most_solo == MOST_SOLO == 25
    assert Capsule("a", concurrency=2, solo_children=8).most_solo == 8


@pytest.mark.usefixtures("at_once")
def test_while_memory_is_short_only_one_suspect_runs(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "resident", lambda pid: 50 << 20)
    ward.free_memory = 49 << 20
    ward.suspects(wait=True)
    ward.turn()
    ward.all_busy()
    ward.turn()
    ward.turn()
    assert len(ward.solo()) == 1
    ward.free_memory = 51 << 20
    ward.turn()
    assert len(ward.solo()) == 2


@pytest.mark.usefixtures("at_once")
def test_suspects_that_run_for_long_take_no_place() -> None:
    """They tell when that is: ten times their own runs before the crash."""
    capsule = Capsule("default", CAPSULE.queues, 10, solo_children=1)
    small = Ward(capsule)
    small.suspects(wait=True)
    small.turn()
    for long_at in (0.0, time.monotonic() + 60.0):
        small.all_busy()
        [solo] = small.solo()
        tell(solo, long_at=long_at)
        small.turn()
        assert small.solo() == [solo]
    tell(solo, long_at=time.monotonic())
    small.turn()
    small.turn()
    assert len(small.solo()) == 2
    small.children.close()


@pytest.mark.usefixtures("at_once")
def test_a_suspect_that_holds_the_interpreter_keeps_no_other_one_waiting() -> None:
    """Its child cannot tell that it is busy. The memory that they share says that it has begun; a
    child that stays silent takes no place."""
    small = Ward(Capsule("default", CAPSULE.queues, 10, solo_children=2))
    small.suspects(wait=True)
    small.turn()
    [solo] = small.solo()
    DeadlineTable(solo.files.deadlines, 1).start_cells()[0][0] = 1
    small.turn()
    small.turn()
    assert len(small.solo()) == 2
    small.all_busy()
    small.turn()
    assert len(small.solo()) == 2
    small.silent.add(solo)
    small.turn()
    small.turn()
    assert len(small.solo()) == 3
    small.children.close()


@pytest.mark.usefixtures("at_once")
def test_idle_solo_children_end_but_one_as_long_as_suspects_wait(ward: Ward) -> None:
    """A paused queue costs one idle child, and no fork after the other."""
    ward.suspects(wait=True)
    ward.turn()
    ward.all_busy()
    ward.turn()
    ward.turn()
    assert len(ward.solo()) == 2
    for child in ward.solo():
        tell(child, busy=0)
    ward.turn()
    assert len(ward.solo()) == 1
    ward.turn()
    assert len(ward.solo()) == 1
    ward.suspects(wait=False)
    ward.turn()
    assert ward.solo() == []


def test_solo_children_linger_but_not_in_a_quiet_tree(ward: Ward) -> None:
    ward.suspects(wait=True)
    ward.turn()
    [solo] = ward.solo()
    ward.suspects(wait=False)
    ward.turn()
    assert ward.children.orders(solo) == []
    ward.turn(quiet=True)
    assert ward.children.orders(solo) == [Stop(None)]


def test_a_quiet_tree_has_nothing_due_while_a_suspect_holds_the_interpreter(ward: Ward) -> None:
    """The child cannot tell that it is quiet, and more suspects wait: the master sleeps."""
    ward.suspects(wait=True)
    ward.turn()
    ward.all_busy()
    ward.turn()
    assert ward.isolation.due is not None
    ward.turn(quiet=True)
    assert ward.isolation.due is None


def test_a_quiet_solo_child_is_ended_and_another_one_takes_its_place(ward: Ward) -> None:
    ward.suspects(wait=True)
    ward.turn()
    [solo] = ward.solo()
    tell(solo, state="quiet")
    ward.turn()
    assert ward.children.orders(solo) == [Stop(None)]
    assert len(ward.solo()) == 1


def test_no_solo_child_is_forked_before_an_ordinary_one_is_ready(ward: Ward) -> None:
    """It might take the port, or the memory, that this needs to boot."""
    ward.ordinary.told.ready_at = None
    ward.suspects(wait=True)
    ward.turn()
    assert ward.solo() == []
    get_ready(ward.ordinary)
    ward.turn()
    assert len(ward.solo()) == 1


def test_solo_children_without_a_job_make_room_for_an_ordinary_one_that_cannot_boot(
    ward: Ward,
) -> None:
    ward.suspects(wait=True)
    ward.turn()
    [solo] = ward.solo()
    ward.ordinary.told.ready_at = None
    ward.ordinary.slot.boot_failures = 1
    tell(solo, busy=1)
    ward.turn()
    assert ward.solo() == [solo]
    tell(solo, busy=0)
    ward.turn()
    assert ward.children.orders(solo) == [Stop(None)]
    assert ward.solo() == []


def test_a_solo_child_stays_while_jobs_kill_the_ordinary_children(ward: Ward) -> None:
    """Else none lives for long enough to run a suspect, and no death counts against anything."""
    ward.suspects(wait=True)
    ward.turn()
    [solo] = ward.solo()
    ward.children.die(ward.ordinary)
    ward.turn()
    assert ward.solo() == [solo]
    ward.children.fill(ward.ordinary.slot)
    following = ward.children.slots.child(ward.ordinary.slot)
    assert following is not None
    following.told.ready_at = None
    ward.turn()
    assert ward.solo() == [solo]
    assert ward.children.orders(solo) == []


def test_a_child_that_was_made_quiet_runs_no_suspects_any_more(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a web UI. Another one does."""
    fill = ward.children.fill
    slot = Slot("default.1", CAPSULE)
    ward.children.slots.ordinary.append(slot)
    fill(slot)
    child = ward.children.slots.child(slot)
    assert child is not None
    monkeypatch.setattr(ward.children, "fill", lambda _: None)
    ward.suspects(wait=True)
    ward.turn()
    ward.children.slots.solo[0].boot_failures = 3
    ward.turn()
    tell(ward.ordinary, state="quiet")
    ward.turn()
    assert ward.children.orders(ward.ordinary) == [RunSuspects(on=True), RunSuspects(on=False)]
    assert ward.children.orders(child) == [RunSuspects(on=True)]


def test_a_solo_child_that_cannot_boot_is_missing_while_a_suspect_waits(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ward.children, "fill", lambda _: None)
    ward.suspects(wait=True)
    ward.turn()
    [slot] = ward.children.slots.solo
    slot.boot_failures, slot.reason = 1, "OSError: no database"
    why = "default.solo0 cannot boot: OSError: no database"
    assert ward.children.slots.missing == {"default.solo0": why}
    ward.turn()
    assert ward.children.slots.solo == [slot]
    ward.suspects(wait=False)
    ward.turn()
    assert ward.children.slots.solo == []


def test_an_ordinary_child_runs_the_suspects_while_no_solo_child_can_boot(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = ward.children.fill
    monkeypatch.setattr(ward.children, "fill", lambda _: None)
    ward.suspects(wait=True)
    ward.turn()
    [slot] = ward.children.slots.solo
    for failures, ordered in ((2, []), (3, [RunSuspects(on=True)]), (4, [])):
        slot.boot_failures, slot.reason = failures, "OSError: no port"
        ward.turn()
        assert ward.children.orders(ward.ordinary) == ordered
    assert ward.ordinary.ordered.runs_suspects, "it may have leases of a solo child"
    monkeypatch.setattr(ward.children, "fill", fill)
    ward.turn()
    ward.turn()
    assert ward.children.orders(ward.ordinary) == [RunSuspects(on=False)]


def test_a_later_suspect_does_not_wait_for_three_more_failed_boots(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one boot that is due is tried all the same."""
    tried: list[Slot] = []
    monkeypatch.setattr(ward.children, "fill", tried.append)
    ward.suspects(wait=True)
    ward.turn()
    [slot] = ward.children.slots.solo
    slot.boot_failures = 3
    for wait in (True, False):
        ward.suspects(wait=wait)
        ward.turn()
    assert ward.children.orders(ward.ordinary) == [RunSuspects(on=True), RunSuspects(on=False)]
    tried.clear()
    ward.suspects(wait=True)
    ward.isolation.advance(quiet=False)
    assert ward.children.orders(ward.ordinary) == [RunSuspects(on=True)]
    assert tried == [slot]


def test_a_place_that_did_not_boot_beside_another_orders_no_ordinary_child(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first solo child held the port, and was killed by its suspect. The next one boots."""
    monkeypatch.setattr(isolation, "_NEWS_TRAVELS", 0.0)
    ward.suspects(wait=True)
    ward.turn()
    ward.all_busy()
    ward.turn()
    first, second = ward.solo()
    ward.children.die(second)
    second.slot.boot_failures = 3
    monkeypatch.setattr(ward.children, "fill", lambda _: None)
    ward.children.die(first)
    ward.turn()
    assert ward.children.orders(ward.ordinary) == []


def test_another_child_runs_the_suspects_when_the_first_one_has_died(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = ward.children.fill
    monkeypatch.setattr(ward.children, "fill", lambda _: None)
    ward.suspects(wait=True)
    ward.turn()
    ward.children.slots.solo[0].boot_failures = 3
    ward.turn()
    slot = ward.ordinary.slot
    ward.children.die(ward.ordinary)
    ward.turn()
    fill(slot)
    child = ward.children.slots.child(slot)
    assert child is not None
    ward.turn()
    assert ward.children.orders(child) == [RunSuspects(on=True)]


def test_the_next_program_ends_solo_children_and_orders(ward: Ward) -> None:
    ward.suspects(wait=True)
    ward.turn()
    [solo] = ward.solo()
    ward.isolation.begin_anew()
    assert ward.children.orders(solo) == [Stop(None)]
    assert ward.children.orders(ward.ordinary) == [RunSuspects(on=False)]
    assert not ward.ordinary.ordered.runs_suspects, "its death needs no second rescue"
    assert ward.children.orders(ward.clock) == []
