"""No-op jobs per second of one child whose Redis is a network away, and of Sidekiq beside it."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import pytest

from tests.bench.delay import REMEDY, away, has_compiler
from tests.bench.load import drain, fill, forkq, sidekiq, sidekiq_version
from tests.redis.in_process_child import ProcessorThreads
from tests.support.server import Server

pytestmark = [
    pytest.mark.bench,
    pytest.mark.skipif(not has_compiler(), reason=REMEDY),
]

ROUND_TRIPS = [0, 0.0012, 0.005]
Run = Callable[[], AbstractContextManager[object]]


def _measured(server: Server, run: Run, jobs: int) -> float:
    with server.client() as client:
        client.flushall()
    fill(server, jobs)
    with run():
        return drain(server, jobs)


@pytest.mark.parametrize("round_trip", ROUND_TRIPS)
@pytest.mark.parametrize("processors", [10, 25])
def test_no_op_jobs(server: Server, processors: int, round_trip: float) -> None:
    """Prints jobs/s of one child and of Sidekiq."""
    with away(server, round_trip) as front:
        ours = _measured(server, partial(forkq, front, "-c", str(processors)), 60_000)
        line = f"{round_trip * 1e3:g} ms, {processors} processors: {ours:,.0f} jobs/s"
        if version := sidekiq_version():
            theirs = _measured(server, partial(sidekiq, front, processors), 10_000)
            line += f"; {version}: {theirs:,.0f}; ratio {ours / theirs:.1f}"
    print(f"\n{line}", end="")


@pytest.mark.parametrize("round_trip", ROUND_TRIPS)
def test_jobs_of_10_ms(server: Server, round_trip: float) -> None:
    """Prints how near 10 processors come to 1,000 jobs/s."""
    with server.client() as client:
        client.lpush("queue:q", *range(4000))
    with away(server, round_trip) as front:
        child = ProcessorThreads(front.url, lambda unit: time.sleep(0.01), concurrency=10)
        with child:
            child.wait_runs(1000, deadline=60)
            first = time.monotonic(), len(child.order)
            child.wait_runs(3600, deadline=60)
            last = time.monotonic(), len(child.order)
            child.wait_runs(4000, deadline=60)
    speed = (last[1] - first[1]) / (last[0] - first[0])
    print(f"\n{round_trip * 1e3:g} ms: {speed:,.0f} jobs/s of 1,000", end="")


@pytest.mark.skipif(shutil.which("redis-benchmark") is None, reason="needs redis-benchmark")
def test_the_proxy_is_not_the_bound(server: Server) -> None:
    """Prints requests/s with 500 under way on each of 4 connections."""
    for round_trip in ROUND_TRIPS:
        with away(server, round_trip) as front:
            command = f"redis-benchmark -p {front.port} -c 4 -P 500 -n 1000000 -q -t get"
            done = subprocess.run(command.split(), capture_output=True, text=True, check=True)
        lines = [line for line in done.stdout.replace("\r", "\n").splitlines() if line.strip()]
        print(f"\n{round_trip * 1e3:g} ms: {lines[-1]}", end="")
