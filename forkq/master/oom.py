"""Whether the kernel killed a child for want of memory: what the control group has counted.

Linux counts such kills for each control group, this tree's with those of its children: the line
``oom_kill N`` of ``memory.events`` (version 2) or ``memory.oom_control`` (version 1).
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/sys/fs/cgroup")
# A large process takes a while to die. A kill that no death has claimed by then hit another one,
# such as a job's own subprocess.
_CLAIM_WITHIN: Final = 10.0


class OomKills:
    """``look`` often, so that an old kill is not taken for the reason of a new death."""

    def __init__(self, counter: Path | None = None) -> None:
        self._counter = counter or _find_counter(Path("/proc/self/cgroup"), _ROOT)
        self._count = self._read()
        self._unclaimed = 0
        self._seen = 0.0

    def look(self) -> None:
        """Takes in what has been counted since."""
        count = self._read()
        if count > self._count:
            self._unclaimed += count - self._count
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > _CLAIM_WITHIN:
            self._unclaimed = 0
        self._count = count

    def claim(self) -> bool:
        """Whether one of these kills explains a child that died of SIGKILL just now."""
        self.look()
        found = self._unclaimed > 0
        self._unclaimed -= found
        return found

    def _read(self) -> int:
        """0 where nothing is counted: no Linux, or no control group for memory."""
        if self._counter is None:
            return 0
        with suppress(OSError, ValueError):
            for line in self._counter.read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
        return 0


def _find_counter(own: Path, root: Path) -> Path | None:
    """The file that counts for this process. In a container its path may be the host's, and then
    the group is mounted at the root."""
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            found = _candidates(root, controllers.split(","), path.lstrip("/"))
            for candidate in found:
                if candidate.exists():
                    return candidate
    return None


def _candidates(root: Path, controllers: list[str], path: str) -> list[Path]:
    if controllers == [""]:
        return [root / path / "memory.events", root / "memory.events"]
    if "memory" in controllers:
        memory = root / "memory"
        return [memory / path / "memory.oom_control", memory / "memory.oom_control"]
    return []
