"""What leaves room for other jobs, and what does not."""

from __future__ import annotations

from collections import deque
from threading import Thread

from forkq.child.fetch.leases import Leases
from forkq.wire.lease import UnitOfWork
from tests.support.recorded_log import RecordedLog

TOO_MANY = "fetching no more jobs: too many keep their leases without a processor"


def units(count: int) -> list[UnitOfWork]:
    return [UnitOfWork(1, "mail", number, b"x" * 2000) for number in range(count)]


def take(leases: Leases, count: int) -> list[UnitOfWork]:
    """As processors do."""
    place: deque[UnitOfWork] = deque()
    taker = leases.taker(place)
    for _ in range(count):
        next(taker)
    return list(place)


def test_parked_jobs_leave_room_until_they_are_too_many() -> None:
    log = RecordedLog()
    leases, failed = Leases(3, log), units(1003)
    leases.add(failed)
    take(leases, 1003)
    for number, unit in enumerate(failed):
        assert log.events() == [], number
        leases.park(unit)
    assert leases.count().occupying == 3
    assert log.events() == [TOO_MANY]


def test_what_no_processor_is_free_for_is_taken_back_youngest_first() -> None:
    leases = Leases(3, RecordedLog())
    fetched = units(6)
    leases.add(fetched)
    assert take(leases, 1) == fetched[:1]
    assert leases.take_surplus() == fetched[:2:-1]
    assert (leases.count().started, leases.count().ready) == (1, 2)
    leases.returned()
    assert leases.count().started == 1
    assert leases.known() == tuple(unit.sequence for unit in fetched[:3])
    assert leases.take_surplus() == []
    assert take(leases, 2) == fetched[1:3]


def test_only_a_unit_that_has_not_begun_is_dropped() -> None:
    leases = Leases(2, RecordedLog())
    fetched = units(2)
    leases.add(fetched)
    assert take(leases, 1) == fetched[:1]
    assert not leases.forget(fetched[0], if_ready=True)
    assert leases.forget(fetched[1], if_ready=True)
    assert list(leases.units().values()) == fetched[:1]


def test_what_is_known_is_read_while_other_threads_change_it() -> None:
    """As processors do. This can fail only on a Python that runs without the GIL."""
    leases, stays = Leases(2, RecordedLog()), UnitOfWork(1, "mail", -1, b"{}")
    leases.add([stays])

    def perform(first: int) -> None:
        for number in range(first, first + 3000):
            unit = UnitOfWork(1, "mail", number, b"{}")
            leases.add([unit])
            leases.end(unit)

    threads = [Thread(target=perform, args=[3000 * number]) for number in range(2)]
    for thread in threads:
        thread.start()
    looks = 0
    try:
        while looks < 20 or any(thread.is_alive() for thread in threads):
            assert stays.sequence in leases.known()
            leases.take_ended()
            looks += 1
    finally:
        for thread in threads:
            thread.join()
