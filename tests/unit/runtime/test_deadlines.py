"""The deadlines that a child shares with its master."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from forkq.runtime import shared_files
from forkq.runtime.deadlines import (
    DeadlineTable,
    Overdue,
    begun_in,
    last_begun,
    next_deadline,
    overdue,
    run_times,
    steps_in,
    units_at_work,
    units_in_progress,
)
from tests.support.waiting import wait_until


@pytest.fixture
def file() -> Iterator[int]:
    """As the master makes it."""
    descriptor = shared_files.make("deadlines")
    yield descriptor
    os.close(descriptor)


def test_before_the_child_has_given_it_a_size_there_is_no_deadline(file: int) -> None:
    assert next_deadline(file) is None
    assert overdue(file, 9.0) == []


def test_a_system_without_memory_files_has_a_file_on_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    descriptor = shared_files.make("deadlines")
    DeadlineTable(descriptor, 1).add(5.0, 3)
    assert overdue(descriptor, 6.0) == [Overdue(3, 5.0, told=False)]
    os.close(descriptor)


def test_what_a_fork_writes_the_other_process_reads(file: int) -> None:
    table = DeadlineTable(file, 1)
    pid = os.fork()
    if pid == 0:
        place = table.add(50.0, 2**40)
        table.tell(place, "f (é.py:3)" + "x" * 1000)
        os._exit(0)
    wait_until(lambda: os.waitpid(pid, os.WNOHANG)[0], what="the fork to end")
    assert next_deadline(file) == 50.0
    assert overdue(file, 49.9) == []
    (job,) = overdue(file, 50.0)
    assert (job.sequence, job.deadline, job.told) == (2**40, 50.0, True)
    assert job.calls.startswith("f (é.py:3)xxx")


def test_a_place_is_used_again_and_remembers_nothing(file: int) -> None:
    table = DeadlineTable(file, 1)
    places = set()
    for number in range(100):
        place = table.add(float(number + 1), number)
        table.tell(place, str(number))
        table.clear(place)
        places.add(place)
    assert -1 not in places
    assert next_deadline(file) is None
    place = table.add(7.0, 1)
    assert overdue(file, 8.0) == [Overdue(1, 7.0, told=False)]
    table.tell(place, "g")
    assert overdue(file, 8.0) == [Overdue(1, 7.0, told=True, calls="g")]
    table.tell(place, "g", blocks=True, cancelled=True)
    assert overdue(file, 8.0) == [
        Overdue(1, 7.0, told=True, calls="g", blocks=True, cancelled=True)
    ]


def test_a_full_table_refuses_and_stays_as_it_is(file: int) -> None:
    table = DeadlineTable(file, 2)
    places = [table.add(1.0, number) for number in range(100)]
    assert places.count(-1) > 0
    table.tell(-1, "f")
    table.clear(-1)
    assert len(overdue(file, 2.0)) == len(places) - places.count(-1)


def test_the_master_reads_which_leases_have_begun(file: int) -> None:
    """Leases begin in the order of their numbers: the highest one tells of all."""
    table = DeadlineTable(file, 2)
    assert last_begun(file) == 0
    (first, _), (second, _) = table.start_cells(), table.start_cells()
    pid = os.fork()
    if pid == 0:
        first[0], second[0] = 2**40, 7
        os._exit(0)
    wait_until(lambda: os.waitpid(pid, os.WNOHANG)[0], what="the fork to end")
    assert last_begun(file) == 2**40
    assert next_deadline(file) is None


def test_the_master_reads_which_job_a_thread_has_begun_last(file: int) -> None:
    table = DeadlineTable(file, 2)
    (first, _), (second, _) = table.start_cells(), table.start_cells()
    first[1], second[1] = 2**47 + 1, 2**47 + 2
    first[0], second[0] = 8, 9
    assert begun_in(file, 2**47 + 1) == 8
    assert begun_in(file, 2**47 + 2) == 9
    assert begun_in(file, 2**47 + 3) is None


def test_it_is_unknown_if_a_processor_has_no_place(file: int) -> None:
    table = DeadlineTable(file, 1)
    for _ in range(17):
        table.start_cells()[0][0] = 5
    assert last_begun(file) == 5
    table.start_cells()[0][0] = 6
    assert last_begun(file) is None


def test_the_master_reads_for_how_long_each_job_has_run(file: int) -> None:
    table = DeadlineTable(file, 3)
    places = [table.start_cells() for _ in range(3)]
    for place, (sequence, at) in zip(places, ((7, 100.0), (9, 40.5)), strict=False):
        place[1][0], place[0][0] = at, sequence
    assert run_times(file, 101.5, suspects=False) == {7: 1.5, 9: 61.0}
    assert run_times(file, 101.5, suspects=True) == {}


def test_the_master_reads_which_step_each_job_does(file: int) -> None:
    """Until it is over; a name is cut at its place, and one too many is not told."""
    table, suspects = DeadlineTable(file, 1), DeadlineTable(file, None)
    table.start_cells()[0][0] = 7
    places = [
        table.note_step(7, "charge"),
        table.note_step(9, "é" * 200),
        table.note_step(11, "x" * 600),
    ]
    of_suspect = suspects.note_step(7, "ship")
    assert suspects.note_step(8, "more") == -1
    told = {7: "charge", 9: "é" * 200, 11: "x" * 509}
    assert steps_in(file, suspects=False) == told
    assert steps_in(file, suspects=True) == {7: "ship"}
    for place in (*places, -1):
        table.clear_step(place)
    suspects.clear_step(of_suspect)
    assert steps_in(file, suspects=False) == steps_in(file, suspects=True) == {}
    numbers = [table.note_step(number, "short") for number in range(40)]
    assert numbers.count(-1) == 3
    assert steps_in(file, suspects=False) == dict.fromkeys(range(37), "short")
    assert run_times(file, 1.0, suspects=False).keys() == {7}


def test_the_suspect_that_an_ordinary_child_runs_has_places_of_its_own(file: int) -> None:
    """Its leases are counted apart, so the same numbers stand for others."""
    ordinary, suspects = DeadlineTable(file, 1), DeadlineTable(file, None)
    (lease, begun_at), (of_suspect, suspect_at) = ordinary.start_cells(), suspects.start_cells()
    begun_at[0], lease[0], lease[1] = 10.0, 3, 77
    suspect_at[0], of_suspect[0], of_suspect[1] = 12.0, 900, 78
    assert (last_begun(file), begun_in(file, 77), begun_in(file, 78)) == (3, 3, None)
    assert (ordinary.last_begun(), suspects.last_begun()) == (3, 900)
    assert run_times(file, 20.0, suspects=False) == {3: 10.0}
    assert run_times(file, 20.0, suspects=True) == {900: 8.0}
    ordinary.add(30.0, 3)
    place = suspects.add(31.0, 900)
    suspects.tell(place, "g")
    one, other = overdue(file, 40.0)
    assert one == Overdue(3, 30.0, told=False)
    assert other == Overdue(900, 31.0, told=True, calls="g", suspect=True)
    suspects.clear(place)
    assert next_deadline(file) == 30.0
    for _ in range(50):  # after a processor has died, another one has its place
        suspects.start_cells()
        suspects.clear(suspects.add(31.0, 901))
    assert last_begun(file) == 3


def test_an_event_loop_notes_its_units_and_whose_step_it_does(file: int) -> None:
    table = DeadlineTable(file, 4)
    assert units_in_progress(file) is None, "no event loop takes units"
    units, (of_thread, _) = table.unit_cells(3), table.start_cells()
    first, second = units.note(11, 5.0), units.note(12, 6.0)
    of_thread[1], of_thread[0] = 2**47 + 1, 13
    table.note_loop(2**47 + 2)
    assert units_in_progress(file) == frozenset({11, 12, 13})
    assert units_at_work(file) == {13}
    table.step_cells[0] = 12
    assert units_at_work(file) == {12, 13}
    assert begun_in(file, 2**47 + 2) == 12
    assert run_times(file, 10.0, suspects=False)[11] == 5.0
    units.clear(first)
    units.clear(second)
    assert units_in_progress(file) == frozenset({13})


def test_units_beyond_the_places_are_not_noted(file: int) -> None:
    units = DeadlineTable(file, 2).unit_cells(2)
    assert [units.note(number, 1.0) for number in (1, 2, 3)][2] == -1
    units.clear(-1)
    assert units_in_progress(file) == frozenset({1, 2})


def test_a_child_of_older_code_does_not_tell(file: int) -> None:
    assert last_begun(file) is None  # it has not given the file a size
    os.ftruncate(file, 17 * 536)
    assert last_begun(file) is None
