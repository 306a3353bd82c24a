"""Jobs pushed per second by one thread, on one connection, beside redis-benchmark and Sidekiq.

redis-benchmark shows what a connection can do at most: it awaits each reply, and does nothing else.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import pytest

from tests.bench.load import PAYLOAD, sidekiq_version
from tests.support.documents import ROOT
from tests.support.server import Server

pytestmark = pytest.mark.bench

ROUNDS = 5
SINGLE, BULK = 5_000, 50_000
# Beside redis-benchmark: so many pairs of rounds, each of some 50 to 100 ms. What else the machine
# does changes more slowly than that, and so it changes both halves of a pair.
PAIRS, ROUND = 60, 800
PRIORITY: Final = 10  # of a real-time process

# Each prints two figures: pushes one by one, and rows of a bulk push, per second.
PYTHON: Final = """
import sys, time
import forkq

forkq.configure(sys.argv[1])

@forkq.job(name="Noop")
def noop(number: int, word: str) -> None: ...

def rate(count, push):
    began = time.monotonic()
    push()
    return count / (time.monotonic() - began)

def single():
    for number in range(SINGLE):
        noop.perform_async(number, "word")

noop.perform_async(0, "first")
bulk = lambda: noop.perform_bulk([(number, "word") for number in range(BULK)])
print(rate(SINGLE, single), rate(BULK, bulk))
"""
# Pushes one by one as often as a line of input says, and prints how many a second.
ON_DEMAND: Final = """
import sys, time
import forkq

forkq.configure(sys.argv[1])

@forkq.job(name="Noop")
def noop(number: int, word: str) -> None: ...

noop.perform_async(0, "first")
for line in sys.stdin:
    began = time.perf_counter()
    for number in range(int(line)):
        noop.perform_async(number, "word")
    print(int(line) / (time.perf_counter() - began), flush=True)
"""
RUBY: Final = """
require "sidekiq"
Sidekiq.configure_client { |config| config.redis = {url: ARGV[0]} }
class Noop
  include Sidekiq::Worker
end
def rate(count)
  began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  yield
  count / (Process.clock_gettime(Process::CLOCK_MONOTONIC) - began)
end
Noop.perform_async(0, "first")
one = rate(SINGLE) { SINGLE.times { |number| Noop.perform_async(number, "word") } }
bulk = rate(BULK) do
  rows = (0...BULK).map { |number| [number, "word"] }
  rows.each_slice(1000) { |slice| Sidekiq::Client.push_bulk("class" => Noop, "args" => slice) }
end
puts "#{one} #{bulk}"
"""


def _rates(command: list[str], program: str, server: Server) -> list[float]:
    with server.client() as client:
        client.flushall()
    text = program.replace("SINGLE", str(SINGLE)).replace("BULK", str(BULK))
    found = subprocess.run(
        [*command, text, server.url], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [float(figure) for figure in found.stdout.splitlines()[-1].split()]  # Ruby logs, too


def _most(server: Server) -> float:
    """LPUSHes of a job per second by one connection, one after the other. Each sends less than a
    push does, which names its queue in the same round trip."""
    command = f"redis-benchmark -p {server.port} -c 1 -n {ROUND} --csv LPUSH queue:default".split()
    found = subprocess.run([*command, PAYLOAD], capture_output=True, text=True, check=True)
    return float(found.stdout.splitlines()[-1].split('","')[-7])  # six times follow it


@pytest.fixture
def _ahead_of_others() -> Iterator[None]:
    """Runs what the test starts as real-time processes, where that is allowed: what else the
    machine does takes caches from them then, but no time."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    yield
    os.sched_setscheduler(0, *before)


def test_one_thread_pushes(server: Server) -> None:
    """Prints the figures of forkq and of Sidekiq, and the median ratios."""
    version = sidekiq_version()
    if version is None:
        pytest.skip("sidekiq is not installed: make test-deps")
    ratios = []
    for _ in range(ROUNDS):
        ours = _rates([sys.executable, "-c"], PYTHON, server)
        theirs = _rates(["ruby", "-e"], RUBY, server)
        ratios.append((ours[0] / theirs[0], ours[1] / theirs[1]))
        print(f"\nforkq {ours[0]:,.0f} and {ours[1]:,.0f} rows/s", end="; ")
        print(f"{version} {theirs[0]:,.0f} and {theirs[1]:,.0f}", end="")
    single, bulk = map(statistics.median, zip(*ratios, strict=True))
    print(f"\nmedian ratios: perform_async {single:.2f}, perform_bulk {bulk:.2f}")
    assert min(single, bulk) > 0


@pytest.mark.usefixtures("_ahead_of_others")
def test_a_push_beside_redis_benchmark(server: Server) -> None:
    """Prints the median ratio of a push to an LPUSH by redis-benchmark, and the quartiles."""
    if shutil.which("redis-benchmark") is None:
        pytest.skip("redis-benchmark is not installed: make test-deps")
    command = [sys.executable, "-c", ON_DEMAND, server.url]
    ratios = []
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        for _ in range(PAIRS):
            program.stdin.write(f"{ROUND}\n")
            program.stdin.flush()
            ours = float(program.stdout.readline())
            ratios.append(ours / _most(server))
        program.stdin.close()
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"\nperform_async to LPUSH by redis-benchmark: {middle:.3f} ({low:.2f} to {high:.2f})")
    assert low > 0
