"""What the rules of health say of a child: facts in, a verdict out, and no process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from forkq.config.capsule import Capsule
from forkq.config.recycling import Recycling
from forkq.master.child_handle import ChildHandle
from forkq.master.hard_limits import HardLimits
from forkq.master.recycling import (
    FarTooLarge,
    MemoryMeter,
    RecyclingRule,
    TooLarge,
    TooManyJobs,
    TooOld,
    part_of_limits,
)
from forkq.master.replacement import Replacement, Replacements
from forkq.master.slot import Slot
from forkq.master.unresponsive import CutOff, Silence
from forkq.runtime.deadlines import DeadlineTable
from forkq.runtime.memory import Memory
from forkq.runtime.pipe import Stop
from tests.unit.master.handles import get_ready, make, tell

MB = 1 << 20
LIMITS = Recycling(max_memory=100 * MB, hard_max_memory=200 * MB, max_jobs=1000, max_age=1000.0)
CAPSULE = Capsule("default", (("default", 0),), 2, recycling=LIMITS)
NOW = 5000.0


class Begun(list[Replacement]):
    """Stands for the replacements that are under way."""

    def may_begin(self, child: ChildHandle) -> bool:
        """Whether its slot has none."""
        return self.of(child) is None

    def of(self, child: ChildHandle) -> Replacement | None:
        """That of the child."""
        return next((one for one in self if one.old is child), None)


class Meter:
    """Stands for the meter; the test says what each child has."""

    def __init__(self) -> None:
        self.used: dict[ChildHandle, int] = {}

    def memory(self, child: ChildHandle) -> Memory | None:
        """What the test says."""
        used = self.used.get(child)
        return None if used is None else Memory(used, 0, used)


MakeChild = Callable[[], ChildHandle]


@pytest.fixture
def child_of() -> Iterator[MakeChild]:
    """Makes children that have booted, each in a slot of its own."""
    made: list[tuple[ChildHandle, int]] = []

    def make_one() -> ChildHandle:
        number = len(made)
        child, reader = make(Slot(f"default.{number}", CAPSULE), number, f"h:{number}:abc")
        made.append((child, reader.fd))
        get_ready(child)
        child.born = NOW - 100.0
        return child

    yield make_one
    for child, fd in made:
        child.close()
        os.close(fd)


@pytest.mark.parametrize("kind", [TooManyJobs, TooOld, TooLarge])
def test_a_child_that_reaches_its_part_of_a_limit_is_replaced(
    child_of: MakeChild, kind: type[RecyclingRule]
) -> None:
    """Its own limit is a little below that of the configuration, so that children that were forked
    together are not replaced together. The line has what the limit is and what the child has."""
    meter, begun, child = Meter(), Begun(), child_of()
    rule = kind(cast(MemoryMeter, meter), cast(Replacements, begun))
    part = part_of_limits(child)
    assert 0.9 <= part < 1.0

    def reach(share: float) -> None:
        tell(child, processed=int(1000 * share) if kind is TooManyJobs else 0)
        child.born = NOW - (1000.0 * share if kind is TooOld else 100.0)
        meter.used[child] = int(100 * MB * share) if kind is TooLarge else 0

    reach(part - 0.002)
    assert rule.verdict(child, NOW) is None
    reach(part + 0.002)
    found = rule.verdict(child, NOW)
    assert found is not None
    assert (found.act, found.why) == ("replace", kind.key)
    [said] = found.lines
    assert said.event == "recycling a child"
    assert list(said.values) == ["child", "pid", "why", "limit", "memory", "jobs", "age"]


def test_one_child_of_a_capsule_is_recycled_at_a_time(child_of: MakeChild) -> None:
    """Another one waits; a replacement for another reason keeps it from nothing."""
    begun, first, second = Begun(), child_of(), child_of()
    rule = TooManyJobs(cast(MemoryMeter, Meter()), cast(Replacements, begun))
    for child in (first, second):
        tell(child, processed=1000)
    begun.append(Replacement(first.slot, first, "max_jobs"))
    assert rule.verdict(second, NOW) is None
    begun[0].why = "silent"
    assert rule.verdict(second, NOW) is not None


def test_new_children_that_are_too_large_at_once_are_replaced_less_often(
    child_of: MakeChild,
) -> None:
    meter, child = Meter(), child_of()
    rule = TooLarge(cast(MemoryMeter, meter), cast(Replacements, Begun()))
    meter.used[child], child.born = 101 * MB, NOW - 5.0
    lines: list[str] = []
    for _ in range(4):
        found = rule.verdict(child, NOW)
        assert found is not None
        lines += [said.event for said in found.lines]
        assert rule.verdict(child, NOW) is None, "it rests"
        rule._backoffs[child.slot].due = 0.0
    assert lines.count("recycling a child") == 4
    assert lines.count("new children reach max_memory at once; they are recycled less often") == 1


def test_a_child_above_the_hard_limit_is_removed_with_a_crash_record(child_of: MakeChild) -> None:
    meter, child = Meter(), child_of()
    rule = FarTooLarge(cast(MemoryMeter, meter))
    meter.used[child] = 200 * MB
    assert rule.verdict(child, NOW) is None
    meter.used[child] = 201 * MB
    found = rule.verdict(child, NOW)
    assert found is not None
    assert found.act == "remove"
    assert found.crash is not None
    assert found.crash.reason == found.why == "memory above hard_max_memory (201MB of 200MB)"


def test_the_other_jobs_of_a_child_with_an_overdue_one_come_first(child_of: MakeChild) -> None:
    """A new child, then no new jobs, then the end: as soon as the other jobs have ended."""
    child, begun = child_of(), Begun()
    table, rule = (
        DeadlineTable(child.files.deadlines, 2),
        HardLimits(60.0, cast(Replacements, begun)),
    )
    place = table.add(NOW, 7)
    tell(child, busy=2)
    assert rule.verdict(child, NOW + 0.1) is None, "the child has its time to log the stack"
    table.tell(place, "in a test")
    found = rule.verdict(child, NOW + 0.2)
    assert found is not None
    assert (found.act, found.why) == ("replace", "hard_timeout")
    begun.append(Replacement(child.slot, child, "hard_timeout"))
    assert rule.verdict(child, NOW + 1.0) is None, "the new child boots"
    begun.clear()
    found = rule.verdict(child, NOW + 2.0)
    assert found is not None
    assert found.act == "retire"
    tell(child, state="retiring")
    assert rule.verdict(child, NOW + 3.0) is None, "another job runs"
    tell(child, busy=1)
    found = rule.verdict(child, NOW + 4.0)
    assert found is not None
    assert (found.act, found.overdue) == ("remove", True)


@pytest.mark.parametrize(
    ("cancelled", "said"),
    [
        ([False], "beyond its hard_timeout"),
        ([True], "beyond its cancellation"),
        ([True, False], "beyond its hard_timeout or its cancellation"),
    ],
)
def test_the_log_names_the_limit_that_a_job_ignores(
    child_of: MakeChild, cancelled: list[bool], said: str
) -> None:
    child = child_of()
    table = DeadlineTable(child.files.deadlines, 2)
    rule = HardLimits(60.0, cast(Replacements, Begun()))
    tell(child, busy=len(cancelled), state="retiring")
    for number, each in enumerate(cancelled):
        table.tell(table.add(NOW, number), "in a test", cancelled=each)
    verdicts = [rule.verdict(child, NOW + after) for after in (0.2, 0.3, 9.0)]
    [why, *_] = [each.why for each in verdicts if each is not None and each.act == "remove"]
    assert why.endswith(f" goes on {said}")


def test_a_later_replacement_does_not_delay_the_removal(child_of: MakeChild) -> None:
    """The slot could have no new child when the job became overdue, so the child was retired. One
    that boots by now changes nothing: what is due is done."""
    child, begun = child_of(), Begun()
    table, rule = (
        DeadlineTable(child.files.deadlines, 2),
        HardLimits(60.0, cast(Replacements, begun)),
    )
    tell(child, busy=2)
    table.tell(table.add(NOW, 7), "in a test")
    rule.verdict(child, NOW + 0.2)
    found = rule.verdict(child, NOW + 0.3)
    assert found is not None
    assert found.act == "retire"
    child.ordered.note(Stop(NOW + 5.0))
    tell(child, state="retiring")
    begun.append(Replacement(child.slot, child, "max_age"))
    due = rule.due(child)
    assert due is not None
    found = rule.verdict(child, due)
    assert found is not None
    assert found.act == "remove"


def test_a_job_that_holds_the_interpreter_has_its_half_second_each_time(
    child_of: MakeChild,
) -> None:
    """An earlier overdue job, which has ended, takes nothing from it."""
    child = child_of()
    table = DeadlineTable(child.files.deadlines, 2)
    rule = HardLimits(60.0, cast(Replacements, Begun()))
    for began in (NOW, NOW + 100.0):
        place = table.add(began, 7)
        found = rule.verdict(child, began + 1.0)
        assert found is not None
        assert found.act == "signal stacks"
        assert rule.verdict(child, began + 1.4) is None
        table.clear(place)
        assert rule.verdict(child, began + 2.0) is None
    table.add(NOW + 200.0, 8)
    rule.verdict(child, NOW + 201.0)
    found = rule.verdict(child, NOW + 201.6)
    assert found is not None
    assert (found.act, found.overdue) == ("remove", True)


def test_a_child_that_was_killed_has_ended_no_overdue_job_by_itself(child_of: MakeChild) -> None:
    child = child_of()
    table = DeadlineTable(child.files.deadlines, 2)
    rule = HardLimits(60.0, cast(Replacements, Begun()))
    table.tell(table.add(NOW, 7), "in a test")
    assert rule.verdict(child, NOW + 0.2) is not None
    child.killed = True
    assert rule.verdict(child, NOW + 0.3) is None
    assert rule.due(child) is None


def test_children_have_their_time_to_report_after_the_master_was_stopped(
    child_of: MakeChild,
) -> None:
    """Perhaps they were stopped with it."""
    child, rule, now = child_of(), Silence(10.0), time.monotonic()
    child.told.heard_at = now - 300.0
    rule.look([child], now + 300.0)
    assert rule.verdict(child, now + 300.0) is None
    for seconds in range(301, 310):
        rule.look([child], now + seconds)
        assert rule.verdict(child, now + seconds) is None
    rule.look([child], now + 310.0)
    found = rule.verdict(child, now + 310.0)
    assert found is not None
    assert found.lines[0].values["silent_for"] == 10
    assert rule.has(child)


def test_a_child_whose_facts_cannot_be_read_is_neither_silent_nor_cut_off(
    child_of: MakeChild,
) -> None:
    """A job has written into its pipe. It has left its slot, and ends when its jobs have."""
    child, other, silence = child_of(), child_of(), Silence(10.0)
    cut_off = CutOff(10.0, silence)
    child.report.garbled = True
    began = time.monotonic()
    for seconds in range(0, 60, 4):
        tell(other, redis_at=began + seconds)
        for rule in (silence, cut_off):
            rule.look([child, other], began + seconds)
            assert rule.verdict(child, began + seconds) is None
    assert (silence.since(child), cut_off.seconds(child)) == (None, 0.0)


def test_the_next_program_does_not_tell_again_that_a_child_is_silent(child_of: MakeChild) -> None:
    child, rule = child_of(), Silence(10.0)
    rule.inherit(child, NOW)
    child.told.heard_at = NOW
    assert rule.verdict(child, NOW + 60.0) is None
    assert rule.since(child) == NOW
    child.told.heard_at = NOW + 61.0
    found = rule.verdict(child, NOW + 62.0)
    assert found is not None
    assert [said.event for said in found.lines] == ["child is back"]
