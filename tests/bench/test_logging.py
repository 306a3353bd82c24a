"""What the log costs: no-op jobs per second and CPU time per job, with a line for each and without,
measured alternately."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from tests.bench.load import drain, fill, forkq, sidekiq, sidekiq_version
from tests.support.server import Server

pytestmark = pytest.mark.bench

JOBS = 60_000
ROUNDS = 3
PROCESSORS = 10


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of its own, without persistence."""
    server = Server(tcp=True).start()
    yield server
    server.close()


def _measured(server: Server, run: Callable[[], AbstractContextManager[object]]) -> float:
    with server.client() as client:
        client.flushall()
    fill(server, JOBS)
    with run():
        return drain(server, JOBS)


def test_lines_of_info_in_a_file(server: Server) -> None:
    """Prints jobs/s with INFO in a file, and the ratio to Sidekiq's command line pair by pair."""
    version = sidekiq_version()
    if version is None:
        pytest.skip("Sidekiq is not installed: `make test-deps` installs it")
    ratios, quiet = [], []
    for _ in range(ROUNDS):
        ours = _measured(server, lambda: forkq(server, "-c", str(PROCESSORS), level="info"))
        with tempfile.TemporaryFile() as log:
            theirs = _measured(server, lambda: sidekiq(server, PROCESSORS, log=log))
            lines = _lines_in(log.fileno())
        without = _measured(server, lambda: forkq(server, "-c", str(PROCESSORS)))
        ratios.append(ours / theirs)
        quiet.append(ours / without)
        print(
            f"\nwith INFO in a file: forkq {ours:,.0f} jobs/s, {version} {theirs:,.0f} "
            f"({lines / JOBS:.1f} lines a job); ratio {ratios[-1]:.1f}; forkq without: "
            f"{without:,.0f}, ratio {quiet[-1]:.2f}",
            end="",
        )
    print(f"\nmedian ratio {statistics.median(ratios):.1f}; {statistics.median(quiet):.2f}")
    assert min(ratios) > 1


def _lines_in(fd: int) -> int:
    with open(fd, "rb", closefd=False) as log:
        log.seek(0)
        return log.read().count(b"\n")


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
