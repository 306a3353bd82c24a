"""The demo's forkq: a real master with its children and server, started as a user starts one.

It has its own configuration, pidfile and state, so that no other forkq of the user's is disturbed,
and its own session, so that Ctrl-C reaches the demo alone, which then stops it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import psutil

from ..config.load import load
from ..errors import ForkqError
from .plan import TREE

# Settings of the user's own forkq, and what a service manager tells the process it started.
_NOT_OURS: Final = re.compile(
    r"FORKQ_|REDIS_URL$|NOTIFY_SOCKET$|WATCHDOG_|RUNTIME_DIRECTORY$|STATE_DIRECTORY$"
)
_DEEPEST: Final = 60  # bytes; a socket's path has about 100
_BEYOND: Final = 10.0  # what a stop may take beyond the time-out


class Child(msgspec.Struct, frozen=True):
    """A child, as the master's status file describes it."""

    name: str
    pid: int
    state: str
    busy: int
    concurrency: int
    processed: int
    failed: int
    respawns: int


class Status(msgspec.Struct, frozen=True):
    """The master's status file."""

    pid: int = 0
    state: str = "booting"
    ready: bool = False
    children: tuple[Child, ...] = ()


@dataclass(frozen=True, slots=True)
class Stopped:
    """How the stop went: seconds, and how many processes are gone."""

    seconds: float
    processes: int


class Tree:
    """One master and all that comes of it. ``folder`` is where its children work."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "forkq.log"
        # Not in ``folder``: a Unix socket's path must be short, and a shared disk may not hold one.
        self._private = Path(tempfile.mkdtemp(prefix="forkq-demo-", dir=_short_place()))
        self.settings = folder / "forkq.toml"
        places = {"pidfile": self._private / "forkq.pid", "state_dir": self._private}
        quoted = {name: json.dumps(str(path), ensure_ascii=False) for name, path in places.items()}
        self.settings.write_text(TREE.format(**quoted), encoding="utf-8")
        self.config = load(self.settings, {}, {}, folder)
        self._master: subprocess.Popen[bytes] | None = None
        self._seen: set[psutil.Process] = set()

    def start(self) -> None:
        """Starts the master; returns at once."""
        with self.log.open("ab") as log:
            self._master = subprocess.Popen(
                [sys.executable, "-m", "forkq", "start", "-C", str(self.settings)],
                cwd=self.folder,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The master's."""
        assert self._master is not None
        return self._master.pid

    def status(self) -> Status:
        """What the master says of its tree. Raises ForkqError if it has ended."""
        assert self._master is not None
        if (code := self._master.poll()) is not None:
            raise ForkqError(f"the demo's forkq ended with exit code {code}:\n{self._last_words()}")
        try:
            return msgspec.json.decode(self.config.status_file.read_bytes(), type=Status)
        except FileNotFoundError:
            return Status(pid=self._master.pid)

    def remember(self) -> None:
        """Notes which processes there are, so that the stop can tell whether all are gone."""
        with contextlib.suppress(psutil.NoSuchProcess):
            master = psutil.Process(self.pid)
            self._seen |= {master, *master.children(recursive=True)}

    def kill(self, child: Child) -> bool:
        """SIGKILL to one child; False if it is not there any more."""
        try:
            process = psutil.Process(child.pid)
            if process.ppid() != self.pid:
                return False
            process.kill()
        except psutil.NoSuchProcess:
            return False
        return True

    def stop(self) -> Stopped:
        """Stops the master as `kill` would, and makes sure that nothing is left of the tree."""
        if self._master is None:
            shutil.rmtree(self._private, ignore_errors=True)
            return Stopped(0.0, 0)
        started = time.monotonic()
        self.remember()
        self._master.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._master.wait(self.config.timeout + _BEYOND)
        left = [process for process in psutil.wait_procs(self._seen, 1.0)[1] if _lives(process)]
        for process in left:
            process.kill()
        self._master.wait(_BEYOND)
        shutil.rmtree(self._private, ignore_errors=True)
        if left:
            pids = ", ".join(str(process.pid) for process in left)
            raise ForkqError(f"forkq left processes behind, which the demo killed: pid {pids}")
        return Stopped(time.monotonic() - started, len(self._seen))

    def _last_words(self) -> str:
        return self.log.read_text(errors="replace").strip()[-2000:] or "(it said nothing)"


def _lives(process: psutil.Process) -> bool:
    """Not a zombie: in a container nobody may be there to bury an orphan."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _short_place() -> str:
    """The folder for temporary files, unless it is too deep for a Unix socket."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= _DEEPEST else "/tmp"  # noqa: S108 - mkdtemp's is ours


def _environment() -> dict[str, str]:
    """Ours without what is meant for other trees; from a checkout, with the way to this package."""
    environ = {name: value for name, value in os.environ.items() if not _NOT_OURS.match(name)}
    root = Path(__file__).resolve().parents[2]
    if (root / "bin" / "forkq").exists():
        environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(root), environ.get("PYTHONPATH")))
        )
    return environ
