"""The deadlines that a child shares with its master."""

from __future__ import annotations

import os

from forkq.runtime.deadlines import DeadlineTable, Overdue
from tests.support.waiting import wait_until


def test_what_a_fork_writes_the_other_process_reads() -> None:
    table = DeadlineTable(1)
    pid = os.fork()
    if pid == 0:
        place = table.note(50.0, 2**40)
        table.tell(place, "f (é.py:3)" + "x" * 1000)
        os._exit(0)
    wait_until(lambda: os.waitpid(pid, os.WNOHANG)[0], what="the fork to end")
    assert table.next == 50.0
    assert table.overdue(49.9) == []
    (job,) = table.overdue(50.0)
    assert (job.sequence, job.deadline, job.told) == (2**40, 50.0, True)
    assert job.calls.startswith("f (é.py:3)xxx")


def test_a_place_is_used_again_and_remembers_nothing() -> None:
    table = DeadlineTable(1)
    places = set()
    for number in range(100):
        place = table.note(float(number + 1), number)
        table.tell(place, str(number))
        table.clear(place)
        places.add(place)
    assert -1 not in places
    assert table.next is None
    place = table.note(7.0, 1)
    assert table.overdue(8.0) == [Overdue(1, 7.0, told=False)]
    table.tell(place, "g")
    assert table.overdue(8.0) == [Overdue(1, 7.0, told=True, calls="g")]


def test_a_full_table_refuses_and_stays_as_it_is() -> None:
    table = DeadlineTable(2)
    places = [table.note(1.0, number) for number in range(100)]
    assert places.count(-1) > 0
    table.tell(-1, "f")
    table.clear(-1)
    assert len(table.overdue(2.0)) == len(places) - places.count(-1)
