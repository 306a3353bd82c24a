"""The demo's forkq: a real master with its children and server, started as a user starts one.

It has a pidfile and state of its own, so that no other forkq of the user's is disturbed, and a
session of its own, so that Ctrl-C reaches the demo alone, which then stops the tree.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec

from forkq import ForkqError

_HERE = Path(__file__).resolve().parent
# Settings of the user's own forkq, and what a service manager tells the process that it started.
_FOREIGN = re.compile(r"FORKQ_(?!DEMO_)|REDIS_URL$|NOTIFY_SOCKET$|WATCHDOG_|(RUNTIME|STATE)_DIR")


class Child(msgspec.Struct, frozen=True):
    """A child, as the master describes it."""

    name: str
    pid: int
    state: str
    concurrency: int
    processed: int
    respawns: int


class Status(msgspec.Struct, frozen=True):
    """What ``forkq status --json`` prints, as far as the show needs it."""

    pid: int = 0
    state: str = "booting"
    ready: bool = False
    children: tuple[Child, ...] = ()


class Tree:
    """One master and its processes; its children work in ``folder``. By FORKQ_CONFIG, which this
    process gets too, ``perform_async`` and ``forkq.api`` find the tree's Redis."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "forkq.log"
        # Not in ``folder``: the path of the server's Unix socket must be short.
        short = "/tmp" if len(tempfile.gettempdir()) > 60 else None  # noqa: S108 - for mkdtemp
        self._private = Path(tempfile.mkdtemp(prefix="forkq-demo-", dir=short))
        self._master: subprocess.Popen[bytes] | None = None
        for name in filter(_FOREIGN.match, list(os.environ)):
            del os.environ[name]
        path = [str(_HERE.parents[1]), os.environ.get("PYTHONPATH")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        os.environ["FORKQ_CONFIG"] = str(_HERE / "forkq.toml")
        os.environ["FORKQ_DEMO_STATE"] = str(self._private)

    def start(self) -> None:
        """Starts the master; returns at once."""
        command, no = [sys.executable, "-m", "forkq", "start"], subprocess.DEVNULL
        with self._log.open("ab") as log:
            self._master = subprocess.Popen(
                command, cwd=self._folder, stdin=no, stdout=log, stderr=log, start_new_session=True
            )

    def status(self) -> Status:
        """What the master says of its tree. Raises ForkqError if it has ended."""
        if self._master is not None and (code := self._master.poll()) is not None:
            last = self._log.read_text(errors="replace").strip()[-2000:]
            raise ForkqError(f"the demo's forkq ended with exit code {code}:\n{last}")
        with suppress(FileNotFoundError):
            written = (self._private / "forkq.status.json").read_bytes()
            return msgspec.json.decode(written, type=Status)
        return Status()

    def stop(self) -> None:
        """Stops the master as `kill` would; it stops the rest. Raises ForkqError if it does not."""
        if self._master is not None:
            self._master.terminate()
            try:
                self._master.wait(20)  # more than the time-out in forkq.toml
            except subprocess.TimeoutExpired:
                raise ForkqError(f"forkq did not stop, see {self._log}") from None
        shutil.rmtree(self._private, ignore_errors=True)
