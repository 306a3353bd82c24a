"""Checks of the host: what its limits leave for the processes and threads of this configuration."""

from __future__ import annotations

import math
import os
import resource
from pathlib import Path
from typing import Final

import psutil

from ..config.capsule import Capsule
from ..config.config import Config
from ..config.recycling import Recycling
from ..units import format_size
from . import cgroup
from .finding import Finding

# Of forkq's own in a process: standard streams, pipes, connections to Redis, a log, imports.
_OWN_FILES: Final = 32
# A connection to a database, one to another service, and two files.
_FILES_OF_A_JOB: Final = 4
# Of a child in the master: two pipes and a pidfd; twice, for a rolling restart.
_FILES_OF_A_CHILD: Final = 6
# Beside its processors a child has a main thread, a heartbeat, and one for the app's hooks.
_OWN_THREADS: Final = 3
_CLOCK_AND_MASTER: Final = 2 + _OWN_THREADS
# Bytes that an idle child has for itself after a fork of a preloaded app.
_UNSHARED: Final = 10 << 20
_LITTLE_ROOM: Final = 0.7


def open_files(config: Config, limit: float | None = None) -> Finding:
    """The limit of descriptors against what a process of this configuration opens."""
    limit = _soft(resource.RLIMIT_NOFILE) if limit is None else limit
    own, with_jobs = _files_of_forkq(config), _files_with_jobs(config)
    what = f"descriptors for a process: {_limit_text(limit)}"
    remedy = "raise it: ulimit -n, LimitNOFILE= of systemd, --ulimit nofile= of Docker"
    if limit < own:
        return Finding("fail", "open-files", what, f"forkq itself needs up to {own}", remedy)
    if limit < with_jobs:
        why = f"with {_FILES_OF_A_JOB} for each processor it needs up to {with_jobs}"
        return Finding("warn", "open-files", what, why, remedy)
    return Finding("ok", "open-files", f"{what}, forkq needs up to {with_jobs}")


def processes(config: Config, limit: float | None = None) -> Finding:
    """The limit of processes and threads against children and their processors."""
    limit = _most_threads() if limit is None else limit
    needed = sum(c.workers * (c.job_threads + _OWN_THREADS) for c in config.capsules)
    needed += _CLOCK_AND_MASTER
    what = f"forkq needs {needed} threads, its user and control group may have {_limit_text(limit)}"
    why = "children that get no thread cannot boot"
    remedy = "lower workers or concurrency, or raise ulimit -u, TasksMax= or the pids of the pod"
    if needed > limit:
        return Finding("fail", "processes", what, why, remedy)
    if needed > _LITTLE_ROOM * limit:
        why = "threads of jobs, other programs of this user and a rolling restart count as well"
        return Finding("warn", "processes", what, why, remedy)
    return Finding("ok", "processes", what)


def memory(config: Config, bare: int, app: int, limit: int | None = None) -> Finding:
    """The memory that the tree takes before its first job, against the limit of the control group
    or the host. ``bare`` and ``app`` are the bytes of a process without and with the app."""
    limit, whose = (limit, "of the control group") if limit is not None else _most_memory()
    children = sum(capsule.workers for capsule in config.capsules)
    shared = app + (children + 1) * _UNSHARED  # the preloaded app, which all have in common
    needed = shared if config.preload else children * app + 2 * bare
    what = f"the tree takes about {format_size(needed)} before its first job, the limit {whose} is "
    what += format_size(limit)
    remedy = "lower workers, raise the limit, or set preload = true to share the app's memory"
    if needed > limit:
        return Finding("fail", "memory", what, "the kernel would kill children", remedy)
    if needed > _LITTLE_ROOM * limit:
        return Finding("warn", "memory", what, "this leaves little for the jobs", remedy)
    return Finding("ok", "memory", what)


def oom_group(group: Path | None = None) -> Finding:
    """Whether the kernel takes the whole tree when memory runs out, instead of one child."""
    group = cgroup.dies_together() if group is None else group
    if group is None:
        return Finding("ok", "oom-group", "when memory runs out, the kernel kills one process")
    what = f"memory.oom.group is 1 in {group}"
    why = "one job without memory ends the whole tree, and nothing says which job it was"
    remedy = "set it to 0: OOMPolicy=continue of systemd, singleProcessOOMKill of the kubelet"
    return Finding("warn", "oom-group", what, why, remedy)


def max_memory(config: Config, bare: int, limit: int | None = None) -> Finding:
    """What forkq.toml allows the children to grow to, against the limit of the control group or the
    host. Children without a limit of their own are not counted."""
    limit, whose = (limit, "of the control group") if limit is not None else _most_memory()
    allowed = sum(
        capsule.workers * _most_of_child(capsule.recycling) for capsule in config.capsules
    )
    if not allowed:
        return Finding("ok", "max-memory", "no child has a limit of its own (max_memory)")
    allowed += 2 * bare
    what = f"the tree may grow to {format_size(allowed)}, the limit {whose} is {format_size(limit)}"
    if allowed > limit:
        why = "the kernel would kill children, or all of the container, before forkq replaces one"
        remedy = "lower workers, max_memory or hard_max_memory, or raise the limit"
        return Finding("warn", "max-memory", what, why, remedy)
    return Finding("ok", "max-memory", what)


def _most_of_child(limits: Recycling) -> int:
    return limits.hard_max_memory or limits.max_memory


def _files_of_forkq(config: Config) -> int:
    children = sum(capsule.workers for capsule in config.capsules)
    return _OWN_FILES + max(config.redis.pool, children * _FILES_OF_A_CHILD)


def _files_with_jobs(config: Config) -> int:
    most = max(map(_processors, config.capsules))
    of_child = _OWN_FILES + config.redis.pool + most * _FILES_OF_A_JOB
    return max(of_child, _files_of_forkq(config))


def _processors(capsule: Capsule) -> int:
    return capsule.concurrency


def _soft(which: int) -> float:
    soft, _ = resource.getrlimit(which)
    return math.inf if soft == resource.RLIM_INFINITY else soft


def _most_threads() -> float:
    """The most threads that the user's limit, which root does not have, and the control group's
    limit allow."""
    of_user = math.inf if os.geteuid() == 0 else _soft(resource.RLIMIT_NPROC)
    try:
        of_group = cgroup.lowest_limit("pids")
    except OSError:  # no control groups here
        of_group = None
    return of_user if of_group is None else min(of_user, of_group)


def _most_memory() -> tuple[int, str]:
    """The memory that the control group or the host allows. Raises OSError where the system has no
    control groups."""
    limit = cgroup.lowest_limit("memory")
    total = psutil.virtual_memory().total
    return (
        (total, "of the host")
        if limit is None or limit > total
        else (limit, "of the control group")
    )


def _limit_text(limit: float) -> str:
    return "any number" if limit == math.inf else f"{limit:,.0f}"
