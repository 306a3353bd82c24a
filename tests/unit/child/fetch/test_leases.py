"""What leaves room for other jobs, and what does not."""

from __future__ import annotations

from collections import deque
from threading import Thread

import pytest

from forkq.child.failure.ends import Ending, Ends, OpenEndings, Outcome
from forkq.child.failure.retry import Retry
from forkq.child.fetch.leases import Leases
from forkq.store.connection import ResponseError
from forkq.store.dead_set import DeadSetLimits
from forkq.store.outage import Outage
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from tests.support.recorded_log import RecordedLog

TOO_MANY = "fetching no more jobs: too many keep their leases without a processor"

REFUSED = "redis does not take failed jobs; they are kept and tried again"
ENDS = Ends("vm:1:aaaaaaaaaaaa", Keys(), DeadSetLimits(Keys()))


def leases_of(capacity: int) -> Leases:
    log = RecordedLog()
    return Leases(capacity, OpenEndings(log, Outage(log)))


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
    leases, failed = Leases(3, OpenEndings(log, Outage(log))), units(1003)
    leases.add(failed)
    take(leases, 1003)
    for number, unit in enumerate(failed):
        assert TOO_MANY not in log.events(), number
        refuse(leases, unit)
    assert leases.count().occupying == 3
    assert log.events() == [REFUSED, TOO_MANY]


def refuse(leases: Leases, unit: UnitOfWork) -> list[Ending]:
    """It fails, and Redis refuses what was decided."""
    leases.end(unit, ENDS.retry(unit, Retry(5.5, b"again")))
    _, endings = leases.take_ended()
    for ending in endings:
        ending.call()
        ending.reply = ResponseError("no")
    leases.settle(endings)
    return endings


def test_what_was_refused_is_told_again_one_of_each_kind_first() -> None:
    """And the rest once Redis has taken that one."""
    leases, failed = leases_of(3), units(4)
    leases.add(failed)
    take(leases, 4)
    for unit in failed[:3]:
        refuse(leases, unit)
    assert (leases.count().parked, leases.count().due) == (3, 0)
    assert leases.take_ended() == ([], [])
    leases.endings.hurry()
    assert leases.count().due == 3
    _, [probe] = leases.take_ended()
    assert set(leases.sequences()) == {0, 1, 2, 3}, "Redis may refuse it again"
    probe.call()
    probe.reply = 1
    leases.settle([probe])
    _, rest = leases.take_ended()
    assert [ending.unit for ending in rest] == failed[1:3]
    assert probe.unit is failed[0]
    assert leases.count().parked == 2, "until Redis has replied"
    for ending in rest:
        ending.call()
        ending.reply = 1
    leases.settle(rest)
    assert (leases.count().parked, leases.count().ended) == (0, 0), "each is sent once"


def test_an_exchange_moves_a_bounded_number_of_bytes() -> None:
    leases, failed = leases_of(300), units(250)
    leases.add(failed)
    take(leases, 250)
    for unit in failed:
        size = 200_000 if unit.sequence < 4 else 10
        leases.end(unit, ENDS.retry(unit, Retry(5.5, b"x" * size)))
    found = []
    while leases.count().ended:
        found.append(len(leases.take_ended()[1]))
    assert found == [3, 100, 100, 47]


OUTCOMES: list[tuple[list[object], Outcome]] = [
    ([1], "moved"),
    ([0], "gone"),
    ([ResponseError("no")], "refused"),
    ([None, 0], "moved"),  # the first reply was lost
    ([ResponseError("no"), 0], "gone"),
]


@pytest.mark.parametrize(("replies", "outcome"), OUTCOMES)
def test_what_a_reply_means(replies: list[object], outcome: Outcome) -> None:
    """A lease that is gone was taken by another host, unless an earlier call may have moved it."""
    [unit] = units(1)
    told: list[Outcome] = []
    ending = ENDS.retry(unit, Retry(5.5, b"again"))
    ending.told = told.append
    for reply in replies:
        ending.call()
        ending.reply = reply
        if reply is not None:
            found = ending.judge()
            ending.tell(found)
    assert found == outcome
    assert len(told) == 1


