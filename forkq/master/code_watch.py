"""The process that watches the code for ``forkq start --reload``: ``python -m`` this module.

A process of its own, because watchfiles starts threads, and the master must have none. It ends when
its parent, the master, is gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import psutil

from ..errors import ConfigError, install
from ..store.outage import LONGEST_BETWEEN_FORKS, Backoff

_LOOKS_AFTER_MASTER: Final = 500  # milliseconds
_DEBOUNCE: Final = 200  # milliseconds: an editor's save is several changes
_STEP: Final = 20
# Seconds before its end from which the process may have left changes untold: it gathers them, and a
# process that was killed is seen to live until it is gone. One that was told counts again.
_UNTOLD: Final = 2.0


def check_installed() -> None:
    """Raises ConfigError without watchfiles."""
    if find_spec("watchfiles") is None:
        raise ConfigError(f"--reload needs the package watchfiles: {install('reload')}")


class _Watcher:
    """The process, beside the master that this process is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ran_at = time.time()
        self._backoff = Backoff(longest=LONGEST_BETWEEN_FORKS)
        self._process = self._start()

    def keep_running(self) -> bool:
        """Starts the process again if it has ended. Returns whether it did."""
        now = time.time()
        if self._process.poll() is None:
            self._ran_at = now
            return False
        if not self._backoff.over:
            return False
        self._backoff.pause()
        with suppress(OSError):  # no process left: after the pause
            self._process = self._start()
        return True

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        arguments = [str(self._folder), str(os.getpid()), str(self._ran_at - _UNTOLD)]
        return subprocess.Popen(
            [sys.executable, "-m", __name__, *arguments], stdin=subprocess.DEVNULL
        )


_running: _Watcher | None = None


def keep_running() -> bool:
    """Called by the master in each turn. Returns whether the process had ended, and was started
    again: what was saved meanwhile counts."""
    return _running is not None and _running.keep_running()


@contextmanager
def watching(folder: Path) -> Iterator[None]:
    """Runs the process while its block runs."""
    global _running  # noqa: PLW0603 - one for the tree
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the master's handler is there
    _end_earlier()
    _running = watcher = _Watcher(folder)
    try:
        yield
    finally:
        _running = None
        watcher.end()


def _end_earlier() -> None:
    """Ends the watcher that the master's program before this one may have left: an exec keeps
    children."""
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # a child of forkq's that dies now
            if __name__ in child.cmdline():
                child.kill()
                child.wait()


def watch_code(folder: Path, master: int, started: float) -> None:
    """Sends the master USR1 when a Python file changes below ``folder``, USR2 when a forkq.toml
    does. Returns when the master is no longer the parent. ``started``: changes count from this
    epoch second on, also those from before the watch."""
    from watchfiles import Change, PythonFilter, watch  # noqa: PLC0415 - of an extra

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the master
    is_code = PythonFilter(extra_extensions=("forkq.toml",))
    rounds = watch(
        folder,
        watch_filter=is_code,
        rust_timeout=_LOOKS_AFTER_MASTER,
        debounce=_DEBOUNCE,
        step=_STEP,
        yield_on_timeout=True,
    )
    for number, changes in enumerate(rounds):
        paths = {path for _, path in changes}
        if number == 0:
            missed = _changed_since(folder, started)
            paths |= {path for path in missed if is_code(Change.modified, path)}
        if os.getppid() != master:
            return
        if paths:
            is_file = any(path.endswith(".toml") for path in paths)
            os.kill(master, signal.SIGUSR2 if is_file else signal.SIGUSR1)


def _changed_since(folder: Path, started: float) -> Iterator[str]:
    """What was saved while this process did not watch yet."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name[0] not in "._" and name != "node_modules"]
        for path in (Path(place, name) for name in names):
            with suppress(OSError):
                if path.stat().st_mtime >= started:
                    yield str(path)


if __name__ == "__main__":
    watch_code(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
