"""What a plain job costs in one version of forkq and in another: instructions, commands, bytes.

``python -m tests.bench.plain_jobs TREE [TREE]`` runs no-op jobs in a child of one processor, inside
one process, under ``valgrind``: 500 of them, then 1,500. The difference is what 1,000 jobs take,
their push included in the instructions. A TREE is a checkout of forkq; its own code runs, with this
Python. ``--few 50`` takes less time, and shows whether the tool works. A busy machine does not
change instructions, as it changes seconds. ``--kind result`` or ``--kind member`` runs jobs that
keep what they return, or that are members of a batch.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple

import forkq
from forkq.store import pool
from tests.redis.in_process_child import InProcessChild
from tests.support.server import Server, client_of

_FEW: Final = 500
_TIMES: Final = 3  # as many jobs in the second run
_VALGRIND: Final = "valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null"
_WITHIN: Final = 1800.0  # seconds


class Cost(NamedTuple):
    """What one job costs: instructions of its process, and what Redis has counted."""

    instructions: float
    commands: float
    bytes_to_redis: float
    bytes_from_redis: float


def _run(url: str, count: int, kind: str) -> None:
    """Pushes and runs the jobs in this process, and prints what Redis has counted while they
    ran."""
    is_done, seen = threading.Event(), 0

    @forkq.job(name="Noop", result_ttl=60 if kind == "result" else 0)
    def noop(number: int, word: str) -> int:
        nonlocal seen
        seen += 1
        if seen == count:
            is_done.set()
        return number

    forkq.configure(url)
    ours: Any = pool
    ours._FRESH = math.inf  # valgrind is slow: all connections would be looked at
    with forkq.Batch() if kind == "member" else nullcontext():
        noop.perform_bulk([(number, "word") for number in range(count)])
    forkq.Queue("default").limit = 1000  # never reached; each fetch asks it
    before = _counted(url)
    with InProcessChild(url, concurrency=1):
        is_done.wait()
    print(*(after - first for after, first in zip(_counted(url), before, strict=True)))


def _counted(url: str) -> tuple[int, int, int]:
    """How many commands Redis has run, and the bytes that it has read and written."""
    with client_of(url) as redis:
        stats: Any = redis.info("stats")
        calls: Any = redis.info("commandstats")
    commands = sum(each["calls"] for name, each in calls.items() if name != "cmdstat_info")
    return commands, stats["total_net_input_bytes"], stats["total_net_output_bytes"]


def measured(tree: Path, few: int, kind: str) -> Cost:
    """The cost of one job of this ``kind`` with the forkq in this ``tree``."""
    first, second = _totals(tree, few, kind), _totals(tree, _TIMES * few, kind)
    more = (_TIMES - 1) * few
    return Cost(*((b - a) / more for a, b in zip(first, second, strict=True)))


def _totals(tree: Path, count: int, kind: str) -> list[int]:
    """The figures of a whole process that runs so many jobs, with a server of its own."""
    server = Server(tcp=True).start()
    url = f"redis://127.0.0.1:{server.port}"
    command = [*_VALGRIND.split(), sys.executable, __file__, str(tree), "--kind", kind]
    command += ["--run", url, str(count)]
    environ = {**os.environ, "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"}
    try:
        told = subprocess.run(
            command,
            check=False,  # what it says is printed
            cwd=tree,
            env=environ,
            capture_output=True,
            text=True,
            timeout=_WITHIN,
        )
    finally:
        server.close()
    if told.returncode:
        sys.exit(f"{tree}: {told.stderr[-2000:]}")
    [*_, instructions] = re.findall(r"I +refs: +([\d,]+)", told.stderr)
    return [int(instructions.replace(",", "")), *map(int, told.stdout.split())]


def _print(trees: list[Path], few: int, kind: str) -> None:
    """A line for each tree, and one that compares the last with the first."""
    costs = [measured(tree, few, kind) for tree in trees]
    names = (name.replace("_", " ") for name in Cost._fields)
    print(f"{f'a {kind} job':40}" + "".join(f"{name:>18}" for name in names))
    for tree, cost in zip(trees, costs, strict=True):
        print(f"{tree.name[:39]:40}" + "".join(f"{each:18,.1f}" for each in cost))
    if len(costs) > 1:
        ratios = (new / old for old, new in zip(costs[0], costs[-1], strict=True))
        print(f"{'the last, of the first':40}" + "".join(f"{each:18.3f}" for each in ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", type=lambda text: Path(text).resolve(), nargs="+", metavar="TREE")
    parser.add_argument("--few", type=int, default=_FEW, help="jobs in the first run")
    parser.add_argument("--kind", choices=("plain", "result", "member"), default="plain")
    parser.add_argument("--run", nargs=2, metavar=("URL", "COUNT"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.run is None:
        _print(asked.trees, asked.few, asked.kind)
    else:
        url, count = asked.run
        _run(url, int(count), asked.kind)


if __name__ == "__main__":
    main()
