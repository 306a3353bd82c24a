"""When the master forks a child that runs suspects beside no other one of the tree."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from forkq.config.capsule import Capsule
from forkq.master import isolation
from forkq.master.child_handle import ChildHandle
from forkq.runtime.pipe import RunSuspects, Stop
from tests.unit.master.handles import tell
from tests.unit.master.test_isolation import CAPSULE, Ward

OTHER = Capsule("other", (("reports", 0),), 10)


@pytest.fixture
def ward(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ward]:
    """Two capsules, each with a solo child at work; a suspect of the first one asks for a turn."""
    monkeypatch.setattr(isolation, "_LINGER", 0.0)
    made = Ward(CAPSULE, OTHER)
    made.suspects(wait=True)
    made.turn()
    made.all_busy()
    yield made
    made.children.close()


def ask(ward: Ward) -> tuple[ChildHandle, ChildHandle]:
    """The first solo child has put one back, and rests; the second one goes on."""
    first, second = ward.solo()
    tell(first, busy=0, wants_sole=True)
    ward.turn()
    return first, second


def sole(ward: Ward) -> list[str]:
    return [child.name for child in ward.children if child.slot.sole]


def test_a_sole_child_is_forked_when_all_others_have_ended(ward: Ward) -> None:
    """In all capsules. Meanwhile none is forked, and none afterwards while it lives."""
    first, second = ask(ward)
    assert ward.children.orders(first) == ward.children.orders(second) == [Stop(None)]
    ward.children.die(first)
    ward.turn()
    assert ward.solo() == []
    ward.children.die(second)
    ward.turn()
    assert sole(ward) == ["default.alone0"]
    [alone] = ward.solo()
    tell(alone, busy=1, long_at=time.monotonic() + 60.0)
    ward.turn()
    assert ward.solo() == [alone]
    ward.children.die(alone)
    ward.turn()
    assert [child.name for child in ward.solo()] == ["default.solo0", "other.solo0"]


def test_the_others_have_their_time_before_the_next_turn(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the turn before took; or none, if all of them have nothing to do."""
    for child in ask(ward):
        ward.children.die(child)
    ward.turn()
    [alone] = ward.solo()
    ward.isolation._sole_turns._began -= 600.0  # so long ago
    ward.turn()
    ward.children.die(alone)
    ward.turn()
    ward.all_busy()
    first, second = ask(ward)
    assert ward.solo() == [first, second]
    tell(second, busy=0)
    monkeypatch.setattr(isolation, "_IDLE", 0.0)
    ward.turn()
    assert ward.solo() == []


def test_a_suspect_that_does_not_end_in_time_gives_the_others_time(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next time it has twice as long."""
    first, second = ask(ward)
    ward.children.die(first)
    turns = ward.isolation._sole_turns
    turns._began -= 60.0
    ward.turn()
    assert sole(ward) == []
    assert [child.name for child in ward.solo()] == ["default.solo0", "other.solo1"]
    turns._others_until = 0.0
    ward.all_busy()
    third, _ = ask(ward)
    ward.children.die(third)
    turns._began -= 60.0
    ward.turn()
    assert ward.solo() == []
    tell(second, long_at=time.monotonic())  # from now on it keeps nobody waiting
    for child in list(ward.children):
        if child.slot.solo and child is not second:
            ward.children.die(child)
    ward.turn()
    assert sole(ward) == ["default.alone0"]


def test_one_that_runs_for_long_keeps_the_others_waiting_no_more(ward: Ward) -> None:
    """A further one may run sole beside it, too."""
    for child in ask(ward):
        ward.children.die(child)
    ward.turn()
    [alone] = ward.solo()
    tell(alone, busy=1, long_at=time.monotonic())
    ward.turn()
    found = [child.name for child in ward.solo()]
    assert found == ["default.alone0", "default.solo0", "other.solo0"]
    ward.isolation._sole_turns._others_until = 0.0
    for child in ward.solo():
        tell(child, wants_sole=child.name == "default.solo0")
    ward.turn()
    for child in list(ward.children):
        if child.slot.solo and child is not alone:
            ward.children.die(child)
    ward.turn()
    assert sole(ward) == ["default.alone0", "default.alone1"]


def test_a_turn_ends_in_time_or_with_the_last_job(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    for child in ask(ward):
        ward.children.die(child)
    ward.turn()
    [alone] = ward.solo()
    tell(alone, busy=1)
    ward.turn()
    assert ward.children.orders(alone) == []
    monkeypatch.setattr(isolation, "_TURN", 0.0)
    ward.turn()
    assert ward.children.orders(alone) == [Stop(None)]


def test_a_quiet_tree_begins_no_turn(ward: Ward) -> None:
    first, second = ward.solo()
    tell(first, busy=0, wants_sole=True)
    ward.turn(quiet=True)
    assert ward.children.orders(second) == []
    ward.children.die(first)
    ward.children.die(second)
    ward.turn(quiet=True)
    assert ward.solo() == []


def test_the_next_program_forks_no_other_one_beside_a_sole_child(ward: Ward) -> None:
    for child in ask(ward):
        ward.children.die(child)
    ward.turn()
    [alone] = ward.solo()
    tell(alone, busy=1)
    ward.next_program().begin_anew()
    ward.turn()
    assert ward.children.orders(alone) == [Stop(None)]
    assert ward.solo() == []
    ward.children.die(alone)
    ward.turn()
    assert len(ward.solo()) == 2


def test_an_ordinary_child_that_runs_suspects_is_waited_for(ward: Ward) -> None:
    """It is another capsule's, in which no solo child boots."""
    first, second = ward.solo()
    ward.children.die(second)
    second.slot.boot_failures, second.slot.due = 3, time.monotonic() + 60.0
    ward.turn()
    [ordinary] = [child for child in ward.children if child.name == "other.0"]
    assert ward.children.orders(ordinary) == [RunSuspects(on=True)]
    tell(ordinary, busy=1, long_at=time.monotonic() + 60.0)
    tell(first, busy=0, wants_sole=True)
    ward.turn()
    ward.children.die(first)
    ward.turn()
    assert ward.children.orders(ordinary) == [RunSuspects(on=False)]
    assert sole(ward) == []
    tell(ordinary, busy=0, long_at=0.0)
    ward.turn()
    assert sole(ward) == ["default.alone0"]
