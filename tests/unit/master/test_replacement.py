"""How the master replaces one child, and how it removes one by force."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from forkq.master import restart as restart_module
from forkq.master.child_handle import ChildHandle
from forkq.master.restart import Restart, RollingRestart, is_canary
from forkq.master.slot import Slot
from forkq.runtime.pipe import Ready, Unbootable, send
from forkq.store.crash_record import ProcessDeath
from tests.support.waiting import wait_until
from tests.unit.master.test_children import Tree

CALLED_OFF = "replacement called off: the new child died; the old one goes on"


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    found = Tree(tmp_path)
    yield found
    found.close()


def begin(tree: Tree, old: ChildHandle) -> ChildHandle:
    """Begins a replacement of ``old``. Returns the new child, which boots."""
    replacement = tree.replacements.begin(old, "a test")
    assert replacement
    tree.replacements.advance()
    assert replacement.new is not None
    return replacement.new


def report_ready(tree: Tree, child: ChildHandle) -> None:
    """The child has booted."""
    send(tree.reports[child.pid], Ready(child.identity))
    tree.children.read_facts()


def kill(tree: Tree, child: ChildHandle) -> None:
    """The child dies, and is reaped."""
    os.kill(child.pid, signal.SIGKILL)
    tree.reap(child)


def fill(tree: Tree, slot: Slot) -> ChildHandle | None:
    """The master forks a child for an empty slot, without its pause."""
    slot.due = 0.0
    tree.children.fill_slots()
    return tree.children.slots.child(slot)


def test_the_new_child_is_ready_before_the_old_one_retires(tree: Tree) -> None:
    old = tree.boot()
    new = begin(tree, old)
    assert (tree.children.slots.child(old.slot), old.ordered.stop_at) == (old, None)
    report_ready(tree, new)
    tree.replacements.advance()
    assert tree.children.slots.child(old.slot) is new
    assert old.ordered.stop_at is not None
    assert not list(tree.replacements)


def test_one_slot_has_one_replacement_at_a_time_and_others_go_on_beside_it(tree: Tree) -> None:
    old = tree.boot()
    clock = tree.child(1)
    assert clock is not None
    new = begin(tree, old)
    assert not tree.replacements.begin(old, "another reason")
    begin(tree, clock)
    assert len(list(tree.replacements)) == 2
    report_ready(tree, new)
    tree.replacements.advance()
    assert not tree.replacements.begin(old, "it is in no slot any more")
    assert tree.replacements.begin(new, "a test")


def test_a_new_child_that_dies_calls_it_off_with_a_pause_that_grows(tree: Tree) -> None:
    """One line for the row of failures. The old child stays in its slot."""
    old = tree.boot()
    pauses = []
    for _ in range(4):
        new = begin(tree, old)
        send(tree.reports[new.pid], Unbootable("no such luck"))
        kill(tree, new)
        tree.replacements.advance()
        assert tree.children.slots.child(old.slot) is old
        assert not tree.replacements.begin(old, "too soon")
        backoff = tree.replacements._backoffs[old.slot]
        pauses.append(backoff.due - time.monotonic())
        backoff.due = 0.0
    assert pauses[0] <= 1.0 < pauses[2] < pauses[3] <= 8.0
    assert old.ordered.stop_at is None
    assert tree.log.events().count(CALLED_OFF) == 1
    report_ready(tree, begin(tree, old))
    tree.replacements.advance()
    assert not tree.replacements._backoffs


def test_an_old_child_that_dies_meanwhile_leaves_its_slot_to_the_new_one(tree: Tree) -> None:
    """No third one is forked."""
    old = tree.boot()
    new = begin(tree, old)
    kill(tree, old)
    tree.replacements.advance()
    tree.children.fill_slots()
    assert tree.children.slots.child(old.slot) is new
    assert len(tree.children.by_pid) == 2, "the new one, and the clock"
    report_ready(tree, new)
    tree.replacements.advance()
    assert new.ordered.stop_at is None
    assert not list(tree.replacements)


def test_a_system_without_a_process_left_calls_it_off(tree: Tree) -> None:
    old = tree.boot()
    tree.fork_error = OSError("no process left")
    replacement = tree.replacements.begin(old, "a test")
    tree.replacements.advance()
    assert replacement
    assert (replacement.outcome, tree.children.slots.child(old.slot)) == ("called off", old)
    assert "no process left" in replacement.reason


def test_a_fork_that_the_system_refuses_loses_no_count(tree: Tree) -> None:
    child = tree.boot()
    kill(tree, child)
    child.slot.ended["restart|a_test"] = 1
    tree.fork_error = OSError("no process left")
    assert fill(tree, child.slot) is None
    tree.fork_error = None
    following = fill(tree, child.slot)
    assert following is not None
    assert tree.assignments[following.pid].ended == {"restart|a_test": 1}


def test_new_children_that_do_not_boot_lose_no_count_and_are_no_restarts(tree: Tree) -> None:
    """Each one was given the counts, and has sent none."""
    old = tree.boot()
    old.slot.ended["restart|stopped"] = 1
    for _ in range(2):
        kill(tree, begin(tree, old))
        tree.replacements.advance()
        tree.replacements.end_pauses()
    tree.fork_error = OSError("no process left")
    tree.replacements.begin(old, "a test")
    tree.replacements.advance()
    tree.replacements.end_pauses()
    tree.fork_error = None
    new = begin(tree, old)
    counts = {"restart|stopped": 1, "crash|boot": 2, "restart|a_test": 1}
    assert tree.assignments[new.pid].ended == counts
    kill(tree, old)
    report_ready(tree, new)
    tree.replacements.advance()
    assert not new.slot.ended
    assert [dead.counted_as for dead in tree.rescue.added] == ["crash|SIGKILL"]


def test_a_new_child_that_dies_as_soon_as_it_is_ready_is_a_restart(tree: Tree) -> None:
    """It may have sent its counts, so they are not counted again, nor taken back."""
    old = tree.boot()
    new = begin(tree, old)
    assert tree.assignments[new.pid].ended == {"restart|a_test": 1}
    send(tree.reports[new.pid], Ready(new.identity))
    kill(tree, new)
    tree.replacements.advance()
    assert tree.children.slots.child(old.slot) is old
    assert not old.slot.ended
    assert [dead.counted_as for dead in tree.rescue.added] == ["crash|SIGKILL"]


def test_a_rolling_restart_also_replaces_a_child_that_is_new_but_has_older_code(
    tree: Tree,
) -> None:
    """It waits for a replacement that is under way."""
    old = tree.boot()
    older = begin(tree, old)
    restart = RollingRestart(tree.children, tree.replacements, tree.log)
    restart.begin()
    restart.advance()
    assert len(list(tree.replacements)) == 1
    report_ready(tree, older)
    tree.replacements.advance()
    assert tree.children.slots.child(old.slot) is older
    restart.advance()
    tree.replacements.advance()
    (replacement,) = tree.replacements
    assert replacement.old is older
    assert replacement.new is not None
    report_ready(tree, replacement.new)
    tree.replacements.advance()
    assert older.ordered.stop_at is not None
    assert restart.under_way, "the clock's turn comes"


def test_a_rolling_restart_waits_for_no_pause_of_an_earlier_replacement(tree: Tree) -> None:
    """There may be new code that boots."""
    old = tree.boot()
    kill(tree, begin(tree, old))
    tree.replacements.advance()
    assert not tree.replacements.begin(old, "too soon")
    restart = RollingRestart(tree.children, tree.replacements, tree.log)
    restart.begin()
    restart.advance()
    assert old.slot in tree.replacements


def test_the_exec_waits_until_the_master_can_do_it(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the master begins no replacement that can be later: it would never come to it."""
    monkeypatch.setattr(restart_module, "_WATCH", 0.0)
    old = tree.boot()
    tree.children.slots.were_ready = True
    answers = ["", "", "no such program"]
    restart = Restart(tree.children, tree.replacements, {}, lambda: answers.pop(0), tree.log)
    restart.request()
    restart.advance(quiet=False)
    canary = next(child for child in tree.children if is_canary(child))
    assert tree.replacements.may_begin(old), "the new code is not proved"
    report_ready(tree, canary)
    for _ in range(2):
        restart.advance(quiet=False)
        assert not tree.replacements.begin(old, "silent")
    restart.advance(quiet=False)
    assert restart.report.state == "rolled back"
    assert tree.replacements.may_begin(old)


