"""The limits of this process's control group, version 1 and 2. Linux.

A group is bound by its own limit and by those of the groups above it. In a container the groups
above are not visible; the container's own is mounted at the root, whatever /proc/self/cgroup says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

OWN: Final = Path("/proc/self/cgroup")
ROOT: Final = Path("/sys/fs/cgroup")
# Version 1 has no word for "unlimited", but the largest number of whole pages.
_UNLIMITED: Final = 1 << 60
_FILES: Final = {
    "memory": ("memory.max", "memory.limit_in_bytes"),
    "pids": ("pids.max", "pids.max"),
}


def lowest_limit(controller: str, own: Path = OWN, root: Path = ROOT) -> int | None:
    """The lowest limit of ``controller`` ("memory" in bytes, "pids" in threads); None if there is
    no limit. Raises OSError if this system has no control groups."""
    modern, old = _FILES[controller]
    limits: list[int] = []
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            limits += _limits(root, path, modern)
        elif controller in controllers.split(","):
            limits += _limits(root / controller, path, old)
    return min((limit for limit in limits if limit < _UNLIMITED), default=None)


def _limits(root: Path, path: str, name: str) -> Iterator[int]:
    """The limits of the group at ``path`` and of those above it."""
    group = root / path.lstrip("/")
    for folder in (group, *group.parents):
        with suppress(OSError, ValueError):  # no such group here; "max"
            yield int((folder / name).read_text())
        if folder == root:
            return
