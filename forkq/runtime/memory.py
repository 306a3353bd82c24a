"""The memory of one process, and the control groups of this process, which may bound it.

RSS counts a page that many children share in each of them. PSS divides such a page among them, so
the PSS of all children adds up to what they use together.

Control groups are of version 1 or 2, on Linux. In a container the groups above its own are not
visible. Its own is mounted at the root, and /proc/self/cgroup may name the path that it has on the
host.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil

OWN: Final = Path("/proc/self/cgroup")
ROOT: Final = Path("/sys/fs/cgroup")
# The files with the limit and the usage, and the line of memory.stat with the file pages that the
# kernel drops first; by whether it is version 2.
_MEMORY_FILES: Final = {
    True: ("memory.max", "memory.current", "inactive_file"),
    False: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


class ControlGroup(NamedTuple):
    """A group of one hierarchy: ``mount`` is the root of the hierarchy, ``folder`` the group's."""

    is_version_2: bool
    mount: Path
    folder: Path

    @property
    def and_above(self) -> Iterator[Path]:
        """The folders of the group and of all groups above it: each of them binds."""
        for folder in (self.folder, *self.folder.parents):
            yield folder
            if folder == self.mount:
                return


def control_groups(controller: str, own: Path = OWN, root: Path = ROOT) -> Iterator[ControlGroup]:
    """The groups that may bind ``controller`` ("memory", "pids"). Raises OSError if this system has
    none."""
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield ControlGroup(True, root, root / path.lstrip("/"))
        elif controller in controllers.split(","):
            mount = root / controller
            yield ControlGroup(False, mount, mount / path.lstrip("/"))


def room_for_memory(own: Path = OWN, root: Path = ROOT) -> Iterator[int]:
    """How many bytes each group that limits the memory of this process has left: its own group, and
    those above it. File pages that the kernel can drop count as free."""
    try:
        groups = list(control_groups("memory", own, root))
    except OSError:
        return
    for group in groups:
        for folder in group.and_above:
            with suppress(OSError, ValueError, KeyError):  # no such group here; "max"
                yield _room_in(folder, is_version_2=group.is_version_2)


def _room_in(folder: Path, *, is_version_2: bool) -> int:
    limit, usage, pages = _MEMORY_FILES[is_version_2]
    stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    used = int((folder / usage).read_text()) - int(stat[pages])
    return max(0, int((folder / limit).read_text()) - used)


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
