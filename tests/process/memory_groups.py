"""Control groups that limit memory (version 1): a test puts a tree or one process into each.

A child imports this, too, so it needs nothing but the standard library.
"""

from __future__ import annotations

import os
from pathlib import Path


def enter(parent: Path, pid: int, megabytes: int) -> Path:
    """Puts a process into a new group below ``parent``, in which it may take so much in all. The
    group does not count what the process has already, which is left out of its limit."""
    group = parent / f"of-{pid}"
    group.mkdir()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    left = (megabytes << 20) - pages * os.sysconf("SC_PAGE_SIZE")
    (group / "memory.limit_in_bytes").write_text(str(left))
    (group / "cgroup.procs").write_text(str(pid))
    return group


def killed(group: Path) -> int:
    """How many of its processes the kernel has killed for want of memory."""
    return int((group / "memory.oom_control").read_text().split()[-1])
