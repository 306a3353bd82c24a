"""The control groups of this process, version 1 and 2. Linux.

In a container the groups above its own are not visible. Its own is mounted at the root, and
/proc/self/cgroup may name the path that it has on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

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
