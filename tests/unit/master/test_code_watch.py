"""The master's next program ends the watcher of the one before, whatever its other children do."""

from __future__ import annotations

import subprocess
import sys

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
