"""A real PostgreSQL server, on a Unix socket in a folder of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from . import bound
from .waiting import wait_until

USERS = ("postgres", "nobody")  # the server refuses to run as root
SETTINGS = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


class Postgres:
    """One server, and its database ``postgres`` for the user ``forkq``. It dies with the thread
    that started it. Skips the test where there is no PostgreSQL."""

    def __init__(self) -> None:
        self._bin = _programs()
        self._user = next((name for name in USERS if os.getuid() == 0 and _exists(name)), None)
        self.folder = Path(tempfile.mkdtemp(prefix="forkq-pg-"))
        self._process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            shutil.chown(self.folder, self._user)
            self.folder.chmod(0o711)

    @property
    def url(self) -> str:
        """For SQLAlchemy, with psycopg 3."""
        return f"postgresql+psycopg://forkq@/postgres?host={self.folder}"

    def start(self) -> Postgres:
        """Starts it, for the first time with new data, and waits until it answers."""
        if not (self.folder / "data").exists():
            self._make_data()
        options = {**SETTINGS, "listen_addresses": "", "unix_socket_directories": str(self.folder)}
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                bound.command(self._program("postgres", "-D", f"{self.folder}/data", *settings)),
                cwd="/", stdout=log, stderr=log,
            )  # fmt: skip
        wait_until(self._answers, what="PostgreSQL")
        return self

    def stop(self) -> None:
        """A fast stop: it ends each connection, as a restart by a package manager does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(30)
            self._process = None

    def restart(self) -> None:
        """All connections end, and new ones are taken."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Ends it, and removes its files."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder.parent / f"{self.folder.name}.log").unlink(missing_ok=True)

    def _make_data(self) -> None:
        flags = ("-D", f"{self.folder}/data", "-U", "forkq", "-A", "trust", "-N", "-E", "UTF8")
        command = self._program("initdb", *flags, "--locale=C")
        subprocess.run(command, cwd="/", capture_output=True, check=True, timeout=60)

    def _answers(self) -> bool:
        command = [str(self._bin / "pg_isready"), "-q", "-h", str(self.folder), "-U", "forkq"]
        return subprocess.run(command, check=False, timeout=30).returncode == 0

    def _program(self, name: str, *arguments: str) -> list[str]:
        """The command, as the other user if this one is root. setpriv changes the user and becomes
        the program, so its pid is that of the server."""
        command = [str(self._bin / name), *arguments]
        if self._user is None:
            return command
        return ["setpriv", f"--reuid={self._user}", "--clear-groups", "--pdeathsig=KILL", *command]


def _programs() -> Path:
    """Debian keeps them out of PATH, a folder for each version."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    program = shutil.which("initdb")
    if not found and program is None:
        pytest.skip("no PostgreSQL: install the package postgresql (`make test-deps`)")
    return (found[-1] if found else Path(str(program)).resolve()).parent


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
