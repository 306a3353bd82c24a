"""Ctrl-C ends a command at any moment without a traceback: while Python still imports it, while it
runs, and while Python ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tree import FORKQ
from tests.support.waiting import PATIENCE

# Presses Ctrl-C at the first import of a module, at a connect, or when Python ends.
PRESSES = """
import atexit, os, signal, sys

def press():
    os.kill(os.getpid(), signal.SIGINT)

class Imports:
    def find_spec(self, name, path, target=None):
        if name == MOMENT:
            press()

MOMENT = os.environ["PRESS_AT"]
sys.meta_path.insert(0, Imports())
sys.addaudithook(lambda event, _: press() if event == MOMENT else None)
if MOMENT == "end":
    atexit.register(press)
"""
# What pip and uv write into the folder of scripts.
SCRIPT = "import sys\nfrom forkq.__main__ import main\nsys.exit(main())\n"


@pytest.fixture
def press(tmp_path: Path) -> Iterator[Path]:
    """A folder with a script named forkq, and a module that Python imports before all others. What
    starts meanwhile does not ignore Ctrl-C, as all do that a shell has started with `&`."""
    (tmp_path / "sitecustomize.py").write_text(PRESSES)
    (tmp_path / "forkq").write_text(SCRIPT)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield tmp_path
    signal.signal(signal.SIGINT, before)


def interrupted(command: list[str], moment: str, folder: Path) -> tuple[int, str]:
    """How a command ends whose Ctrl-C comes at ``moment``, and what it says."""
    checkout = Path(__file__).parents[2]
    paths = f"{folder}:{checkout}"
    done = subprocess.run(
        command, env={"PYTHONPATH": paths, "PRESS_AT": moment, "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=30 * PATIENCE, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("moment", ["forkq.middleware", "click", "forkq.cli.stats", "end"])
def test_no_import_is_interrupted_with_a_traceback(press: Path, moment: str) -> None:
    """A process that died of SIGINT: a shell shows 130, and ends its loop, too."""
    ways = ([sys.executable, str(press / "forkq")], [sys.executable, "-m", "forkq"], [*FORKQ])
    for way in ways:
        command = [*way, "stats", "--help"]
        assert interrupted(command, moment, press) == (-signal.SIGINT, ""), way


def test_a_command_that_runs_ends_with_the_code_of_ctrl_c(press: Path) -> None:
    command = [*FORKQ, "stats", "--redis", "redis://127.0.0.1:1"]
    code, said = interrupted(command, "socket.connect", press)
    assert (code, said.strip()) == (130, "")


def test_an_app_keeps_its_keyboard_interrupt(press: Path) -> None:
    """Only a command of forkq dies of it: an app that pushes has an interrupt of its own."""
    command = [sys.executable, "-c", "import forkq"]
    code, said = interrupted(command, "forkq.middleware", press)
    assert code == -signal.SIGINT  # Python's own way for one that is not caught
    assert said.endswith("KeyboardInterrupt\n")
