"""``forkq status``: what it shows of the status file, and what a wrong configuration leaves."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from forkq.cli import tree as commands
from forkq.cli.tree import beat_age, quiet, read_status, status, stop
from forkq.config.load import load
from forkq.config.private_files import show_life
from forkq.errors import ConfigError, ForkqError, NotRunning
from forkq.master.status_file import StatusFile
from forkq.values import replace
from tests.support.recorded_log import RecordedLog

MISSING = "default.1: ended with exit code 3, ImportError: no module named shop; retry in 8 s"


def found(**more: Any) -> dict[str, Any]:
    """What the status file of a tree with one child says."""
    child = {
        "name": "default.0", "pid": 12, "state": "running", "busy": 2, "concurrency": 5,
        "processed": 30, "failed": 1, "queues": ["mail", "low"],
        "memory": {"used": 71 << 20, "shared": 20 << 20, "private": 61 << 20},
    }  # fmt: skip
    return {
        "pid": 11, "tag": "shop", "state": "running", "ready": True, "beat_age": 0.1,
        "outdated": 0.0,        "silent_after": 30.0, "children": [child], **more,
    }  # fmt: skip


def test_the_children_are_a_table() -> None:
    head, empty, titles, row = commands._status_text(found()).splitlines()
    assert (head, empty) == ("master 11 [shop]: running", "")
    assert titles.split() == [
        "CHILD", "PID", "STATE", "BUSY", "PROCESSED", "FAILED", "RSS", "PSS", "QUEUES"
    ]  # fmt: skip
    assert row.split() == [
        "default.0", "12", "running", "2", "of", "5", "30", "1", "81MB", "71MB", "mail", "low"
    ]  # fmt: skip
    child = found()["children"][0]
    unmeasured = found(children=[{**child, "memory": None}])
    assert commands._status_text(unmeasured).splitlines()[-1].split()[-4:-2] == ["-", "-"]


def test_a_status_that_could_not_be_written_is_called_outdated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The master's loop goes on, so it is alive; what waits for a change has to give up."""
    pidfile = tmp_path / "forkq.pid"
    settings = load(None, {"pidfile": str(pidfile)}, {"FORKQ_SILENT_AFTER": "1"}, tmp_path)
    StatusFile(settings, RecordedLog()).write("running", [], ready=True, missing=[])
    old = json.loads(settings.status_file.read_bytes())
    settings.status_file.write_text(json.dumps({**old, "beat_at": old["beat_at"] - 60}))
    settings.status_file.chmod(0o600)
    this = psutil.Process()
    assert (read_status(settings, this) or {})["state"] == "silent"
    pidfile.touch()
    assert beat_age(pidfile) == inf
    show_life(pidfile)
    status = read_status(settings, this)
    assert status is not None
    assert status["state"] == "running"
    assert commands._checked(status, ready=False) == 0
    assert "outdated: the status is 60 s old" in commands._status_text(status)
    with pytest.raises(ForkqError, match="cannot follow it: the status is 60 s old"):
        commands._all_idle(settings, this)


def test_lost_redis_is_said() -> None:
    """Also of the clock, without which nothing that is scheduled becomes due."""
    [child] = found()["children"]
    clock = {**child, "name": "clock", "concurrency": 0, "redis_lost": True}
    both = [{**child, "redis_lost": True}, {**child, "redis_lost": False}, clock]
    _, redis, *_ = commands._status_text(found(children=both)).splitlines()
    assert redis == "redis: lost by 2 of 3 children (default.0, clock); they try again"
    both[0]["redis_lost_because"] = "invalid password"
    _, redis, *_ = commands._status_text(found(children=both)).splitlines()
    assert redis.endswith("(default.0, clock); they try again (invalid password)")


def test_a_degraded_tree_shows_which_child_is_missing_and_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    degraded = found(state="degraded", ready=False, missing=[MISSING])
    assert commands._status_text(degraded).splitlines()[1] == f"missing: {MISSING}"
    assert commands._checked(degraded, ready=True) == 1
    assert f"degraded (default.0 running, {MISSING})" in capsys.readouterr().err


@pytest.mark.parametrize("command", [stop, quiet, status])
def test_a_typo_in_the_file_does_not_hide_the_pidfile(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "forkq.toml").write_text("[forkq]\ntimout = 1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORKQ_PIDFILE", raising=False)
    by_default = CliRunner().invoke(command, [])
    assert isinstance(by_default.exception, ConfigError)  # no tree is known to run
    by_flag = CliRunner().invoke(command, ["--pidfile", "run.pid"])
    monkeypatch.setenv("FORKQ_PIDFILE", "run.pid")
    by_variable = CliRunner().invoke(command, [])
    for result in (by_flag, by_variable):
        assert "forkq.timout: unknown key" in result.output
        assert isinstance(result.exception, NotRunning)
        assert str(tmp_path / "run.pid") in str(result.exception)


class TestATreeOfAUnit:
    """systemd tells the unit alone where its pidfile is; the status file says whose it is."""

    @pytest.fixture(autouse=True)
    def runtime(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Where a user's units have their folders."""
        runtime = tmp_path / "run"
        runtime.mkdir(0o700)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        for name in ("FORKQ_PIDFILE", "FORKQ_CONFIG", "RUNTIME_DIRECTORY"):
            monkeypatch.delenv(name, raising=False)
        return runtime

    def unit(self, runtime: Path, name: str, source: Path, tag: str = "") -> Path:
        """What the master of a unit leaves in its folder."""
        pidfile = runtime / name / "forkq.pid"
        pidfile.parent.mkdir(0o700)
        pidfile.touch()
        settings = load(None, {"pidfile": str(pidfile), "config": str(source)}, {}, runtime)
        settings = replace(settings, tag=tag)
        StatusFile(settings, RecordedLog()).write("running", [], ready=True, missing=[])
        return pidfile

    def test_its_file_and_its_tag_find_it(self, runtime: Path, tmp_path: Path) -> None:
        ours, theirs = tmp_path / "forkq.toml", tmp_path / "other.toml"
        for file in (ours, theirs):
            file.write_text("[forkq]\ntimeout = 7")
        pidfile = self.unit(runtime, "forkq", ours)
        mail = self.unit(runtime, "forkq-mail", ours, tag="mail")
        self.unit(runtime, "other", theirs)
        assert commands._configuration().pidfile == pidfile  # found from the working directory
        assert commands._configuration(config="./forkq.toml").pidfile == pidfile
        assert commands._configuration(tag="mail").pidfile == mail
        assert commands._configuration(tag="x").pidfile.parent == runtime / "forkq"
        assert commands._configuration(tag="x").pidfile != pidfile
        self.unit(runtime, "twin", ours)
        assert commands._configuration().pidfile not in (pidfile, runtime / "twin/forkq.pid")

    def test_a_file_that_only_the_unit_can_read_in_full_finds_it(
        self, runtime: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Its EnvironmentFile= has the secret, which no shell has."""
        file = tmp_path / "forkq.toml"
        file.write_text("")
        pidfile = self.unit(runtime, "forkq", file)
        file.write_text('[redis]\nurl = "${OF_THE_UNIT}"')
        assert commands._configuration().pidfile == pidfile
        assert f"going by the pidfile {pidfile} alone" in capsys.readouterr().err

    def test_a_folder_of_another_user_is_no_obstacle(self, runtime: Path, tmp_path: Path) -> None:
        (tmp_path / "forkq.toml").write_text("")
        pidfile = self.unit(runtime, "forkq", tmp_path / "forkq.toml")
        pidfile.with_suffix(".status.json").chmod(0o666)
        assert commands._configuration().pidfile != pidfile