def test_a_canary_that_dies_ends_the_wait_for_the_exec(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart_module, "_WATCH", 0.0)
    old = tree.boot()
    tree.children.slots.were_ready = True
    restart = Restart(tree.children, tree.replacements, {}, lambda: "", tree.log)
    restart.request()
    restart.advance(quiet=False)
    canary = next(child for child in tree.children if is_canary(child))
    report_ready(tree, canary)
    restart.advance(quiet=False)
    assert not tree.replacements.may_begin(old)
    kill(tree, canary)
    restart.advance(quiet=False)
    assert restart.report.state == "rolled back"
    assert tree.replacements.may_begin(old)


def test_a_hog_that_is_removed_while_its_replacement_boots_leaves_it_its_slot(tree: Tree) -> None:
    old = tree.boot()
    new = begin(tree, old)
    tree.removals.freeze(old, None)
    tree.replacements.advance()
    tree.children.fill_slots()
    assert tree.children.slots.child(old.slot) is new
    advance_until(tree, lambda: old.killed, what="its end")
    tree.reap(old)


def advance_until(tree: Tree, condition: Callable[[], Any], what: str) -> None:
    """Takes the steps of the removals, as the master's loop does."""

    def over() -> Any:
        tree.removals.advance()
        return condition()

    wait_until(over, what=what)


