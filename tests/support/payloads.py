"""Payloads for tests of what a job may be."""

from __future__ import annotations

import sys
from typing import Any

# Levels beyond what the C code of a Python recurses into. 3.14 counts no levels: it looks how much
# of the thread's stack is left, and 8 MB are enough for 100,000.
DEEP = 50_000 if sys.version_info < (3, 14) else 1_000_000


def job(**keys: Any) -> dict[str, Any]:
    """The least that a job must have, and these keys."""
    return {"class": "MyJob", "args": [], **keys}


def nested(levels: int) -> list[Any]:
    """A list of so many levels."""
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value
