"""A real terminal for `forkq top`: a tmux server of its own, 80 columns by 24 lines."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import bound
from tests.support.waiting import wait_until

needs_tmux = pytest.mark.skipif(
    shutil.which("tmux") is None, reason="needs the Debian package tmux: make test-deps"
)
PATIENCE = 60
# What the terminal of the tests would pass on.
_OWN = frozenset({"TMUX", "TMUX_PANE", "NO_COLOR", "COLORTERM", "LANG", "COLUMNS", "LINES"})


class Terminal:
    """Runs one command of the shell, and then waits."""

    def __init__(self, socket: Path, command: str, **environ: str) -> None:
        self._socket = str(socket)
        server = ["tmux", "-S", self._socket, "-f", os.devnull, "-D"]
        without = {name: value for name, value in os.environ.items() if name not in _OWN}
        self._server = subprocess.Popen(
            bound.command(server), env={**without, "LC_ALL": "C.UTF-8", **environ},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_until(socket.is_socket, deadline=PATIENCE, what="tmux to listen")
        shell = f"{command}; echo ended with $?; exec sleep 600"
        wait_until(
            lambda: self._try("new-session", "-d", "-x", "80", "-y", "24", shell),
            deadline=PATIENCE, what="tmux to open a terminal",
        )  # fmt: skip

    def keys(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def resize(self, columns: int, lines: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def text(self, *options: str) -> str:
        """What stands there; with "-e" also its colours."""
        return self._tmux("capture-pane", "-p", *options)

    def fact(self, name: str) -> str:
        """Such as ``alternate_on``."""
        return self._tmux("display-message", "-p", f"#{{{name}}}").strip()

    def shows(self, *texts: str) -> None:
        wait_until(
            lambda: all(text in self.text() for text in texts),
            deadline=PATIENCE, what=f"{texts} on the screen", every=0.1,
        )  # fmt: skip

    def close(self) -> None:
        self._try("kill-server")
        self._server.wait(PATIENCE)

    def _tmux(self, *words: str) -> str:
        done = self._run(words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _try(self, *words: str) -> bool:
        return self._run(words).returncode == 0

    def _run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        command = ["tmux", "-S", self._socket, *words]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
