"""How many jobs are leased ahead, by what started lately and by what is expected to end; and how
long a child holds back after a wake-up. All times are made up."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from forkq.child.fetch.plan import FetchPace, FetchPlan

LONG = 60.0


class Made:
    """A pace of ten processors, with a round trip of 2 ms, at the made-up time ``now``."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pace = FetchPace(10, self.now)
        self.pace.measured(0.002)

    def plan(self, started: int, began: Iterable[float], run_time: float) -> FetchPlan:
        self.pace.run_time = run_time
        return self.pace.plan(self.now, started, began)

    def woken(self, *, won: bool) -> float:
        """How long the child holds back before a fetch that brings something, or nothing."""
        pause = self.pace.woken(self.now)
        self.pace.replied(self.now, 0.002, int(won), ruled=False, woken=True)
        return pause


@pytest.fixture
def made() -> Made:
    return Made()


def test_a_child_that_has_just_begun_leases_nothing_ahead(made: Made) -> None:
    plan = made.plan(0, [], 0.0)
    assert (plan.depth, plan.low) == (0, 0)


def test_short_jobs_so_many_as_start_within_the_horizon(made: Made) -> None:
    """10,000 start in a second: 51 in 85 % of 6 ms (half of a round trip goes by until Redis leases
    them), and 32 in one and a half round trips and the time that Redis takes."""
    made.now += 0.01
    plan = made.plan(101, [], 10e-6)
    assert (plan.depth, plan.low) == (40, 30)  # no more than four for each processor at first
    made.now += 0.01
    plan = made.plan(202, [], 10e-6)
    assert (plan.depth, plan.low) == (51, 32)
    made.now += 0.01
    plan = made.plan(202, [], 10e-6)  # none has started since
    assert (plan.depth, plan.low) == (0, 0)


def test_the_time_in_which_there_were_no_jobs_does_not_count(made: Made) -> None:
    """Else the network would bound what is leased for it."""
    for started in (51, 102):
        made.now += 0.01
        made.pace.waited(0.005)
        plan = made.plan(started, [], 10e-6)
    assert plan.low == 32


def test_no_more_than_the_processors_can_do(made: Made) -> None:
    """Others may run while one waits for a reply."""
    for started in (50, 100, 150):
        made.now += 0.01
        made.pace.waited(0.0099)
        plan = made.plan(started, [], 500e-6)
    assert plan.low == 68


def test_a_fetch_that_is_due_asks_for_a_quarter_of_what_may_wait(made: Made) -> None:
    """Else it would be due all the time where Redis is slow, and bring a few jobs only."""
    for started in range(1, 9):
        made.now += 0.01
        plan = made.plan(started * 1000, [], 1e-6)
    assert (plan.depth, plan.low) == (510, 382)


def test_no_more_than_fits_into_memory(made: Made) -> None:
    for started in range(1, 9):
        made.now += 0.01
        plan = made.plan(started * 10_000, [], 1e-6)
    assert plan.depth == 2000


def test_longer_jobs_so_many_as_are_expected_to_end_soon(made: Made) -> None:
    """Of jobs of 10 ms, two end within the round trip and 3 ms more."""
    began = [made.now - 0.010 + left for left in (0.001, 0.004, 0.006, 0.009)]
    plan = made.plan(4, began, 0.010)
    assert plan.depth == 2
    assert plan.due_at - made.now == pytest.approx(0.001 - 0.002 - 0.0015)


def test_a_job_that_runs_for_longer_than_the_mean_does_not_end_soon(made: Made) -> None:
    plan = made.plan(1, [made.now - 1.0], 0.010)
    assert plan.depth == 0


def test_a_processor_may_take_several_jobs_in_that_time(made: Made) -> None:
    plan = made.plan(1, [made.now], 0.002)  # it ends after 2 ms and again after 4 ms, of 5
    assert plan.depth == 2


def test_long_jobs_gain_nothing(made: Made) -> None:
    plan = made.plan(1, [made.now - 0.999], 1.0)
    assert plan.depth == 0
    assert plan.due_at > made.now + 3600


def test_the_shortest_round_trips_count_most(made: Made) -> None:
    made.pace.measured(0.018)
    assert made.pace.round_trip == pytest.approx(0.004)
    made.pace.measured(0.001)
    assert made.pace.round_trip == 0.001
    assert made.pace.horizon == 0.005


def test_a_child_goes_at_once_until_it_is_woken_in_vain(made: Made) -> None:
    assert made.woken(won=True) == 0
    assert made.woken(won=False) == 0
    assert 0.001 <= made.woken(won=False) <= 0.002
    assert 0.002 <= made.woken(won=True) <= 0.004
    assert made.woken(won=True) == 0


def test_a_child_that_was_woken_in_vain_holds_back_after_a_quiet_time_too(made: Made) -> None:
    """One of several idle children goes at once: the one that had the last job."""
    for _ in range(9):
        made.woken(won=False)
    made.now += LONG
    assert 0.001 <= made.woken(won=False) <= 0.002
    made.now += LONG
    assert 0.001 <= made.woken(won=True) <= 0.002
    made.now += LONG
    assert made.woken(won=True) == 0
