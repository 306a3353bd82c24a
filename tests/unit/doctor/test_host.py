"""Limits of the host against what a configuration needs."""

from __future__ import annotations

import math
import os
import resource
from pathlib import Path

import pytest

from forkq.config.capsule import Capsule
from forkq.config.recycling import Recycling
from forkq.doctor.cgroup import dies_together, lowest_limit
from forkq.doctor.host import max_memory, memory, oom_group, open_files, processes
from forkq.values import replace
from tests.unit.doctor.shared import config

MIB = 1 << 20
BIG = config(capsules=(Capsule("default", concurrency=100, workers=4), Capsule("mail", workers=2)))


@pytest.mark.parametrize(("limit", "level"), [(40, "fail"), (100, "warn"), (1024, "ok")])
def test_the_limit_of_open_files_against_processors(limit: int, level: str) -> None:
    found = open_files(BIG, limit)
    assert found.level == level
    assert level == "ok" or "LimitNOFILE" in found.remedy


@pytest.mark.parametrize(("limit", "level"), [(400, "fail"), (500, "warn"), (5000, "ok")])
def test_the_limit_of_threads_against_capsules_times_concurrency(limit: int, level: str) -> None:
    found = processes(BIG, limit)
    assert found.level == level
    assert "needs 433 threads" in found.what  # 4 x 103 + 2 x 8 + 5
    assert level == "ok" or "TasksMax" in found.remedy


def test_without_a_limit_there_is_room() -> None:
    assert processes(BIG, math.inf).level == "ok"
    assert open_files(BIG, math.inf).level == "ok"


@pytest.mark.parametrize(("limit", "level"), [(600, "fail"), (800, "warn"), (2000, "ok")])
def test_the_limit_of_memory_against_workers_times_app(limit: int, level: str) -> None:
    found = memory(BIG, bare=20 * MIB, app=100 * MIB, limit=limit * MIB)
    assert found.level == level
    assert "640MB" in found.what


def test_a_preloaded_app_counts_once() -> None:
    preloading = config(capsules=BIG.capsules, preload=True)
    found = memory(preloading, bare=20 * MIB, app=100 * MIB, limit=600 * MIB)
    assert found.level == "ok"
    assert "170MB" in found.what


@pytest.mark.parametrize(
    ("limits", "limit", "level"),
    [
        (Recycling(max_memory=100 * MIB), 700, "ok"),
        (Recycling(max_memory=100 * MIB), 600, "warn"),
        (Recycling(max_memory=50 * MIB, hard_max_memory=100 * MIB), 600, "warn"),
        (Recycling(), 1, "ok"),
    ],
    ids=["room", "no room", "hard", "no limits"],
)
def test_the_limit_of_memory_against_what_children_may_take(
    limits: Recycling, limit: int, level: str
) -> None:
    """Four children and two, the master and the clock. The higher limit of a child counts."""
    capsules = tuple(replace(capsule, recycling=limits) for capsule in BIG.capsules)
    found = max_memory(config(capsules=capsules), bare=20 * MIB, limit=limit * MIB)
    assert (found.check, found.level) == ("max-memory", level)
    if level == "warn":
        assert "640MB" in found.what
        assert "max_memory" in found.remedy


def test_the_real_limits_of_this_process_can_be_read() -> None:
    assert open_files(config()).check == "open-files"
    assert processes(config()).check == "processes"
    found = memory(config(), bare=1, app=1)
    assert (found.level, found.checked) == ("ok", True)


@pytest.mark.parametrize(("user", "level"), [(0, "ok"), (1000, "fail")])
def test_the_user_s_limit_of_processes_counts_unless_it_is_root(
    monkeypatch: pytest.MonkeyPatch, user: int, level: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (5, hard))
    try:
        assert processes(config()).level == level
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))


# Control groups. Their files are the kernel's; these are copies of their form.


def write(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"{text}\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "sys"


def own(root: Path, *lines: str) -> Path:
    path = root.with_name("cgroup")
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_version_2_takes_the_lowest_limit_of_the_groups_above(root: Path) -> None:
    write(root / "forkq.slice", "memory.max", "1000")
    write(root / "forkq.slice/forkq.service", "memory.max", "max")
    write(root / "forkq.slice/forkq.service", "pids.max", "77")
    path = own(root, "0::/forkq.slice/forkq.service")
    assert lowest_limit("memory", path, root) == 1000
    assert lowest_limit("pids", path, root) == 77


def test_a_group_that_dies_together_is_told(root: Path) -> None:
    """Of its own, or of one above."""
    pod = root / "kubepods/pod1"
    path = own(root, "0::/kubepods/pod1/box")
    write(pod / "box", "memory.oom.group", "0")
    assert dies_together(path, root) is None
    write(pod, "memory.oom.group", "1")
    assert dies_together(path, root) == pod
    found = oom_group(pod)
    assert (found.check, found.level) == ("oom-group", "warn")
    assert str(pod) in found.what


def test_version_1_has_a_folder_for_each_controller(root: Path) -> None:
    write(root / "memory", "memory.limit_in_bytes", "9223372036854771712")
    write(root / "memory/box", "memory.limit_in_bytes", "2000")
    write(root / "pids/box", "pids.max", "max")
    path = own(root, "9:name=systemd:/", "4:memory:/box", "3:pids:/box", "0::/")
    assert lowest_limit("memory", path, root) == 2000
    assert lowest_limit("pids", path, root) is None


def test_in_a_container_the_limit_stands_at_the_root(root: Path) -> None:
    write(root, "memory.max", "3000")
    write(root / "memory", "memory.limit_in_bytes", "4000")
    assert lowest_limit("memory", own(root, "0::/docker/3f2a"), root) == 3000
    assert lowest_limit("memory", own(root, "4:cpu,memory:/docker/3f2a"), root) == 4000
    assert lowest_limit("memory", own(root, "4:cpu:/docker/3f2a"), root) is None


def test_a_system_without_control_groups_is_told_apart(root: Path) -> None:
    with pytest.raises(FileNotFoundError):
        lowest_limit("memory", root / "none", root)
