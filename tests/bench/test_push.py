"""Jobs pushed per second by one thread of forkq and of Sidekiq, in turn, on one connection each.

redis-benchmark shows what a connection can do at most: it awaits each reply, and does nothing else.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
from typing import Final

import pytest

from tests.bench.load import PAYLOAD, sidekiq_version
from tests.support.documents import ROOT
from tests.support.server import Server

pytestmark = pytest.mark.bench

ROUNDS = 5
SINGLE, BULK = 5_000, 50_000

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
    command = f"redis-benchmark -p {server.port} -c 1 -n {SINGLE} --csv LPUSH queue:default".split()
    found = subprocess.run([*command, PAYLOAD], capture_output=True, text=True, check=True)
    return float(found.stdout.splitlines()[-1].split('","')[-7])  # six times follow it


def test_one_thread_pushes(server: Server) -> None:
    """Prints the figures of all, and the ratios of each round."""
    version = sidekiq_version()
    if version is None or shutil.which("redis-benchmark") is None:
        pytest.skip("sidekiq or redis-benchmark is not installed: make test-deps")
    ratios = []
    for _ in range(ROUNDS):
        ours = _rates([sys.executable, "-c"], PYTHON, server)
        theirs = _rates(["ruby", "-e"], RUBY, server)
        most = _most(server)
        ratios.append((ours[0] / theirs[0], ours[1] / theirs[1], ours[0] / most))
        print(f"\nforkq {ours[0]:,.0f} and {ours[1]:,.0f} rows/s", end="; ")
        print(f"{version} {theirs[0]:,.0f} and {theirs[1]:,.0f}; LPUSH {most:,.0f}", end="")
    single, bulk, of_most = map(statistics.median, zip(*ratios, strict=True))
    print(f"\nmedian ratios: perform_async {single:.2f}, perform_bulk {bulk:.2f}", end="; ")
    print(f"perform_async to LPUSH by redis-benchmark {of_most:.2f}")
    assert min(single, bulk, of_most) > 0
