"""What a job costs, in figures that a busy machine does not change: calls of forkq's own functions,
and commands that Redis carries out, those of scripts included.

``python -m tests.support.hot_path URL`` prints them as JSON, measured on that server, which it
empties. ``--write`` writes them to ``hot_path.json`` as the baseline of this Python's version.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import forkq
from forkq.store import pool
from tests.redis.in_process_child import InProcessChild
from tests.support.documents import ROOT
from tests.support.server import client_of

BASELINE: Final = Path(__file__).with_name("hot_path.json")
VERSION: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
_OWN: Final = f"{ROOT / 'forkq'}/"
_JOBS: Final = 1000
# A child that a busy machine delays looks more often for a reply: of several runs the least counts.
_MORE_RUNS: Final = 2
_HERE: Final = ("cmdstat_info", "cmdstat_llen", "cmdstat_del", "cmdstat_flushall")

Figures = dict[str, float]


@forkq.job(name="Noop")
def _noop(number: int, word: str) -> None: ...


class _Calls:
    """Counts the calls of forkq's functions in this thread, and in those that start meanwhile."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_OWN):
            self.count += 1

    def of(self, work: Callable[[], object]) -> int:
        self.count = 0
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            work()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        return self.count


def measured(url: str) -> dict[str, Figures]:
    """The figures of one job, for each of the paths."""
    forkq.configure(url)
    ours: Any = pool
    ours._FRESH = math.inf  # counting is slow: all connections would be looked at
    with client_of(url) as redis:
        redis.flushall()
        paths = _paths(url, redis)
        found = {name: _of(work, redis) for name, work in paths.items()}
        for _ in range(_MORE_RUNS):
            paths["push in bulk"]()
            paths["push in bulk"]()
            again = _of(paths["perform"], redis)
            found["perform"] = {key: min(found["perform"][key], again[key]) for key in again}
        return found


def _paths(url: str, redis: Any) -> dict[str, Callable[[], object]]:
    def push() -> None:
        for number in range(_JOBS):
            _noop.perform_async(number, "word")

    def push_bulk() -> None:
        _noop.perform_bulk([(number, "word") for number in range(_JOBS)])

    def perform() -> None:
        # Beneath a rule nothing is leased ahead: how much that is depends on the machine.
        forkq.Queue("default").limit = _JOBS
        with InProcessChild(url, concurrency=1):
            while redis.llen("queue:default"):
                time.sleep(0.01)

    push()  # what only the first push does
    redis.delete("queue:default")
    return {"push": push, "push in bulk": push_bulk, "perform": perform}


def _of(work: Callable[[], object], redis: Any) -> Figures:
    before = _commands(redis)
    calls = _Calls().of(work)
    counts = {"calls": calls, "commands": _commands(redis) - before}
    return {name: round(count / _JOBS, 1) for name, count in counts.items()}


def _commands(redis: Any) -> int:
    """How many commands the server has carried out, without those of this module."""
    found = redis.info("commandstats").items()
    return sum(each["calls"] for name, each in found if name not in _HERE)


if __name__ == "__main__":
    found = measured(sys.argv[1])
    if "--write" in sys.argv:
        known = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
        BASELINE.write_text(json.dumps({**known, VERSION: found}, indent=2, sort_keys=True) + "\n")
    sys.stdout.write(json.dumps(found))
