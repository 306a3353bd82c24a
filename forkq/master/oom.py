"""Memory that runs out: which process the kernel kills then, and whether it has killed a child.

The kernel takes the process with the highest score: its share of the memory in thousandths, plus
its ``oom_score_adj``. The counter of a control group includes the groups below it. It is the line
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
# How far the oom_score_adj of a solo child, and of an ordinary one, is above the master's. The
# kernel may kill a second process before the memory of the first one is free. Without this, that
# could be the master, which is as large as an idle child.
_SOLO: Final = 600
_ORDINARY: Final = 200
_HIGHEST: Final = 1000
_NEVER: Final = -1000
_ADJ: Final = Path("/proc/self/oom_score_adj")


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


def stand_before_master(*, solo: bool, file: Path = _ADJ) -> None:
    """In a child: has the kernel kill it before the master and the clock, and a solo child before
    the others. What a job starts inherits that. It adds to what a unit or a container has set, and
    where that leaves no room for the whole steps, they are smaller. A master that is never killed
    has children that count from 0: those must not be safe from it, too. It needs no right."""
    with suppress(OSError, ValueError):  # not Linux, or a sandbox without /proc
        own = int(file.read_text())
        own = 0 if own == _NEVER else own
        step = _SOLO if solo else _ORDINARY
        file.write_text(str(own + min(_SOLO, _HIGHEST - own) * step // _SOLO))


def _find_counter(own: Path = OWN, root: Path = ROOT) -> Path | None:
    """The file with the counter of this process's group."""
    with suppress(OSError):
        for version_2, mount, folder in control_groups("memory", own, root):
            name = "memory.events" if version_2 else "memory.oom_control"
            for candidate in (folder / name, mount / name):
                if candidate.exists():
                    return candidate
    return None
