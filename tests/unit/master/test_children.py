"""The master's children, their stop and their rescue, with plain processes instead of children."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from forkq.config.config import Config
from forkq.master import spawn, stop, unresponsive
from forkq.master.child_handle import ChildHandle
from forkq.master.children import Children
from forkq.master.health import Health, Rule, RuleTable
from forkq.master.replacement import Removals, Replacements, has_halted
from forkq.master.rescue import DeadChild, Rescue
from forkq.master.signals import Signals
from forkq.master.slot import Slot
from forkq.master.stop import Phase, StopSequence
from forkq.master.unresponsive import Garbled, Silence, Stuck
from forkq.runtime.assignment import Assignment
from forkq.runtime.pipe import Exiting, Ready, Unbootable, send
from tests.support.recorded_log import RecordedLog
from tests.support.waiting import wait_until


class RecordingRescue:
    """Stands for the rescue, and records which children it gets."""

    def __init__(self) -> None:
        self.added: list[DeadChild] = []
        self.open: set[str] = set()

    def holds(self, identity: str) -> bool:
        """Whether the test keeps this child's rescue open."""
        return identity in self.open

    def add(self, child: DeadChild) -> None:
        """Opens a rescue."""
        self.added.append(child)

    def advance(self) -> bool:
        """All rescues are closed."""
        return True

    def connect(self) -> None:
        """There is no Redis."""

    def limit_waits(self, until: float) -> None:
        """Nothing waits."""


class Tree:
    """Children that are processes which sleep. The test reports for them on the pipes in
    ``reports``."""

    def __init__(self, tmp_path: Path) -> None:
        config = Config(pidfile=tmp_path / "pid", state_dir=tmp_path)
        self.log, self.rescue, self._signals = RecordedLog(), RecordingRescue(), Signals()
        self.reports: dict[int, int] = {}
        self.assignments: dict[int, Assignment] = {}
        self._controls: list[int] = []
        self.fork_error: OSError | None = None
        rescue = cast("Rescue", self.rescue)
        self.children = Children(config, rescue, self._signals, list, self.log)
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(self.children._spawner, "_fork", self._fork)
        self._patch.setattr(spawn, "refuse_threads", lambda: None)  # pytest's worker has some
        self.silence = Silence(600.0)
        self.removals = Removals(self.children, rescue, self.log)
        self.replacements = Replacements(self.children, self.silence.has, self.log)
        self.stop_sequence = StopSequence(self.children, self.removals, rescue, self.log)

    def _fork(self, assignment: Assignment, _new_ends: object, _fresh: object) -> int:
        if self.fork_error is not None:
            raise self.fork_error
        pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ)
        self.reports[pid] = os.dup(assignment.report)
        self._controls.append(os.dup(assignment.control))
        self.assignments[pid] = assignment
        return pid

    def boot(self) -> ChildHandle:
        """Fills the slots; all children report Ready. Returns the one that runs jobs. What the log
        had is dropped."""
        self.children.fill_slots()
        for child in self.children:
            send(self.reports[child.pid], Ready(child.identity))
        self.children.read_facts()
        self.log.lines.clear()
        first = self.child(0)
        assert first is not None
        return first

    def slot(self, number: int) -> Slot:
        """The first one is of a child that runs jobs, the second one is the clock's."""
        return self.children.slots.ordinary[number]

    def child(self, number: int) -> ChildHandle | None:
        """The child in that slot."""
        return self.children.slots.child(self.slot(number))

    def check(self, *rules: Rule) -> None:
        """The master asks these rules, and does what they say."""
        table, acts = RuleTable(rules), (self.replacements, self.removals)
        Health(table, self.children, *acts, self.log).check()

    def reap(self, child: ChildHandle) -> None:
        """Waits until the master has reaped a child that is dead."""

        def reaped() -> bool:
            self.children.reap()
            return child.pid not in self.children.by_pid

        wait_until(reaped, what="the reaping")
        self.children.deaths.log(wait=0.0)

    def close(self) -> None:
        """Kills all children that are left."""
        for child in list(self.children):
            child.kill()
        for child in list(self.children):
            self.reap(child)
        for fd in (*self.reports.values(), *self._controls, *self._signals.descriptors()):
            if fd >= 0:
                os.close(fd)
        self.children._selector.close()
        self._patch.undo()


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    found = Tree(tmp_path)
    yield found
    found.close()


