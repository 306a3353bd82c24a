"""What leaves room for other jobs, and what does not."""

from __future__ import annotations

from threading import Thread

from forkq.child.fetch.fetch_turn import Holdings
from forkq.child.fetch.in_flight import InFlight
from forkq.wire.lease import UnitOfWork


def units(count: int) -> list[UnitOfWork]:
    return [UnitOfWork(1, "mail", number, b"x" * 2000) for number in range(count)]


def test_parked_jobs_leave_room_until_they_are_too_many() -> None:
    in_flight, failed = InFlight(), units(1003)
    in_flight.add(failed)
    in_flight.ready.clear()
    for unit in failed:
        in_flight.park(unit)
    assert in_flight.occupying() == in_flight.parked_too_many() == 3


def test_what_no_processor_is_free_for_is_taken_back_youngest_first() -> None:
    in_flight = InFlight()
    fetched = units(6)
    in_flight.add(fetched)
    holdings = Holdings()
    assert in_flight.next(holdings) is fetched[0]
    assert in_flight.take_surplus(3) == fetched[:2:-1]
    assert (in_flight.started, list(in_flight.ready)) == (1, fetched[1:3])
    in_flight.surplus_returned()
    assert in_flight.started == 1
    assert in_flight.known() == tuple(unit.sequence for unit in fetched[:3])
    assert in_flight.take_surplus(3) == []


def test_only_a_unit_that_has_not_begun_is_dropped() -> None:
    in_flight = InFlight()
    fetched = units(2)
    in_flight.add(fetched)
    assert in_flight.next(Holdings()) is fetched[0]
    assert not in_flight.drop(fetched[0])
    assert in_flight.drop(fetched[1])
    assert in_flight.units() == [fetched[0]]


def test_what_is_known_is_read_while_other_threads_change_it() -> None:
    """As processors do. This can fail only on a Python that runs without the GIL."""
    in_flight, stays = InFlight(), UnitOfWork(1, "mail", -1, b"{}")
    in_flight.add([stays])

    def perform(first: int) -> None:
        for number in range(first, first + 3000):
            unit = UnitOfWork(1, "mail", number, b"{}")
            in_flight.add([unit])
            in_flight.finish(unit)

    threads = [Thread(target=perform, args=[3000 * number]) for number in range(2)]
    for thread in threads:
        thread.start()
    looks = 0
    try:
        while looks < 20 or any(thread.is_alive() for thread in threads):
            assert stays.sequence in in_flight.known()
            in_flight.take_done()
            looks += 1
    finally:
        for thread in threads:
            thread.join()
