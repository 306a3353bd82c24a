"""Payloads for tests of what a job may be."""

from __future__ import annotations

from typing import Any

DEEP = 50_000  # levels beyond what any Python's C code recurses into


def job(**keys: Any) -> dict[str, Any]:
    """The least that a job must have, and these keys."""
    return {"class": "MyJob", "args": [], **keys}


def nested(levels: int) -> list[Any]:
    """A list of so many levels."""
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value
