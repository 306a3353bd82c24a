"""Jobs pushed per second by one thread of forkq and of Sidekiq, in turn, on one connection each."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from tests.bench.load import sidekiq_version
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


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(tcp=True).start()
    yield server
    server.close()


def _rates(command: list[str], program: str, server: Server) -> list[float]:
    with server.client() as client:
        client.flushall()
    text = program.replace("SINGLE", str(SINGLE)).replace("BULK", str(BULK))
    found = subprocess.run(
        [*command, text, server.url], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [float(figure) for figure in found.stdout.split()]


def test_one_thread_pushes(server: Server) -> None:
    """Prints both figures of both, and the ratios pair by pair."""
    version = sidekiq_version()
    if version is None:
        pytest.skip("sidekiq is not installed: make test-deps")
    ratios = []
    for _ in range(ROUNDS):
        ours = _rates([sys.executable, "-c"], PYTHON, server)
        theirs = _rates(["ruby", "-e"], RUBY, server)
        ratios.append([mine / its for mine, its in zip(ours, theirs, strict=True)])
        print(f"\nforkq {ours[0]:,.0f} and {ours[1]:,.0f} rows/s", end="; ")
        print(f"{version} {theirs[0]:,.0f} and {theirs[1]:,.0f}", end="")
    single, bulk = map(statistics.median, zip(*ratios, strict=True))
    print(f"\nmedian ratios: perform_async {single:.2f}, perform_bulk {bulk:.2f}")
    assert single > 0
    assert bulk > 0
