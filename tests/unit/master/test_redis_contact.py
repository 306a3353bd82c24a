"""Which children are cut off from Redis, as the master sees it from the reports of all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forkq.config.config import Config
from forkq.master.child_handle import ChildHandle
from forkq.master.unresponsive import CutOff, Unhealthy
from tests.unit.master.handles import tell
from tests.unit.master.test_children import Tree

LIMIT = 30.0
# The tests' own time: made up, and whole. A sum with a number of the real clock is rounded where it
# passes a power of two, and a limit that is met exactly was missed then by a billionth of a second.
BEGAN = 1000.0
CUT_OFF = "child does not reach redis, but others do"


class Contact:
    """The children of a tree, and what Redis has answered them, in seconds from the start."""

    def __init__(self, tree: Tree) -> None:
        self.child = tree.boot()
        clock = tree.child(1)
        assert clock is not None
        self.clock, self._tree = clock, tree
        for child in (self.child, self.clock):
            child.told.ready_at = BEGAN
        self.cut_off = CutOff(LIMIT, tree.silence)

    def answer(self, seconds: float, *children: ChildHandle) -> None:
        """Redis answers these children at this time; the master checks then."""
        for child in children:
            tell(child, redis_at=BEGAN + seconds)
        self._tree.check(self.cut_off)

    @property
    def events(self) -> list[str]:
        """What the master has logged."""
        return self._tree.log.events()


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    found = Tree(tmp_path)
    yield found
    found.close()


@pytest.fixture
def contact(tree: Tree) -> Contact:
    return Contact(tree)


def test_a_child_that_redis_does_not_answer_while_it_answers_others_is_cut_off(
    contact: Contact,
) -> None:
    """It is logged once, and once when it is back."""
    contact.answer(0, contact.child, contact.clock)
    for seconds in range(10, 50, 10):
        contact.answer(seconds, contact.clock)
        assert not contact.cut_off.seconds(contact.child)
    for seconds in range(50, 100, 10):
        contact.answer(seconds, contact.clock)
        assert contact.cut_off.seconds(contact.child) == seconds - 20
    assert contact.events == [CUT_OFF]
    contact.answer(100, contact.child)
    assert not contact.cut_off.seconds(contact.child)
    assert not contact.cut_off.seconds(contact.clock)
    assert contact.events == [CUT_OFF, "child reaches redis again"]


def test_an_outage_for_all_cuts_off_none(contact: Contact) -> None:
    """One of them is answered first, long before the other."""
    contact.answer(0, contact.child, contact.clock)
    for seconds in range(600, 650, 10):
        contact.answer(seconds, contact.clock)
    assert contact.events == []
    contact.answer(650, contact.clock)
    assert contact.events == [CUT_OFF]


def test_short_outages_for_all_cut_off_none(contact: Contact) -> None:
    """Each time the same child is the last one that is answered, and not long enough before the
    next outage to have told it."""
    contact.answer(0, contact.child, contact.clock)
    for end in range(25, 250, 25):
        contact.answer(end, contact.clock)
    assert contact.events == []


def test_a_shard_that_is_down_cuts_off_none_of_its_children(contact: Contact) -> None:
    """Others are answered, but by another Redis."""
    contact.clock.slot.clock_of = "mail"
    contact.answer(0, contact.child, contact.clock)
    for seconds in range(10, 100, 10):
        contact.answer(seconds, contact.clock)
    assert not contact.cut_off.seconds(contact.child)
    assert contact.events == []


def test_a_child_that_has_just_booted_has_its_time(contact: Contact) -> None:
    for ready_at, turns in ((None, range(0, 1000, 10)), (BEGAN + 1000, range(1000, 1050, 10))):
        contact.child.told.ready_at = ready_at
        for seconds in turns:
            contact.answer(seconds, contact.clock)
    assert contact.events == []


def test_a_child_that_is_cut_off_is_replaced_and_removed_as_a_silent_one_is(
    tree: Tree, contact: Contact, tmp_path: Path
) -> None:
    config = Config(
        pidfile=tmp_path / "pid",
        state_dir=tmp_path,
        replace_silent_after=60.0,
        kill_silent_after=90.0,
    )
    cut_off, child = contact.cut_off, contact.child
    unhealthy = Unhealthy(config, tree.silence, cut_off, tree.replacements)
    cut_off._seconds[child] = 59.0
    tree.check(unhealthy)
    assert child.slot not in tree.replacements
    cut_off._seconds[child] = 60.0
    tree.check(unhealthy)
    tree.check(unhealthy)
    assert child.slot in tree.replacements
    assert tree.removals.due is None
    cut_off._seconds[child] = 90.0
    tree.check(unhealthy)
    assert child.frozen
    tree.replacements.advance()
    assert [event for event in tree.log.events() if "unhealthy" in event] == [
        "replacing an unhealthy child; it ends when its jobs have"
    ]
