"""One child on Python with and without the GIL: no-op jobs and jobs that compute.

docs/concurrency.md shows the figures. Both Pythons are measured in turn, in one run.
"""

from __future__ import annotations

import os
import statistics
import sys

import pytest

from forkq.wire.keys import Keys
from tests.bench.load import drain
from tests.support.server import Server
from tests.support.tree import ForkqTree
from tests.support.waiting import wait_until

pytestmark = pytest.mark.bench

APP = """
import forkq

@forkq.job(name="Noop")
def noop(): pass

@forkq.job(name="Compute")
def compute():
    for _ in range(100_000): pass
"""
BODY = '{"class":"%s","jid":"7ff3cf34efff6d76635f23dd","args":[],"retry":false}'
JOBS = {"Noop": 20_000, "Compute": 1000}
ROUNDS = 3
# Of environments that have forkq: FORKQ_TEST_PYTHONS="/srv/free/python -Xgil=0,/srv/gil/python"
PYTHONS = os.environ.get("FORKQ_TEST_PYTHONS", sys.executable).split(",")
WAITING = ("queue:default", Keys().inflight("default"))

Figures = tuple[float, float]  # jobs/s; microseconds of CPU time per job


@pytest.mark.parametrize("kind", JOBS)
def test_one_child_with_and_without_the_gil(server: Server, kind: str) -> None:
    """Prints both figures for each Python and number of processors."""
    cells = [(python, processors) for processors in (1, 2, 4) for python in PYTHONS]
    found: dict[tuple[str, int], list[Figures]] = {cell: [] for cell in cells}
    for _ in range(ROUNDS):
        for cell, rounds in found.items():
            rounds.append(_measured(server, kind, *cell))
    print(f"\n{kind}; load average at the end {os.getloadavg()[0]:.1f}")
    for (python, processors), rounds in found.items():
        speed, cost = (statistics.median(each) for each in zip(*rounds, strict=True))
        each_round = ", ".join(f"{figures[0]:,.0f}" for figures in rounds)
        print(
            f"  {python}, {processors}: {speed:,.0f} jobs/s ({each_round}), {cost:,.0f} us of CPU"
        )


def _measured(server: Server, kind: str, python: str, processors: int) -> Figures:
    with server.client() as client:
        client.flushall()
        client.sadd("queues", "default")
        for _ in range(JOBS[kind] // 1000):
            client.lpush("queue:default", *[BODY % kind] * 1000)
    tree = ForkqTree(server, app=APP, args=("--log-level", "warning", "-c", str(processors)))
    tree.program = (*python.split(), "-m", "forkq")
    try:
        tree.start().wait_ready()
        child = tree.children("forkq child")[0]
        speed = drain(server, JOBS[kind])
        with server.client() as client:
            wait_until(lambda: not client.exists(*WAITING), deadline=120, what="the last job")
        times = child.cpu_times()
        return speed, 1e6 * (times.user + times.system) / JOBS[kind]
    finally:
        tree.close()
