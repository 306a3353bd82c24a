"""References to processes, by which another process can tell whether one is dead.

A pid alone means nothing in another container or after a reboot. The boot id and the pid namespace
tell whether two processes see the same pids. The start time tells whether a pid has been reused. It
is in clock ticks since the boot, so that no change of the wall clock moves it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, Literal, TypeAlias

import psutil

Liveness: TypeAlias = Literal["alive", "dead", "unknown"]

# The states of a process that SIGSTOP or a debugger has stopped.
STOPPED: Final = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)

# The index of the start time among the fields of /proc/PID/stat that follow the command's name.
_START_TIME = 19


def process_ref(pid: int | None = None) -> str:
    """The reference of process ``pid`` (default: this one); "" on a system without /proc."""
    pid = os.getpid() if pid is None else pid
    return f"{pid_scope()}/{pid}/{_start_time(pid)}" if pid_scope() else ""


def liveness_of(ref: str) -> Liveness:
    """Whether the process lives; unknown if it belongs to another host or container."""
    scope = pid_scope_of(ref)
    if not scope or scope != pid_scope():
        return "unknown"
    pid, _, started = ref[len(scope) + 1 :].partition("/")
    if not pid.isdecimal():
        return "unknown"
    try:
        return "alive" if _start_time(int(pid)) == started else "dead"
    except OSError:
        return "dead" if _is_gone(int(pid)) else "unknown"


def kernel_state(pid: int) -> str:
    """The state of a process as the kernel sees it: ``stopped``, ``running``, ``sleeping``...; ""
    if it has ended."""
    with suppress(psutil.Error):
        return str(psutil.Process(pid).status())
    return ""


@cache
def pid_scope() -> str:
    """Boot id and pid namespace: processes of one scope see each other's pids. "" on a system
    without /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""  # not Linux: a process is only known to be dead when its record has expired
    return f"{boot}/{namespace}"


def pid_scope_of(ref: str) -> str:
    """The scope in a reference; "" if it has none."""
    scope, bracket, _ = ref.rpartition("]/")
    return f"{scope}]" if bracket and scope else ""


def _start_time(pid: int) -> str:
    """The start of a process in ticks since the boot; "ended" for a zombie. Raises OSError."""
    stat = Path(
        f"/proc/{pid}/stat"
    ).read_bytes()  # not as text: the name may end within a character
    fields = stat.rpartition(b")")[2].decode("ascii").split()
    return "ended" if fields[0] in ("Z", "X") else fields[_START_TIME]


def _is_gone(pid: int) -> bool:
    """Whether no process has this pid. /proc may hide the processes of other users (hidepid,
    ProtectProc); kill finds them."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False
