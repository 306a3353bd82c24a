"""Whether the kernel killed a child because memory ran out: its control group counts such kills.

The counter of a control group includes the groups below it. It is the line
``oom_kill N`` of ``memory.events`` (version 2) or ``memory.oom_control`` (version 1).
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..runtime.control_group import OWN, ROOT, control_groups

# Seconds. A large process takes a while to die. A kill that no death has claimed by then hit
# another process, such as a job's own subprocess.
_CLAIM_WITHIN: Final = 10.0


class OomKills:
    """Call ``update`` often: an old kill must not be taken for the reason of a new death."""

    def __init__(self, counter: Path | None = None) -> None:
        self._counter = counter or _find_counter()
        self._count = self._read()
        self._unclaimed = 0
        self._counted_at = 0.0

    def update(self) -> None:
        """Reads how many kills were counted since the last call."""
        count = self._read()
        if count > self._count:
            self._unclaimed += count - self._count
            self._counted_at = time.monotonic()
        elif time.monotonic() - self._counted_at > _CLAIM_WITHIN:
            self._unclaimed = 0
        self._count = count

    def claim(self) -> bool:
        """Whether the kernel has killed a child that has just died of SIGKILL. Each kill explains
        one death."""
        self.update()
        found = self._unclaimed > 0
        self._unclaimed -= found
        return found

    def _read(self) -> int:
        """0 without a counter: not Linux, or no control group for memory."""
        if self._counter is None:
            return 0
        with suppress(OSError, ValueError):
            for line in self._counter.read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
        return 0


def _find_counter(own: Path = OWN, root: Path = ROOT) -> Path | None:
    """The file with the counter of this process's group."""
    with suppress(OSError):
        for version_2, mount, folder in control_groups("memory", own, root):
            name = "memory.events" if version_2 else "memory.oom_control"
            for candidate in (folder / name, mount / name):
                if candidate.exists():
                    return candidate
    return None
