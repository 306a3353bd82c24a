"""Where a process lives, so that another one can tell whether it is dead.

A pid alone says nothing to another container or after a reboot. The boot id and the pid namespace
say whether two processes see the same pids at all; the start time, whether a pid has been reused.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import psutil


@cache
def _view() -> str:
    """Boot and pid namespace: processes with the same view see each other's pids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""  # not Linux: only the expiry of its record tells that a process is dead
    return f"{boot}/{namespace}"


def here(pid: int | None = None) -> str:
    """The place of process ``pid`` (default: this one), as it stands in its record."""
    process = psutil.Process(pid)
    return f"{_view()}/{process.pid}/{process.create_time():.2f}"


def surely_dead(place: str) -> bool:
    """Whether the process of that place must have ended. False if we cannot know."""
    view, _, rest = place.rpartition("]/")
    if not view or f"{view}]" != _view():
        return False
    pid, _, started = rest.partition("/")
    try:
        process = psutil.Process(int(pid))
        return f"{process.create_time():.2f}" != started or process.status() == "zombie"
    except psutil.NoSuchProcess:
        return True
