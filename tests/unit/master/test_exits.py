"""Which child the kernel has killed because memory ran out, by the counter of its control group."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkq.master import exits
from forkq.master.exits import OomKills, _find_counter


def written(path: Path, count: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"low 0\noom {count + 5}\noom_kill {count}\noom_group_kill 0\n")
    return path


def test_a_kill_explains_one_death_and_no_more(tmp_path: Path) -> None:
    path = written(tmp_path / "memory.events", 3)
    kills = OomKills(path)
    assert not kills.claim()
    written(path, 5)
    assert [kills.claim(), kills.claim(), kills.claim()] == [True, True, False]


def test_an_old_kill_explains_no_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the kill of a job's own subprocess, hours before."""
    path = written(tmp_path / "memory.events", 0)
    kills = OomKills(path)
    written(path, 1)
    kills.update()
    monkeypatch.setattr(exits, "_CLAIM_WITHIN", -1.0)
    assert not kills.claim()


@pytest.mark.parametrize("text", [None, "", "oom_kill", "oom_kill x", "\x00"])
def test_a_counter_that_cannot_be_read_explains_no_death(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "memory.events"
    if text is not None:
        path.write_text(text)
    assert not OomKills(path).claim()


@pytest.mark.parametrize(
    ("own", "file"),
    [
        ("0::/system.slice/forkq.service\n", "system.slice/forkq.service/memory.events"),
        ("0::/../host/path\n", "memory.events"),
        ("9:name=systemd:/\n4:memory:/docker/abc\n0::/\n", "memory/docker/abc/memory.oom_control"),
        ("4:cpu,memory:/docker/abc\n0::/\n", "memory/memory.oom_control"),
        ("9:name=systemd:/\n0::/\n", None),
    ],
)
def test_where_the_counter_is(tmp_path: Path, own: str, file: str | None) -> None:
    proc_file, root = tmp_path / "cgroup", tmp_path / "fs"
    proc_file.write_text(own)
    expected = written(root / file, 1) if file else None
    assert _find_counter(proc_file, root) == expected


def test_without_proc_there_is_no_counter(tmp_path: Path) -> None:
    assert _find_counter(tmp_path / "nothing", tmp_path) is None
