"""The environment that make makes, or finds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with what the making of an environment reads."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(checkout: Path, python: str) -> str:
    """Makes the environment with this interpreter; returns what make says."""
    command = ["make", "-s", f"PYTHON={python}", "VENV=.venv", ".venv/.made"]
    environ = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "VENV")
    }
    return subprocess.run(
        command, cwd=checkout, env=environ, capture_output=True, text=True, check=True
    ).stdout


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def interpreter(tmp_path: Path) -> str:
    """Makes an environment quickly: without pip."""
    python = f'[ "$1 $2" = "-m venv" ] && mkdir -p "$3" || exec {sys.executable} "$@"'
    return str(script(tmp_path / "python", python))


def test_an_environment_of_the_readers_is_used_and_stays(checkout: Path, interpreter: str) -> None:
    """That of the quick start, also when pyproject.toml has changed."""
    own = script(checkout / ".venv/bin/python", f'exec {sys.executable} "$@"')
    for _ in range(2):
        assert make(checkout, interpreter).startswith("Using the environment that is in .venv")
        assert own.exists()
        os.utime(checkout / "pyproject.toml", (2e9, 2e9))


def test_an_environment_of_makes_is_made_anew_when_pyproject_has_changed(
    checkout: Path, interpreter: str
) -> None:
    assert make(checkout, interpreter).startswith("Making .venv with Python")
    assert make(checkout, interpreter) == ""
    old = checkout / ".venv/old"
    old.touch()
    os.utime(checkout / "pyproject.toml", (2e9, 2e9))
    assert make(checkout, interpreter).startswith("Making .venv with Python")
    assert not old.exists()


def test_what_an_interrupted_make_has_left_is_made_anew(checkout: Path, interpreter: str) -> None:
    """Python makes the interpreter first, and then pip."""
    script(checkout / ".venv/bin/python", f'[ "$1" = -m ] && exit 1; exec {sys.executable} "$@"')
    assert make(checkout, interpreter).startswith("Making .venv with Python")
    assert not (checkout / ".venv/bin").exists()
