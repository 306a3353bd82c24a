"""No-op jobs per second of forkq and Sidekiq, measured alternately with the same load."""

from __future__ import annotations

import statistics
import time
import timeit
from collections.abc import Callable

import pytest

from forkq.child.heartbeat.stats import Tally
from tests.bench.load import drain, fill, forkq, sidekiq, sidekiq_version
from tests.support.server import Server

pytestmark = pytest.mark.bench

JOBS = 60_000
ROUNDS = 3


def _measured(server: Server, run: Callable[[], object]) -> float:
    with server.client() as client:
        client.flushall()
    fill(server, JOBS)
    with run():  # type: ignore[attr-defined]
        return drain(server, JOBS)


@pytest.mark.parametrize("processors", [10, 25])
def test_one_child_drains_no_op_jobs(server: Server, processors: int) -> None:
    """Prints jobs/s of one child, and the ratio to Sidekiq pair by pair where it is installed."""
    version = sidekiq_version()
    ratios = []
    for _ in range(ROUNDS):
        ours = _measured(server, lambda: forkq(server, "-c", str(processors)))
        line = f"forkq, {processors} processors: {ours:,.0f} jobs/s"
        if version:
            theirs = _measured(server, lambda: sidekiq(server, processors))
            ratios.append(ours / theirs)
            line += f"; {version}, {processors} threads: {theirs:,.0f}; ratio {ours / theirs:.1f}"
        print(f"\n{line}", end="")
    if ratios:
        print(f"\nmedian ratio {statistics.median(ratios):.1f}")
        assert statistics.median(ratios) >= 2


@pytest.mark.parametrize("processors", [1, 10, 25])
def test_cpu_time_per_job(server: Server, processors: int) -> None:
    """Prints the child's CPU time per no-op job, which a busy machine changes little."""
    fill(server, JOBS)
    with forkq(server, "-c", str(processors)) as child:
        drain(server, JOBS)
        times = child.cpu_times()
    each = [1e6 * seconds / JOBS for seconds in (times.user, times.system)]
    print(f"\n{processors} processors: {each[0]:.1f} us user + {each[1]:.1f} us system per job")
    assert sum(each) > 0


def test_cost_of_counting_a_job() -> None:
    """Prints the time that class, run time and histogram add to a job, beside a plain count."""
    tally, started = Tally(), time.monotonic()

    def fully() -> None:
        tally.count_done("Noop", time.monotonic() - started)

    def plainly() -> None:
        tally.processed += 1

    full, plain = (min(timeit.repeat(f, number=100_000, repeat=9)) * 1e4 for f in (fully, plainly))
    print(f"\n{full:.0f} ns with class, run time and bucket; {plain:.0f} ns as a plain count")
    assert full > 0
