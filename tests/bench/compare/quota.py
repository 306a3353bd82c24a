"""Processors of half their speed: where there are two, there are four of those. Two children and
Redis each have one, and one is left for the rest of the machine."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# cgroup v1. In v2 the parent group must enable the controller first.
ROOT = Path("/sys/fs/cgroup/cpu")
PERIOD = 5000  # microseconds


def can_limit() -> bool:
    """Whether this user may make groups."""
    return (ROOT / "cpu.cfs_quota_us").exists() and os.access(ROOT, os.W_OK)


@contextmanager
def half_a_processor(pid: int) -> Iterator[None]:
    """The process, and what it forks from now on, get half of each period."""
    group = ROOT / f"bench-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD))
        (group / "cpu.cfs_quota_us").write_text(str(PERIOD // 2))
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for one in (group / "cgroup.procs").read_text().split():
            (ROOT / "cgroup.procs").write_text(one)
        group.rmdir()
