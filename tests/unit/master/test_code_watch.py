"""The process that watches the code may die, and may be one that the master's program before this
one has left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from forkq.master import code_watch
from tests.support.waiting import wait_until

SLEEP = "import time; time.sleep(600)"


@pytest.mark.parametrize("error", [psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied])
def test_a_child_that_dies_meanwhile_is_passed_over(
    error: type[psutil.Error], monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = subprocess.Popen([sys.executable, "-c", SLEEP])
    watcher = subprocess.Popen([sys.executable, "-c", SLEEP, code_watch.__name__])
    found = psutil.Process.cmdline
    try:
        wait_until(
            lambda: code_watch.__name__ in psutil.Process(watcher.pid).cmdline(), what="its start"
        )

        def cmdline(process: psutil.Process) -> list[str]:
            if process.pid == dying.pid:
                raise error(process.pid)
            return found(process)

        monkeypatch.setattr(psutil.Process, "cmdline", cmdline)
        code_watch._end_earlier()
        assert watcher.wait(10) is not None
        assert dying.poll() is None
    finally:
        for process in (dying, watcher):
            process.kill()
            process.wait()


def test_a_change_that_the_dying_process_kept_to_itself_is_told_by_the_next_one(
    tmp_path: Path,
) -> None:
    """The file was saved a second before the master saw the process live for the last time."""
    with code_watch.watching(tmp_path):
        watcher = code_watch._running
        assert watcher is not None
        dying = watcher._process
        dying.send_signal(signal.SIGSTOP)
        assert not code_watch.keep_running()
        saved = tmp_path / "jobs.py"
        saved.touch()
        os.utime(saved, (watcher._ran_at - 1.0,) * 2)
        dying.kill()
        dying.wait()
        told: list[int] = []
        signal.signal(signal.SIGUSR1, lambda number, _: told.append(number))
        assert code_watch.keep_running()
        wait_until(lambda: told, what="the word that the code has changed")
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
