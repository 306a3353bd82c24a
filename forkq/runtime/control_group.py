"""The control groups of this process, version 1 and 2. Linux.

In a container the groups above its own are not visible. Its own is mounted at the root, and
/proc/self/cgroup may name the path that it has on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

OWN: Final = Path("/proc/self/cgroup")
ROOT: Final = Path("/sys/fs/cgroup")


class ControlGroup(NamedTuple):
    """A group of one hierarchy: ``mount`` is the root of the hierarchy, ``folder`` the group's."""

    is_version_2: bool
    mount: Path
    folder: Path


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
