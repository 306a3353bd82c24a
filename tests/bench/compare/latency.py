"""From push to start: on an idle tree, under load, and after a SIGKILL."""

from __future__ import annotations

import json
import mmap
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from forkq.values import replace
from tests.bench.compare.cell import Stage
from tests.bench.compare.environments import prepare
from tests.bench.compare.peers import FORKQ, PEERS
from tests.bench.compare.record import Row
from tests.support.server import Server
from tests.support.waiting import wait_until

LAPS = 400
PAUSE = 0.005  # seconds between two laps
HELD = 1000  # jobs in progress in the child that is killed

# What runs beside the laps: which job, and how many of them a second. Four children of ten
# processors can do 4,000 naps of 10 ms.
BESIDE = {
    "idle": ("nap", 0),
    "50 % of 4,000 naps/s": ("nap", 2000),
    "90 % of 4,000 naps/s": ("nap", 3600),
    "1,000 jobs/s that hold the GIL for 0.2 ms": ("spin", 1000),
}


class Starts:
    """A file of times, which jobs write into."""

    def __init__(self, path: Path, places: int) -> None:
        self.path = path
        self._places = places
        path.write_bytes(bytes(8 * places))
        with path.open("r+b") as file:
            self.cells: Any = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")

    def begun(self) -> int:
        """How many have started at least once."""
        return sum(1 for cell in self.cells if cell)


def _payload(name: str, number: int, *args: object) -> str:
    return json.dumps(
        {"class": name, "jid": f"{number:024x}", "args": args, "retry": False, "queue": "default"}
    )


@contextmanager
def _tree(server: Server, places: int, *options: str) -> Iterator[tuple[psutil.Process, Starts]]:
    """forkq on an empty server, all its children there."""
    with tempfile.TemporaryDirectory() as folder:
        starts = Starts(Path(folder) / "starts", places)
        peer = PEERS[FORKQ]
        worker = " ".join((peer.worker.replace(" -c {threads}", ""), *options))
        peer = replace(peer, worker=worker, env={"BENCH_STARTS": str(starts.path)})
        stage = Stage(server, peer, prepare(peer), 10)
        children = int(options[options.index("-w") + 1])
        with stage.running([], server.url) as (master, _), server.client() as client:
            there = "waiting children"
            wait_until(lambda: client.scard("processes") == children, deadline=60, what=there)
            yield master, starts


def laps(server: Server, rounds: int) -> Iterator[Row]:
    """A row of quantiles for each load and number of queues."""
    cases = [("idle", 1), ("idle", 20), *((load, 1) for load in BESIDE if load != "idle")]
    for number in range(rounds):
        for load, queues in cases:
            names = ["default", *(f"other{place}" for place in range(1, queues))]
            options = ["-w", "4", "-c", "10", *(part for name in names for part in ("-q", name))]
            with _tree(server, LAPS, *options) as (_, starts), _beside(server, *BESIDE[load]):
                row = _laps(server, starts)
            yield {"round": number, "beside": load, "queues": queues, **row}


def _laps(server: Server, starts: Starts) -> Row:
    """Pushes one lap after the other. A PING after each tells what the machine adds just now."""
    taken, trips = [], []
    with server.client() as client:
        for number in range(LAPS):
            body, pushed = _payload("lap", number, number), time.monotonic()
            client.lpush("queue:default", body)
            time.sleep(PAUSE)
            taken.append((number, pushed))
            trips.append(_round_trip(client))
        wait_until(lambda: starts.begun() == LAPS, deadline=60, what="all laps")
    found = [1e3 * (starts.cells[number] - pushed) for number, pushed in taken]
    return {**_quantiles("", found), **_quantiles("ping_", trips), "load": psutil.getloadavg()[0]}


def _round_trip(client: Any) -> float:
    started = time.monotonic()
    client.ping()
    return 1e3 * (time.monotonic() - started)


def _quantiles(prefix: str, values: list[float]) -> Row:
    cuts = statistics.quantiles(values, n=100)
    return {f"{prefix}p50": cuts[49], f"{prefix}p99": cuts[98]}


@contextmanager
def _beside(server: Server, kind: str, rate: int) -> Iterator[None]:
    """Pushes so many jobs a second, one by one, each at its own moment."""
    over = threading.Event()
    thread = threading.Thread(target=_push_steadily, args=(server, kind, rate, over))
    thread.start()
    try:
        time.sleep(0.5 if rate else 0.0)  # the load begins before the first lap
        yield
    finally:
        over.set()
        thread.join(30)


def _push_steadily(server: Server, kind: str, rate: int, over: threading.Event) -> None:
    body = _payload(kind, 0)
    with server.client() as client:
        due = time.monotonic()
        while rate and not over.is_set():
            client.lpush("queue:default", body)
            due += 1 / rate
            if (left := due - time.monotonic()) > 0:
                time.sleep(left)


def rescue(server: Server, rounds: int) -> Iterator[Row]:
    """How long after its SIGKILL a child's jobs are back in their queue, and have run again."""
    for number in range(rounds):
        with _tree(server, HELD, "-w", "2", "-c", str(HELD)) as (master, starts):
            yield {"round": number, **_rescue(server, master, starts)}


def _rescue(server: Server, master: psutil.Process, starts: Starts) -> Row:
    with server.client() as client:
        _push_to_one(client, master, starts)
        victim = _owner(client, master)
        before = list(starts.cells)
        killed = time.monotonic()
        victim.kill()
        back = wait_until(
            lambda: _back(client, victim.pid), deadline=60, what="no lease", every=0.001
        )
        wait_until(lambda: _all_newer(starts, before), deadline=120, what="the second runs")
    ran = sorted(1e3 * (cell - killed) for cell in starts.cells)
    half, last, load = ran[HELD // 2], ran[-1], psutil.getloadavg()[0]
    return {"jobs": HELD, "back": 1e3 * (back - killed), "half": half, "last": last, "load": load}


def _all_newer(starts: Starts, before: list[float]) -> bool:
    return all(now > old for now, old in zip(starts.cells, before, strict=True))


def _push_to_one(client: Any, master: psutil.Process, starts: Starts) -> None:
    """Has one child run all the jobs: the other is halted meanwhile."""
    other = [one for one in master.children() if "forkq child" in " ".join(one.cmdline())][1]
    other.suspend()
    try:
        for number in range(HELD):
            client.lpush("queue:default", _payload("hold", number, number))
        wait_until(lambda: starts.begun() == HELD, deadline=60, what="all jobs in progress")
    finally:
        other.resume()


def _owner(client: Any, master: psutil.Process) -> psutil.Process:
    """The child that holds them."""
    lease = next(iter(client.hkeys("{queue:default}:inflight"))).decode()
    pid = int(lease.split(":")[1])
    return next(one for one in master.children() if one.pid == pid)


def _back(client: Any, pid: int) -> float:
    """When the server was found to hold no lease of that process; 0 before."""
    leases = client.hkeys("{queue:default}:inflight")
    return 0 if any(f":{pid}:".encode() in lease for lease in leases) else time.monotonic()