def test_a_unit_that_moves_needs_no_processor_and_has_one_end() -> None:
    """Nor does it while Redis is away. Whoever ends it twice is told at once."""
    leases, told = leases_of(2), list[Outcome]()
    leases.add(units(2))
    one, _ = take(leases, 2)
    first, second = ENDS.retry(one, Retry(5.5, b"again")), ENDS.return_to_queue(one)
    second.told = told.append
    leases.end(one, first)
    leases.end(one, second)
    assert told == ["moved"]
    assert (leases.count().running, leases.count().free) == (1, 1)
    assert leases.take_ended() == ([], [first])
    assert one.sequence in leases.sequences()
    leases.end(one, first)  # its reply was lost
    assert leases.take_ended() == ([], [first])
    assert leases.count().free == 1


def test_a_consumer_that_goes_on_after_the_end_is_not_free() -> None:
    leases = leases_of(2)
    leases.add(units(2))
    one, _ = take(leases, 2)
    leases.occupy("its consumer", on=True)
    leases.end(one, ENDS.retry(one, Retry(5.5, b"again")))
    assert leases.count().all_busy
    leases.occupy("its consumer", on=False)
    assert leases.count().free == 1


def test_what_no_processor_is_free_for_is_taken_back_youngest_first() -> None:
    leases = leases_of(3)
    fetched = units(6)
    leases.add(fetched)
    assert take(leases, 1) == fetched[:1]
    assert leases.take_surplus() == fetched[:2:-1]
    assert (leases.count().started, leases.count().ready) == (1, 2)
    leases.returned()
    assert leases.count().started == 1
    assert leases.sequences() == tuple(unit.sequence for unit in fetched[:3])
    assert leases.take_surplus() == []
    assert take(leases, 2) == fetched[1:3]


def test_only_a_unit_that_has_not_begun_is_dropped() -> None:
    leases = leases_of(2)
    fetched = units(2)
    leases.add(fetched)
    assert take(leases, 1) == fetched[:1]
    assert not leases.drop(fetched[0])
    assert leases.drop(fetched[1])
    assert list(leases.units().values()) == fetched[:1]


def test_what_is_known_is_read_while_other_threads_change_it() -> None:
    """As processors do. This can fail only on a Python that runs without the GIL."""
    leases, stays = leases_of(2), UnitOfWork(1, "mail", -1, b"{}")
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
            assert stays.sequence in leases.sequences()
            leases.take_ended()
            looks += 1
    finally:
        for thread in threads:
            thread.join()


def settle(leases: Leases, unit: UnitOfWork, ending: Ending, reply: object) -> None:
    """The unit ends so, and Redis replies."""
    leases.end(unit, ending)
    assert leases.take_ended()[1] == [ending]
    ending.call()
    ending.reply = reply
    leases.settle([ending])


def test_a_lease_that_is_gone_is_lost() -> None:
    leases, [unit] = leases_of(1), units(1)
    lost: list[UnitOfWork] = []
    leases.on_lost = lost.append
    leases.add([unit])
    take(leases, 1)
    settle(leases, unit, ENDS.retry(unit, Retry(5.5, b"again")), 0)
    assert (lost, unit.lost) == ([unit], True)


@pytest.mark.parametrize("reply", [0, ResponseError("no")])
def test_a_second_ending_of_a_unit_that_has_moved_changes_nothing(reply: object) -> None:
    """An exception of the app may end a processor's wait; the job is then settled once more."""
    leases, [unit] = leases_of(1), units(1)
    lost: list[UnitOfWork] = []
    leases.on_lost = lost.append
    leases.add([unit])
    take(leases, 1)
    settle(leases, unit, ENDS.retry(unit, Retry(5.5, b"again")), 1)
    settle(leases, unit, ENDS.return_to_queue(unit), reply)
    assert (lost, unit.lost) == ([], False)
    count = leases.count()
    assert (count.running, count.parked, count.occupying, count.free) == (0, 0, 0, 1)
