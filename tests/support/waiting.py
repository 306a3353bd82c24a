"""Waiting for facts: the only place in the tests that sleeps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

# For what has no bound of its own: below the 25 s of a default stop.
PATIENCE = 20.0
SELDOM = 0.05  # seconds between two looks after a second of waiting


class NotInTime(AssertionError):
    """A fact that a test waited for did not come true before its deadline."""


def within(seconds: float) -> float:
    """How long what is promised in so many seconds may take just now: so long on a free machine,
    longer in proportion when more processes want to run than there are processors."""
    return seconds * max(1.0, _wanting() / (os.cpu_count() or 1))


def _wanting() -> float:
    """How many processes want to run: in the last minute on the average, or just now. A load that
    has only begun hardly changes the average."""
    try:
        now = Path("/proc/loadavg").read_text().split()[3]  # "running/all"
    except FileNotFoundError:  # only Linux has it
        return os.getloadavg()[0]
    return max(os.getloadavg()[0], float(now.split("/")[0]))


def wait_until(
    condition: Callable[[], T], *, deadline: float | None = None, what: str, every: float = 0.01
) -> T:
    """Call `condition` until it returns something true, and return that.

    `deadline` and `every` are seconds. The deadline is that of a free machine: under load it is
    later (`within`). The longer it has waited, the less often it looks, down to every
    `SELDOM`: a look into Redis or at many processes costs time that the awaited process needs. With
    `every=0` it looks all the time, for what is over in a moment.
    `what` completes the sentence "waited for ...". What the condition raises is
    raised: a wait hides no mistake.
    """
    began, seconds = time.monotonic(), PATIENCE if deadline is None else deadline
    while True:
        value = condition()
        if value:
            return value
        waited = time.monotonic() - began
        if waited >= seconds and waited >= within(seconds):
            raise NotInTime(f"waited {waited:.3g} s for {what}; the last value was {value!r}")
        if every:
            time.sleep(max(every, min(waited / 20, SELDOM)))
