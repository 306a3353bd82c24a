"""forkq: its defaults. Jobs are pushed in bulk."""

from __future__ import annotations

import mmap
import os
import time
from functools import cache
from pathlib import Path
from typing import Any

import bench_jobs

import forkq

noop = forkq.job(name="noop")(bench_jobs.count)
nap = forkq.job(name="nap")(bench_jobs.nap)


@forkq.job(name="spin")
def spin() -> None:
    """About 0.2 ms of Python, which holds the GIL."""
    sum(range(10_000))
    bench_jobs.count()


@cache
def _starts() -> Any:
    with Path(os.environ["BENCH_STARTS"]).open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 0)).cast("d")


@forkq.job(name="lap", retry=False)
def lap(number: int) -> None:
    """Notes when it started, by the clock that all processes share."""
    _starts()[number] = time.monotonic()


@forkq.job(name="hold", retry=False)
def hold(number: int) -> None:
    """Starts, and runs until its child is killed. Its second run ends at once."""
    first = _starts()[number] == 0
    _starts()[number] = time.monotonic()
    while first:
        time.sleep(1)


def fill(kind: str, count: int) -> None:
    forkq.configure(bench_jobs.URL)
    {"noop": noop, "nap": nap, "spin": spin}[kind].perform_bulk([()] * count)


if __name__ == "__main__":
    bench_jobs.main(fill)
