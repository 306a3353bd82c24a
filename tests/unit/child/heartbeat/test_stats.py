"""Counting without locks: tallies, their sum, and Sidekiq's buckets."""

from __future__ import annotations

import sys
import threading

import pytest

from forkq.child.failure.retry import End
from forkq.child.heartbeat.round_trip import RoundTrip
from forkq.child.heartbeat.stats import Tally, Totals, total
from forkq.wire.histogram import BOUNDS
from tests.support.recorded_log import RecordedLog


def test_a_tally_counts_failures_as_processed_and_their_time_not_at_all() -> None:
    tally = Tally()
    tally.count_done("A", 0.5)
    tally.count_done("A", 0.25)
    tally.count_failed("A")
    assert (tally.processed, tally.failed) == (3, 1)
    row = total([tally]).classes["A"]
    assert row[:4] == (1, 0, 0, 750)
    assert sum(row[4:]) == 2
    assert list(total([tally]).classes) == ["A"]


def test_a_failure_whose_retry_would_be_too_late_is_dropped() -> None:
    tally = Tally()
    tally.count_failed("A", End("expired", "A"))
    assert total([tally]).classes["A"][:3] == (1, 0, 1)


@pytest.mark.parametrize(
    ("milliseconds", "bucket"),
    [
        (0, 0), (19.9, 0), (20, 1), (29, 1), (30, 2), (499, 8), (500, 9), (1099, 10), (14_000, 17),
        (334_999, 24), (335_000, 25), (10**9, 25),
    ],
)  # fmt: skip
def test_a_run_time_goes_into_sidekiqs_bucket(milliseconds: float, bucket: int) -> None:
    tally = Tally()
    tally.count_done("A", milliseconds / 1000)
    _, _, _, _, *buckets = total([tally]).classes["A"]
    assert buckets.index(1) == bucket
    assert (len(buckets), sum(buckets)) == (len(BOUNDS) + 1, 1) == (26, 1)


def test_the_milliseconds_of_many_short_jobs_are_not_rounded_away() -> None:
    tally = Tally()
    for _ in range(10_000):
        tally.count_done("A", 0.0004)
    assert total([tally]).classes["A"][3] == pytest.approx(4000, abs=1)


def test_the_total_adds_processors_and_classes() -> None:
    one, two = Tally(), Tally()
    one.count_done("A", 0.001)
    two.count_done("A", 0.002)
    two.count_failed("B")
    whole = total([one, two], ran_twice={"A": 3})
    assert (whole.processed, whole.failed, whole.ran_twice) == (3, 1, {"A": (3,)})
    assert whole.classes["A"][:5] == (0, 0, 0, 3, 2)
    assert whole.classes["B"][:5] == (1, 0, 0, 0, 0)
    assert total([]) == Totals()


def test_no_count_is_lost_while_somebody_adds_the_tallies_up() -> None:
    """Processors count, and open new classes, while the heartbeat reads: in the end every job is
    there, and no sum ever shrinks."""
    tallies = [Tally() for _ in range(3)]
    jobs = 20_000

    def work(tally: Tally) -> None:
        for number in range(jobs):
            tally.count_done(f"Job{number % 500}", 0.001)

    threads = [threading.Thread(target=work, args=[tally]) for tally in tallies]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        last = Totals()
        while any(thread.is_alive() for thread in threads):
            seen = total(tallies)
            assert seen.processed >= last.processed
            assert _performed(seen) >= _performed(last)
            last = seen
    finally:
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join()
    assert total(tallies).processed == _performed(total(tallies)) == 3 * jobs


def _performed(totals: Totals) -> int:
    return sum(sum(row[4:]) for row in totals.classes.values())


def test_five_slow_round_trips_in_a_row_are_told_once_with_their_figures() -> None:
    log = RecordedLog()
    trip = RoundTrip(log)
    for number in range(20):
        trip.add(0.06 + number / 1000, busy=10)
    [(level, event, values)] = log.lines
    assert level == "warning"
    assert event.startswith("slow round trips")
    assert values == {"ms": [60, 61, 62, 63, 64], "busy": 10}
    assert trip.microseconds == 79_000


def test_a_good_round_trip_starts_the_count_anew() -> None:
    log = RecordedLog()
    trip = RoundTrip(log)
    for _ in range(3):
        for _ in range(4):
            trip.add(0.2, busy=1)
        trip.add(0.001, busy=1)
    assert log.lines == []
    for _ in range(2):
        for _ in range(6):
            trip.add(0.2, busy=1)
        trip.add(0.05, busy=1)
    assert len(log.lines) == 2
