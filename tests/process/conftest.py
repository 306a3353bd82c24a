"""Fixtures of the process tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.shared import Journal
from tests.support.waiting import wait_until

MEMORY = Path("/sys/fs/cgroup/memory")  # version 1


@pytest.fixture(scope="session", autouse=True)
def forked_trees(preloaded_processes: None) -> None:
    """Has ForkqTree fork its masters and commands."""


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """Where the jobs of this test tell what they do: give a tree ``env=journal.env``."""
    return Journal(tmp_path / "journal")


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group below this process's own one, which limits memory."""
    own = next(
        (line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines()
         if line.split(":")[1] == "memory"), None
    )  # fmt: skip
    group = MEMORY / (own or "").lstrip("/") / f"forkq-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(600 << 20))
    except OSError as error:
        pytest.skip(f"no memory control group can be made ({error}): run as root, with cgroup v1")
    yield group
    wait_until(lambda: not (group / "cgroup.procs").read_text(), what="the end of the group")
    group.rmdir()


@pytest.fixture
def memory_groups(memory_group: Path) -> Iterator[Path]:
    """A control group without a limit, for those of single processes."""
    (memory_group / "memory.limit_in_bytes").write_text("-1")
    yield memory_group
    for group in filter(Path.is_dir, memory_group.iterdir()):
        wait_until(lambda: not (group / "cgroup.procs").read_text(), what="its end")  # noqa: B023
        group.rmdir()
