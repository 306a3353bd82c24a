"""The memory of one process.

RSS counts a page that many children share in each of them. PSS divides such a page among them, so
the PSS of all children adds up to what they use together.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import psutil

from ..runtime.control_group import room_for_memory


class Memory(NamedTuple):
    """In bytes. ``used``: PSS, with what is swapped out; where the system has no PSS, what the
    process has alone. ``shared`` is in common with other processes; ``private`` is not."""

    used: int
    shared: int
    private: int


def resident(pid: int) -> int:
    """The memory that process ``pid`` has, shared or not, and what is swapped out of it: in bytes,
    never less than ``Memory.used``. 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
        sizes = [line.split() for line in lines if line.startswith((b"VmRSS:", b"VmSwap:"))]
        return sum(int(size[1]) for size in sizes) * 1024
    except (OSError, ValueError, IndexError):
        return 0 if sys.platform == "linux" else _resident_elsewhere(pid)


def measure(pid: int) -> Memory | None:
    """The memory of process ``pid``; None if it has ended, or if the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
        return _memory_in(text)
    except (OSError, ValueError, IndexError):
        return None if sys.platform == "linux" else _measure_elsewhere(pid)


def available() -> int:
    """How many bytes new processes may take: what the system has left, or a control group of this
    process, if that is less."""
    return min([int(psutil.virtual_memory().available), *room_for_memory()])


def _memory_in(text: bytes) -> Memory:
    """The sums of smaps_rollup, whose lines are like ``Pss:   5120 kB``."""
    sizes: dict[bytes, int] = {}
    for line in text.splitlines()[1:]:
        name, size = line.split()[:2]
        sizes[name] = int(size) * 1024
    private = sum(size for name, size in sizes.items() if name.startswith(b"Private_"))
    shared = sum(size for name, size in sizes.items() if name.startswith(b"Shared_"))
    used = sizes.get(b"Pss:", private) + sizes.get(b"SwapPss:", 0)
    return Memory(used, shared, private)


def _resident_elsewhere(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def _measure_elsewhere(pid: int) -> Memory | None:
    try:
        found = psutil.Process(pid).memory_full_info()
    except (psutil.Error, AttributeError):
        return None
    return Memory(found.uss, max(0, found.rss - found.uss), found.uss)