def test_a_frozen_child_that_is_killed_before_its_requeue_is_rescued_once(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a log line of its own. Its jobs get no crash record, since the master froze it."""
    monkeypatch.setattr(stop, "GRACE", 0.0)
    child = tree.boot()
    tree.stop_sequence.begin(0)
    tree.stop_sequence.advance()  # connects
    tree.stop_sequence.advance()
    assert child.frozen
    os.kill(child.pid, signal.SIGKILL)
    tree.reap(child)
    tree.removals.advance()
    for other in tree.removals:
        wait_until(lambda: has_halted(other), what="its halt")  # noqa: B023 - at once
    tree.removals.advance()
    its_rescues = [dead for dead in tree.rescue.added if dead.identity == child.identity]
    assert [dead.crash for dead in its_rescues] == [None]
    assert "frozen child killed from outside; its jobs go back" in tree.log.events()
    assert len(tree.rescue.added) == 2, "the clock has one, too"


def test_a_stop_takes_its_steps_in_turns_of_the_loop(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "GRACE", 0.0)
    child = tree.boot()
    assert not tree.stop_sequence.begun
    assert tree.stop_sequence.due is None
    tree.stop_sequence.begin(0)
    phases = [tree.stop_sequence._phase]

    def is_over() -> bool:
        tree.stop_sequence.advance()
        tree.removals.advance()
        if tree.stop_sequence._phase is not phases[-1]:
            phases.append(tree.stop_sequence._phase)
        return tree.stop_sequence.due is None and tree.removals.due is None

    wait_until(is_over, what="the last phase")
    assert phases == [Phase.ANSWERS, Phase.CLEANUP, Phase.REMOVAL]
    assert child.killed
    tree.reap(child)
    assert "child killed" in tree.log.events()


def test_a_child_that_dies_before_it_is_ready_leaves_nothing_to_rescue(tree: Tree) -> None:
    tree.children.fill_slots()
    child = tree.child(0)
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    tree.reap(child)
    assert tree.rescue.added == []


def test_a_child_that_closes_its_pipes_and_lives_is_killed(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at once: a child that is about to end has closed its pipes, too."""
    child, stuck = tree.boot(), Stuck(0)
    os.close(tree.reports[child.pid])
    tree.reports[child.pid] = -1

    def pipe_is_closed() -> bool:  # the other child closes its copy of the pipe as it is started
        tree.children.read_facts()
        return child.report.eof

    wait_until(pipe_is_closed, what="the end of its pipe")
    tree.check(stuck)
    assert tree.log.events() == []
    monkeypatch.setattr(unresponsive, "_END_LIMIT", 0.0)
    tree.check(stuck)
    assert "a child has closed its pipes, but lives; killing it" in tree.log.events()
    tree.reap(child)
    [dead] = tree.rescue.added
    assert dead.crash is not None


def test_a_child_that_is_killed_after_it_reported_its_exit_leaves_no_crash_record(
    tree: Tree,
) -> None:
    child = tree.boot()
    send(tree.reports[child.pid], Exiting())
    os.kill(child.pid, signal.SIGKILL)
    tree.reap(child)
    assert [dead.crash for dead in tree.rescue.added] == [None]


def test_a_system_without_a_process_left_is_logged_once(tree: Tree) -> None:
    """The master tries to fill the slot every second, and the tree is degraded."""
    child = tree.boot()
    tree.fork_error = refusal = OSError(errno.EAGAIN, "Resource temporarily unavailable")
    os.kill(child.pid, signal.SIGKILL)
    tree.reap(child)
    for _ in range(3):
        tree.slot(0).due = 0.0
        tree.children.fill_slots()
    assert tree.log.events().count("cannot fork; trying again") == 1
    assert tree.children.slots.missing == {"default.0": f"default.0 cannot be forked: {refusal}"}
    assert tree.children.slots.boot_failure is None
    tree.fork_error = None
    tree.slot(0).due = 0.0
    tree.boot()
    assert tree.children.slots.missing == {}


def test_what_is_missing_is_named_with_the_error_alone(tree: Tree) -> None:
    """The log has the traceback. Also in a tree that was never ready."""
    child = tree.boot()
    slot = child.slot
    os.kill(child.pid, signal.SIGKILL)
    tree.reap(child)
    assert tree.children.slots.missing == {}, "a ready child has died, and no try has failed yet"
    slot.due = 0.0
    tree.children.fill_slots()
    second = tree.children.slots.child(slot)
    assert second is not None
    reason = "the app failed:\nTraceback (most recent call last):\nOSError: no database\n"
    send(tree.reports[second.pid], Unbootable(reason))
    os.kill(second.pid, signal.SIGKILL)
    tree.reap(second)
    missing = {"default.0": "default.0 cannot boot: OSError: no database"}
    assert tree.children.slots.missing == missing
    tree.children.slots.were_ready = False
    assert tree.children.slots.missing == missing


def test_a_tree_that_was_never_ready_ends_after_boot_timeout_or_a_lasting_failure(
    tree: Tree,
) -> None:
    slots, slot = tree.children.slots, tree.slot(0)

    def failure() -> dict[str, Any] | None:
        return slots.boot_failure

    slot.boot_failures, slot.reason = 5, "OSError: no database"
    assert failure() is None
    slot.lasting = True
    assert failure() == {"child": slot.name, "attempts": 5, "reason": slot.reason}
    assert slots.cannot_ever_boot is True
    slot.lasting = False
    slots._boot_until = time.monotonic()
    assert failure() is not None
    assert not any(one.lasting for one in slots)
    tree.children.fill(slot)
    assert failure() is None, "an attempt that is under way may be the one"
    child = slots.child(slot)
    assert child is not None
    slots.empty(child)
    assert failure() is not None
    slots.were_ready = True
    assert failure() is None


def test_the_pauses_between_tries_grow_from_a_second_to_ten(tree: Tree) -> None:
    """They can be computed after any number of tries."""
    slot = tree.slot(0)
    for failures, longest in ((1, 1.0), (2, 2.0), (3, 4.0), (5, 10.0), (5000, 10.0)):
        slot.boot_failures = failures
        assert longest / 2 <= slot._pause(was_ready=False) <= longest
    slot.boot_failures, slot.early_deaths = 0, 5000
    assert 5.0 <= slot._pause(was_ready=False) <= 10.0
    assert slot._pause(was_ready=True) <= 1.0


def test_a_child_has_its_time_for_its_stacks_also_beneath_a_master_that_came_late(
    tree: Tree,
) -> None:
    """On a busy machine the master may ask for them long after the boot's time limit. The signal
    comes later than the order: a child that logs its stacks at that moment could crash by it."""
    stuck = Stuck(0.5)
    tree.children.fill_slots()
    for child in tree.children:
        child.born -= 60.0
    tree.check(stuck)
    tree.check(stuck)
    assert not any(child.killed for child in tree.children)
    dues = [stuck.due(child) for child in tree.children]
    for due in dues:
        assert due is not None
        assert 0.0 < due - time.monotonic() <= unresponsive._STACKS_LIMIT
    for stacks in stuck._stacks.values():
        stacks.asked_at = 0.0
    tree.check(stuck)
    assert all(stacks.signalled for stacks in stuck._stacks.values())
    assert not any(child.killed for child in tree.children)
    tree.check(stuck)
    assert all(child.killed for child in tree.children)


def test_a_child_whose_pipe_a_job_has_written_to_leaves_its_slot_at_once(tree: Tree) -> None:
    """The master can read no more from it. It ends when its jobs have."""
    child = tree.boot()
    os.write(tree.reports[child.pid], b"\xff" * 64)
    tree.children.read_facts()
    for _ in range(2):
        tree.check(Garbled(tree.children.slots))
    assert tree.log.events() == ["a job has written into its child's pipe; replacing the child"]
    assert child.ordered.stop_at is not None
    assert (child.beat.state, tree.children.slots.child(child.slot)) == ("retiring", None)


def test_a_rule_forgets_a_child_that_was_reaped(tree: Tree) -> None:
    """A master lives for months, and its children for hours."""
    silence = Silence(0.0)
    table, acts = RuleTable((silence,)), (tree.replacements, tree.removals)
    health = Health(table, tree.children, *acts, tree.log)
    child = tree.boot()
    health.check()
    assert silence.has(child)
    os.kill(child.pid, signal.SIGKILL)
    tree.reap(child)
    health.check()
    assert not silence.has(child)
