"""Where forkq.toml is found: upwards from the working directory, then from the app's own files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forkq.config.load import load
from tests.support.tree import CHECKOUT

TEXT = '[forkq]\ntag = "{}"\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a forkq.toml, and one below it without."""
    (tmp_path / "forkq.toml").write_text(TEXT.format("found"))
    (tmp_path / "src" / "shop").mkdir(parents=True)
    return tmp_path


def test_a_folder_above_the_working_directory(project: Path) -> None:
    config = load(None, {}, {"HOME": "/h"}, project / "src" / "shop")
    assert config.tag == "found"
    assert (config.source, config.folder) == (project / "forkq.toml", project)
    # What the commands find by the folder is the same as there.
    assert config.pidfile == load(None, {}, {"HOME": "/h"}, project).pidfile


def test_the_nearest_one_counts_and_a_named_one_above_all(project: Path) -> None:
    below = project / "src"
    (below / "forkq.toml").write_text(TEXT.format("nearer"))
    assert load(None, {}, {}, below / "shop").tag == "nearer"
    named = load(None, {"config": "../forkq.toml"}, {}, below)
    assert (named.tag, named.folder) == ("found", below)
    assert load(None, {}, {"FORKQ_CONFIG": str(project / "forkq.toml")}, below).tag == "found"


def test_the_working_directory_comes_before_the_app(project: Path, tmp_path: Path) -> None:
    elsewhere = project.parent / f"{project.name}-elsewhere"
    elsewhere.mkdir()
    app = project / "src" / "shop"
    assert load(None, {}, {}, elsewhere, [elsewhere / "lib", app]).folder == project
    (elsewhere / "forkq.toml").write_text(TEXT.format("here"))
    assert load(None, {}, {}, elsewhere, [app]).tag == "here"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_one_above_that_another_user_has_put_there_is_ignored(project: Path) -> None:
    file, below = project / "forkq.toml", project / "src"
    os.chown(file, 12345, -1)
    assert load(None, {}, {}, below).source is None
    assert load(None, {}, {}, project).source == file  # the user has gone there
    os.chown(below, 12345, -1)
    assert load(None, {}, {}, below).source == file  # the owner of the folder could do all anyway


def test_one_above_that_all_may_write_to_is_ignored(project: Path) -> None:
    (project / "forkq.toml").chmod(0o666)
    assert load(None, {}, {}, project / "src").source is None


def test_a_process_that_pushes_finds_the_file_of_its_app(project: Path, tmp_path: Path) -> None:
    """A program elsewhere, whose working directory says nothing."""
    (project / "src" / "shop_jobs.py").write_text("import forkq\n@forkq.job\ndef a(): ...\n")
    (project / "forkq.toml").write_text('[redis]\nprefix = "shop:"\n')
    program = "import shop_jobs, forkq; print(forkq.configure().keys.queues)"
    env = {"PYTHONPATH": f"{CHECKOUT}:{project / 'src'}", "HOME": "/h"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd="/",
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("shop:queues\n", "")
