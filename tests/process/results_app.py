"""The jobs of test_results.py; a tree loads a copy of this file."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import forkq


@forkq.job(name="Once", result_ttl=600)
def once(path: str) -> int:
    """Takes its child down in its first run, of which the file tells."""
    runs = Path(path)
    if not runs.exists():
        runs.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


@forkq.job(name="Always", result_ttl=600)
def always() -> None:
    """Takes its child down in each run."""
    os.kill(os.getpid(), signal.SIGKILL)


@forkq.job(name="Square", result_ttl=600)
def square(number: int) -> list[int]:
    """Returns what it got, its square, and who ran it."""
    return [number, number * number, os.getpid()]
