"""What the delaying proxy itself lets through, and how exact it is: measured in each run."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import time

from tests.bench.compare.record import Row
from tests.support.server import Server

# As many requests under way as forkq leases jobs at its highest rate.
BENCHMARK = "redis-benchmark -p {port} -c 4 -P 500 -n 500000 -q -t get"
TRIPS = 200


def ceiling(front: Server, network: float) -> Row:
    """Requests/s through the proxy, and the round trip of a PING, in ms."""
    row: Row = {"network": network, "ping_ms": _ping(front)}
    if shutil.which("redis-benchmark"):
        row["requests"] = _requests(front)
    return row


def _ping(front: Server) -> float:
    trips = []
    with front.client() as client:
        for _ in range(TRIPS):
            started = time.monotonic()
            client.ping()
            trips.append(1e3 * (time.monotonic() - started))
    return statistics.median(trips)


def _requests(front: Server) -> float:
    command = BENCHMARK.format(port=front.port).split()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = [line for line in done.stdout.replace("\r", "\n").splitlines() if "per second" in line]
    return float(said[-1].split(": ")[1].split()[0])
