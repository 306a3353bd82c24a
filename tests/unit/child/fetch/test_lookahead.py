"""How many jobs are leased ahead, by what started lately and by what is expected to end."""

from __future__ import annotations

import pytest

from forkq.child.fetch import lookahead
from forkq.child.fetch.lookahead import Lookahead


class Clock:
    """Stands for ``monotonic``. Begins at the same time on each machine: how a sum is rounded
    depends on how large it is, and so on how long the machine has been up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(lookahead, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def made(clock: Clock) -> Lookahead:
    """A round trip of 2 ms."""
    made = Lookahead(processors=10)
    made.measured(0.002)
    return made


def test_a_child_that_has_just_begun_leases_nothing_ahead(made: Lookahead) -> None:
    made.plan(0, [], 0.0)
    assert (made.depth, made.low) == (0, 0)


def test_short_jobs_so_many_as_start_within_the_horizon(made: Lookahead, clock: Clock) -> None:
    """10,000 start in a second: 51 in 85 % of 6 ms (half of a round trip goes by until Redis leases
    them), and 32 in one and a half round trips and the time that Redis takes."""
    clock.now += 0.01
    made.plan(101, [], 10e-6)
    assert (made.depth, made.low) == (40, 30)  # no more than four for each processor at first
    clock.now += 0.01
    made.plan(202, [], 10e-6)
    assert (made.depth, made.low) == (51, 32)
    clock.now += 0.01
    made.plan(202, [], 10e-6)  # none has started since
    assert (made.depth, made.low) == (0, 0)


def test_the_time_in_which_there_were_no_jobs_does_not_count(made: Lookahead, clock: Clock) -> None:
    """Else the network would bound what is leased for it."""
    for started in (51, 102):
        clock.now += 0.01
        made.waited(0.005)
        made.plan(started, [], 10e-6)
    assert made.low == 32


def test_no_more_than_the_processors_can_do(made: Lookahead, clock: Clock) -> None:
    """Others may run while one waits for a reply."""
    for started in (50, 100, 150):
        clock.now += 0.01
        made.waited(0.0099)
        made.plan(started, [], 500e-6)
    assert made.low == 68


def test_a_fetch_that_is_due_asks_for_a_quarter_of_what_may_wait(
    made: Lookahead, clock: Clock
) -> None:
    """Else it would be due all the time where Redis is slow, and bring a few jobs only."""
    for started in range(1, 9):
        clock.now += 0.01
        made.plan(started * 1000, [], 1e-6)
    assert (made.depth, made.low) == (510, 382)


def test_no_more_than_fits_into_memory(made: Lookahead, clock: Clock) -> None:
    for started in range(1, 9):
        clock.now += 0.01
        made.plan(started * 10_000, [], 1e-6)
    assert made.depth == 2000


def test_longer_jobs_so_many_as_are_expected_to_end_soon(made: Lookahead, clock: Clock) -> None:
    """Of jobs of 10 ms, two end within the round trip and 3 ms more."""
    began = [clock.now - 0.010 + left for left in (0.001, 0.004, 0.006, 0.009)]
    made.plan(4, began, 0.010)
    assert made.depth == 2
    assert made.due - clock.now == pytest.approx(0.001 - 0.002 - 0.0015)


def test_a_job_that_runs_for_longer_than_the_mean_does_not_end_soon(
    made: Lookahead, clock: Clock
) -> None:
    made.plan(1, [clock.now - 1.0], 0.010)
    assert made.depth == 0


def test_a_processor_may_take_several_jobs_in_that_time(made: Lookahead, clock: Clock) -> None:
    made.plan(1, [clock.now], 0.002)  # it ends after 2 ms and again after 4 ms, of 5
    assert made.depth == 2


def test_long_jobs_gain_nothing(made: Lookahead, clock: Clock) -> None:
    made.plan(1, [clock.now - 0.999], 1.0)
    assert made.depth == 0
    assert made.due > clock.now + 3600


def test_the_shortest_round_trips_count_most(made: Lookahead) -> None:
    made.measured(0.018)
    assert made.round_trip == pytest.approx(0.004)
    made.measured(0.001)
    assert made.round_trip == 0.001
    assert made.horizon == 0.005
