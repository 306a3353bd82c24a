"""Where a process lives, so that another one can tell whether it is dead.

A pid alone says nothing to another container or after a reboot. The boot id and the pid namespace
say whether two processes see the same pids at all; the start time in clock ticks since the boot,
which no change of the wall clock moves, says whether a pid has been reused.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

Liveness: TypeAlias = Literal["alive", "dead", "unknown"]

_START_TIME = 19  # of the fields of /proc/PID/stat that come after the command's name


def process_ref(pid: int | None = None) -> str:
    """The place of process ``pid`` (default: this one); "" where there is no /proc."""
    pid = os.getpid() if pid is None else pid
    return f"{pid_scope()}/{pid}/{_started(pid)}" if pid_scope() else ""


def liveness_of(place: str) -> Liveness:
    """Whether the process of that place lives; unknown from another host or container."""
    seen_from = pid_scope_of(place)
    if not seen_from or seen_from != pid_scope():
        return "unknown"
    pid, _, started = place[len(seen_from) + 1 :].partition("/")
    if not pid.isdecimal():
        return "unknown"
    try:
        return "alive" if _started(int(pid)) == started else "dead"
    except OSError:
        return "dead" if _is_gone(int(pid)) else "unknown"


@cache
def pid_scope() -> str:
    """Boot and pid namespace: processes with the same view see each other's pids. "" where there
    is no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""  # not Linux: only the expiry of its record tells that a process is dead
    return f"{boot}/{namespace}"


def pid_scope_of(place: str) -> str:
    """The view of the process of that place; "" if it has none."""
    seen_from, bracket, _ = place.rpartition("]/")
    return f"{seen_from}]" if bracket and seen_from else ""


def _started(pid: int) -> str:
    """When a process started, in ticks since the boot. A zombie has ended. Raises OSError."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()  # the name in it may be cut within a character
    fields = stat.rpartition(b")")[2].decode("ascii").split()
    return "ended" if fields[0] in ("Z", "X") else fields[_START_TIME]


def _is_gone(pid: int) -> bool:
    """/proc may hide other users' processes (hidepid, ProtectProc); kill does not lie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False
