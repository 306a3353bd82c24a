"""Workers x concurrency for each kind of job: jobs per second, time to start, memory, connections.

docs/concurrency.md shows the figures. All shapes are measured in turn, several rounds in one run.
"""

from __future__ import annotations

import hashlib
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

pytestmark = pytest.mark.bench

APP = """
import hashlib, os, time, forkq

LAPS = os.open(os.environ["FORKQ_TEST_LAPS"], os.O_WRONLY | os.O_APPEND)
MEGABYTE = bytes(1_000_000)

def compute(steps):
    for _ in range(steps): pass

def digest(updates):
    found = hashlib.sha256()
    for _ in range(updates): found.update(MEGABYTE)

def wait(seconds):
    time.sleep(seconds)

def wait_and_compute(steps):
    time.sleep(0.045)
    compute(steps)

KINDS = {"wait": wait, "compute": compute, "digest": digest, "both": wait_and_compute}

@forkq.job(name="Lap")
def lap(kind, amount, pushed):
    started = time.monotonic()
    KINDS[kind](amount)
    os.write(LAPS, b"%f %f %f\\n" % (pushed, started, time.monotonic()))
"""
LARGE_APP = """
import sqlalchemy.orm, forkq

@forkq.job(name="Small")
def small(): pass

@forkq.job(name="Push")
def push(): small.perform_async()
"""

SHAPES = [(1, 1), (1, 10), (2, 5), (4, 5), (2, 25)]
ROUNDS = 3
CPU = 0.005  # seconds of processor time in a job that computes
WAIT = 0.05
SECONDS = 1.5  # about as long as each measurement takes

Lap = tuple[float, float, float]  # when the job was pushed, started and ended
Figures = tuple[float, float, float, float]  # jobs/s; seconds: run p50, push to start p50 and p99


def _in_cpu_time(step: Callable[[int], None], first: int) -> int:
    """How much of it takes CPU seconds: by the fastest of some tries."""
    took = []
    for _ in range(20):
        started = time.thread_time()
        step(first)
        took.append(time.thread_time() - started)
    return max(1, round(first * CPU / min(took)))


def _compute(steps: int) -> None:
    for _ in range(steps):
        pass


def _digest(updates: int) -> None:
    found, megabyte = hashlib.sha256(), bytes(1_000_000)
    for _ in range(updates):
        found.update(megabyte)


def _expected(kind: str, workers: int, concurrency: int) -> float:
    """Jobs per second of an ideal machine: only how many jobs a measurement has comes of it."""
    slots, cores = workers * concurrency, os.cpu_count() or 1
    busy = {"wait": slots / WAIT, "compute": min(workers, cores) / CPU}
    busy["digest"] = min(slots, cores) / CPU
    busy["both"] = min(slots / WAIT, busy["compute"])
    return busy[kind]


def _amount(kind: str) -> float:
    """What the job gets: seconds, steps or megabytes."""
    steps, megabytes = _in_cpu_time(_compute, 100_000), _in_cpu_time(_digest, 5)
    return {"wait": WAIT, "compute": steps, "digest": megabytes, "both": steps}[kind]


@dataclass(frozen=True, slots=True)
class Load:
    """Jobs of one kind, pushed to a tree that runs."""

    server: Server
    laps: Path
    kind: str
    amount: float

    def _run(self, pauses: list[float]) -> list[Lap]:
        """Pushes a job after each pause, and waits for the end of all."""
        os.truncate(self.laps, 0)
        body = '{"class":"Lap","jid":"%024x","args":["%s",%r,%r],"retry":false}'
        with self.server.client() as client:
            client.sadd("queues", "default")
            due = time.monotonic()
            for number, pause in enumerate(pauses):
                due += pause
                time.sleep(max(0.0, due - time.monotonic()))
                job = body % (number, self.kind, self.amount, time.monotonic())
                client.lpush("queue:default", job)
        return self._ended(len(pauses))

    def _ended(self, count: int) -> list[Lap]:
        def lines() -> list[str]:
            found = self.laps.read_text().splitlines()
            return found if len(found) == count else []

        found = wait_until(lines, deadline=120, every=0.02, what=f"{count} jobs") or []
        return [(float(a), float(b), float(c)) for a, b, c in (line.split() for line in found)]

    def figures(self, jobs: int) -> Figures:
        """First of a backlog, then of pushes at random times, at half of that speed."""
        laps = self._run([0.0] * jobs)
        speed = jobs / (max(lap[2] for lap in laps) - min(lap[1] for lap in laps))
        dice = random.Random(12)
        count = max(10, round(speed / 2 * SECONDS))
        later = self._run([dice.expovariate(speed / 2) for _ in range(count)])
        waits = [lap[1] - lap[0] for lap in later]
        run = statistics.median(lap[2] - lap[1] for lap in laps)
        return speed, run, statistics.median(waits), statistics.quantiles(waits, n=100)[98]


