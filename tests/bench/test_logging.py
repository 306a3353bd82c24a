"""What the log costs: no-op jobs per second and CPU time per job, with a line for each and without,
measured alternately."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager

import psutil
import pytest

from tests.bench.load import drain, fill, forkq, sidekiq, sidekiq_version
from tests.support.server import Server

pytestmark = pytest.mark.bench

JOBS = 60_000
ROUNDS = 3
PROCESSORS = 10


def _measured(
    server: Server, run: Callable[[], AbstractContextManager[psutil.Process]]
) -> tuple[float, float]:
    """Jobs per second, and microseconds of processor time per job."""
    with server.client() as client:
        client.flushall()
    fill(server, JOBS)
    with run() as process:
        before = process.cpu_times()
        speed = drain(server, JOBS)
        after = process.cpu_times()
    used = after.user + after.system - before.user - before.system
    return speed, 1e6 * used / JOBS


def test_lines_of_info_in_a_file(server: Server) -> None:
    """Prints jobs/s and processor time with INFO in a file, beside Sidekiq's command line, and
    beside forkq without lines, pair by pair."""
    version = sidekiq_version()
    if version is None:
        pytest.skip("Sidekiq is not installed: `make test-deps` installs it")
    ratios = []
    for _ in range(ROUNDS):
        ours, took = _measured(server, lambda: forkq(server, "-c", str(PROCESSORS), level="info"))
        with tempfile.TemporaryFile() as log:
            theirs, needed = _measured(server, lambda: sidekiq(server, PROCESSORS, log=log))
            lines = os.fstat(log.fileno()).st_size
        without, alone = _measured(server, lambda: forkq(server, "-c", str(PROCESSORS)))
        ratios.append((ours / theirs, needed / took, ours / without, alone / took))
        print(
            f"\nwith INFO in a file: forkq {ours:,.0f} jobs/s ({took:.1f} us of CPU a job), "
            f"{version} {theirs:,.0f} ({needed:.1f} us, {lines / JOBS:.0f} bytes a job); "
            f"forkq without: {without:,.0f} ({alone:.1f} us)",
            end="",
        )
    medians = [statistics.median(column) for column in zip(*ratios, strict=True)]
    names = ("to Sidekiq", "by CPU", "to forkq without lines", "by CPU")
    print("\nmedian ratios:", *(f"{n} {r:.2f};" for n, r in zip(names, medians, strict=True)))
    assert min(ratios)[0] > 1


@pytest.mark.parametrize("log_format", ["logfmt", "json", "console"])
def test_cpu_time_of_a_line(server: Server, log_format: str) -> None:
    """Prints the child's CPU time per no-op job, without lines and with a line for each."""
    figures = []
    for level in ("warning", "info") * ROUNDS:
        fill(server, JOBS)
        with forkq(server, "-c", "10", "--log-format", log_format, level=level) as child:
            drain(server, JOBS)
            times = child.cpu_times()
        with server.client() as client:
            client.flushall()
        figures.append(1e6 * (times.user + times.system) / JOBS)
    without, with_lines = (statistics.median(figures[i::2]) for i in (0, 1))
    print(f"\n{log_format}: {without:.1f} us a job, {with_lines:.1f} with a line", end="")
    assert without > 0