def is_stopped(child: ChildHandle) -> bool:
    """Whether the process has halted."""
    return psutil.Process(child.pid).status() == psutil.STATUS_STOPPED


def test_a_removed_child_is_frozen_then_rescued_then_killed(tree: Tree) -> None:
    """Its slot is empty at once. It is not killed while its rescue is open."""
    child, crash = tree.boot(), ProcessDeath(reason="a test")
    tree.rescue.open.add(child.identity)
    assert tree.removals.begin(child, crash, "a test")
    assert "jobs" not in tree.log.lines[-1][2], "how many it runs now is not known"
    assert tree.children.slots.child(child.slot) is None
    assert not tree.removals.begin(child, None, "again")
    advance_until(tree, lambda: tree.rescue.added, what="its rescue")
    assert is_stopped(child)
    assert [dead.crash for dead in tree.rescue.added] == [crash]
    tree.removals.advance()
    assert is_stopped(child), "Redis has not taken its jobs yet"
    tree.rescue.open.clear()
    tree.removals.advance()
    assert child.killed
    tree.reap(child)
    assert len(tree.rescue.added) == 1
    assert tree.log.events() == ["removing a child by force; its jobs go back", "child killed"]


def test_a_rescue_that_takes_long_does_not_keep_a_frozen_child_alive(tree: Tree) -> None:
    """Redis may be away. The rescue goes on after the child's death."""
    child = tree.boot()
    tree.rescue.open.add(child.identity)
    tree.removals.freeze(child, None, kill_by=time.monotonic() + 0.05)
    advance_until(tree, lambda: child.killed, what="its end")
    tree.reap(child)
    assert tree.removals.due is None


def test_a_frozen_child_that_is_killed_from_outside_leaves_its_crash_record(tree: Tree) -> None:
    child, crash = tree.boot(), ProcessDeath(reason="a test")
    tree.removals.begin(child, crash, "a test")
    os.kill(child.pid, signal.SIGKILL)
    advance_until(tree, lambda: tree.rescue.added, what="its rescue")
    tree.reap(child)
    assert [dead.crash for dead in tree.rescue.added] == [crash]
    tree.removals.advance()
    assert tree.removals.due is None