@pytest.mark.parametrize("kind", ["wait", "compute", "digest", "both"])
def test_speed_and_time_to_start(server: Server, tmp_path: Path, kind: str) -> None:
    """Prints, for each shape, both and how long a job runs beside the others."""
    load = Load(server, tmp_path / "laps", kind, _amount(kind))
    load.laps.touch()
    found: dict[tuple[int, int], list[Figures]] = {shape: [] for shape in SHAPES}
    for _ in range(ROUNDS):
        for shape, rounds in found.items():
            rounds.append(_measured(load, shape))
    load_average = os.getloadavg()[0]
    print(f"\n{kind}: shape, jobs/s (each round), to 1x1; run p50; push to start p50, p99;", end="")
    print(f" the machine's load average at the end {load_average:.1f}")
    first = statistics.median(figures[0] for figures in found[1, 1])
    for shape, rounds in found.items():
        _print(shape, rounds, first)
    assert first > 0


def _measured(load: Load, shape: tuple[int, int]) -> Figures:
    start_tree, (workers, concurrency) = StartTree(), shape
    args = ("-w", str(workers), "-c", str(concurrency), "--log-level", "warning")
    try:
        start_tree(load.server, app=APP, args=args, env={"FORKQ_TEST_LAPS": str(load.laps)})
        return load.figures(max(10, round(_expected(load.kind, *shape) * SECONDS)))
    finally:
        start_tree.close()


def _print(shape: tuple[int, int], rounds: list[Figures], first: float) -> None:
    speed, run, middle, late = (statistics.median(each) for each in zip(*rounds, strict=True))
    speeds = ", ".join(f"{figures[0]:.0f}" for figures in rounds)
    print(
        f"  {shape[0]}x{shape[1]}: {speed:.0f} ({speeds}), {speed / first:.1f}x; "
        f"{1000 * run:.1f} ms; {1000 * middle:.1f} ms, {1000 * late:.1f} ms"
    )


def _pss(tree: ForkqTree) -> list[float]:
    """MB of each process of the tree: its own memory, and its share of what it shares."""
    return [process.memory_full_info().pss / 1e6 for process in tree.processes()]


@pytest.mark.parametrize("preload", ["false", "true"])
@pytest.mark.parametrize("shape", SHAPES)
def test_memory_and_connections(server: Server, shape: tuple[int, int], preload: str) -> None:
    """Prints the memory of an app that imports SQLAlchemy, and the connections to Redis: idle, and
    after jobs that push on all processors."""
    pytest.importorskip("sqlalchemy")
    workers, concurrency = shape
    start_tree = StartTree()
    args = ("-w", str(workers), "-c", str(concurrency), "--log-level", "warning")
    try:
        tree = start_tree(server, app=LARGE_APP, args=args, env={"FORKQ_PRELOAD": preload})
        with server.client() as client:
            wait_until(lambda: client.scard("processes") == workers, what="the process records")
            idle = len(client.client_list()) - 1
            body = '{"class":"Push","jid":"%024x","args":[],"retry":false}'
            bodies = [body % random.getrandbits(96) for _ in range(4000)]
            client.lpush("queue:default", *bodies)
            most = [idle]

            def drained() -> bool:
                most.append(len(client.client_list()) - 1)
                return int(client.llen("queue:default")) == 0

            wait_until(drained, deadline=120, every=0.01, what="an empty queue")
            assert not client.zcard("retry")
        memory = _pss(tree)
    finally:
        start_tree.close()
    total, largest = sum(memory), max(memory)
    print(
        f"\n{workers}x{concurrency}, preload = {preload}: {total:.0f} MB in {len(memory)} "
        f"processes (the largest {largest:.0f} MB); connections: {idle} idle, {max(most)} at most",
        end="",
    )
    assert total > 0
