"""The limits of this process's control group, and of the groups above it: each of them binds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..runtime.memory import OWN, ROOT, ControlGroup, control_groups

# Version 1 has no word for "unlimited", but the largest number of whole pages.
_UNLIMITED: Final = 1 << 60
_FILES: Final = {
    "memory": ("memory.max", "memory.limit_in_bytes"),
    "pids": ("pids.max", "pids.max"),
}


def lowest_limit(controller: str, own: Path = OWN, root: Path = ROOT) -> int | None:
    """The lowest limit of ``controller`` ("memory" in bytes, "pids" in threads); None if there is
    no limit. Raises OSError if this system has no control groups."""
    limits = (
        limit
        for group in control_groups(controller, own, root)
        for limit in _limits(group, _FILES[controller][not group.is_version_2])
    )
    return min((limit for limit in limits if limit < _UNLIMITED), default=None)


def _limits(group: ControlGroup, name: str) -> Iterator[int]:
    """The limits of the group and of those above it."""
    for folder in group.and_above:
        with suppress(OSError, ValueError):  # no such group here; "max"
            yield int((folder / name).read_text())


def dies_together(own: Path = OWN, root: Path = ROOT) -> Path | None:
    """The group of this process, or one above it, in which the kernel kills all processes when
    memory runs out (version 2); None if there is none. Raises OSError if this system has no control
    groups."""
    for group in control_groups("memory", own, root):
        for folder in group.and_above:
            with suppress(OSError, ValueError):
                if int((folder / "memory.oom.group").read_text()):
                    return folder
    return None
