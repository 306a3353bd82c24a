"""``forkq init`` writes a project that runs as it is."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.tree import ForkqTree


@pytest.fixture
def empty() -> Iterator[ForkqTree]:
    """A folder in which nothing is."""
    tree = ForkqTree()
    yield tree
    tree.close()


def test_the_first_job_runs_at_once(empty: ForkqTree) -> None:
    """As its last lines say, on a server that it starts itself."""
    done = empty.run("init")
    assert done.returncode == 0, done.stderr
    push = done.stdout.splitlines()[-1].partition("forkq push ")[2]
    assert 'url = "embedded"' in (empty.cwd / "forkq.toml").read_text()
    empty.start().wait_ready()
    jid = empty.run("push", *shlex.split(push)).stdout.strip()
    assert len(jid) == 24
    empty.wait_log("Hello Ada")
    assert empty.stop() == 0


def test_nothing_is_overwritten(empty: ForkqTree) -> None:
    (empty.cwd / "jobs.py").write_text("mine")
    done = empty.run("init", "--unit", "--compose")
    assert done.returncode == 1
    assert done.stderr.startswith("forkq: jobs.py in ")
    assert "nothing was written" in done.stderr
    assert [path.name for path in empty.cwd.iterdir()] == ["jobs.py"]
    assert (empty.cwd / "jobs.py").read_text() == "mine"


def test_a_folder_is_made_with_a_unit_and_what_containers_need(
    empty: ForkqTree, tmp_path: Path
) -> None:
    done = empty.run("init", "--unit", "--compose", str(tmp_path / "a" / "shop"))
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "a" / "shop"
    made = {path.name for path in folder.iterdir()}
    assert made == {"Dockerfile", "compose.yaml", "forkq.service", "forkq.toml", "jobs.py"}
    assert 'CMD ["forkq", "start"]' in (folder / "Dockerfile").read_text()
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    assert services["forkq"]["environment"]["REDIS_URL"] == "redis://redis:6379/0"
    unit = (folder / "forkq.service").read_text()
    assert f"WorkingDirectory={folder}\n" in unit
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(folder / "forkq.service")],
        capture_output=True, text=True, timeout=60, check=False,
    ) if Path("/usr/bin/systemd-analyze").exists() else None  # fmt: skip
    assert verified is None or "Unknown" not in verified.stderr


def test_a_folder_that_cannot_be_written_is_told(empty: ForkqTree) -> None:
    (empty.cwd / "file").touch()
    done = empty.run("init", "file/shop")
    assert done.returncode == 1
    assert "cannot write into" in done.stderr
    assert "Traceback" not in done.stderr
