"""The jobs with results of test_results.py; a tree loads a copy of this file."""

from __future__ import annotations

import os
import signal

import forkq


@forkq.job(name="Once", result_ttl=600)
def once(value: int) -> list[object]:
    """Its first run takes its child down with it."""
    crashes = forkq.current_job().crash_count
    if crashes == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return [value, crashes]


@forkq.job(name="Always", result_ttl=600)
def always() -> None:
    """Each run takes its child down with it."""
    os.kill(os.getpid(), signal.SIGKILL)


@forkq.job(name="Plain", result_ttl=600)
def plain(value: int) -> list[int]:
    """Returns what it got, and which process has run it."""
    return [value, os.getpid()]
