"""Processes of forkq that are forked with their imports done, instead of executed.

Most of a short program's time goes into importing redis-py, forkq and the like, and into freeing
them at its end; and the tests start many hundreds of commands, masters and snippets. They find the
modules loaded that they need. tests/process/test_preloaded.py compares them with processes that
were executed.

A process of its own (``preloading.py``) does the imports and forks: the test process has threads.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from . import bound

LIBRARIES: Final = ("click", "msgspec", "psutil", "redis", "setproctitle", "structlog")
MAIN: Final = ("forkq.__main__", "forkq.cli.main")
MASTER: Final = ("forkq.cli.start", "forkq.child.main", "forkq.clock.main")
COMMAND: Final = tuple(
    f"forkq.cli.{name}"
    for name in ("config", "cron", "find", "jobs", "push", "queues", "stats", "tree")
)
# It executes processes that outlive it.
OWN_PROCESS: Final = {"demo"}
READ_AT_START: Final = ("PYTHON", "LC_", "LANG")  # variables that Python reads before it runs
LENGTH: Final = struct.Struct("!Q")


class Forked:
    """One forked process, with what ``subprocess.Popen`` has for a process of its own."""

    def __init__(self, source: _Source, pid: int, arguments: Sequence[str]) -> None:
        self._source = source
        self.pid = pid
        self.args = arguments
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        if self.returncode is None and self._has_ended():
            self.returncode = self._source.ask({"poll": self.pid})
        return self.returncode

    def _has_ended(self) -> bool:
        """Its source need not be asked, which takes ten times as long, while it runs: it stays a
        zombie until then."""
        state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state in "ZX"

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end; raises TimeoutExpired."""
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                select.select([descriptor], [], [], timeout)
            finally:
                os.close(descriptor)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Does nothing once it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class _Source:
    """The process that imports once, and forks at each request. Several test processes may share
    it."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = modules
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def listen(self) -> str:
        """Lets it import. Returns the address for ``connect``."""
        program = [sys.executable, str(Path(__file__).with_name("preloading.py"))]
        self._process, address = listening(program, self._modules)
        return address

    def connect(self, address: str) -> None:
        """Has this process's requests answered by the source with this address."""
        self._socket = connected(address)

    def close(self) -> None:
        """Ends what this process has started and opened."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
        self._process = self._socket = None

    @property
    def running(self) -> bool:
        """Whether requests are answered."""
        return self._socket is not None

    def fork(
        self,
        arguments: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        out: BinaryIO,
        err: BinaryIO,
        *,
        program: str | None = None,
        new_session: bool = False,
    ) -> Forked:
        """``bin/forkq`` with these arguments, or what ``python -c`` is given; its standard input is
        empty."""
        request = {
            "arguments": list(arguments),
            "program": program,
            "cwd": os.fspath(cwd),
            "env": dict(env),
            "new_session": new_session,
        }
        pid = self.ask(request, [out.fileno(), err.fileno()])
        return Forked(self, pid, arguments)

    def ask(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> Any:
        """The answer to a request."""
        assert self._socket is not None
        data = json.dumps(request).encode()  # what is not UTF-8 is escaped, too
        with self._lock:
            socket.send_fds(self._socket, [LENGTH.pack(len(data))], descriptors)
            self._socket.sendall(data)
            return json.loads(self._socket.recv(100))


_commands = _Source([*LIBRARIES, *MAIN, *COMMAND])
_masters = _Source([*LIBRARIES, *MAIN, *MASTER])


def listening(
    program: Sequence[str], arguments: Sequence[str]
) -> tuple[subprocess.Popen[bytes], str]:
    """Starts ``program``, whose first argument is the descriptor of a socket that listens. Returns
    the address for ``connected``, too."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("")  # the kernel takes a free name, which is no file
        listener.listen()
        process = subprocess.Popen(
            bound.command([*program, str(listener.fileno()), *arguments]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # no terminal, which Python would buffer by lines
            pass_fds=[listener.fileno()],
        )
        return process, listener.getsockname()[1:].decode()


def connected(address: str) -> socket.socket:
    """A connection to what listens at that address."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(f"\0{address}")
    return connection


def possible() -> bool:
    """Whether this system has what forked processes need."""
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


def listen() -> dict[str, str]:
    """Starts the processes that fork; they end with this one, or at ``close``. Returns their
    addresses, for ``start`` in any process."""
    return {"commands": _commands.listen(), "masters": _masters.listen()}


def start(addresses: Mapping[str, str] | None = None) -> None:
    """Lets this process fork commands and masters, from processes of its own if none are shared."""
    if possible():
        found = addresses or listen()
        _commands.connect(found["commands"])
        _masters.connect(found["masters"])


def close() -> None:
    """Ends the processes that fork, if they are this process's own."""
    _commands.close()
    _masters.close()


def can_run(arguments: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a process of its own would make no difference to this command."""
    names = {name for name in {*env, *os.environ} if name.startswith(READ_AT_START)}
    changed = any(env.get(name) != os.environ.get(name) for name in names)
    return _commands.running and not changed and OWN_PROCESS.isdisjoint(arguments)


def run(
    arguments: Sequence[str], cwd: Path, env: Mapping[str, str], deadline: float
) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run`` of ``forkq`` with these arguments."""
    source = _masters if arguments[:1] in (["start"], ["doctor"]) else _commands
    return _ended(source, arguments, None, cwd, env, deadline)


def run_python(
    program: str, cwd: Path, env: Mapping[str, str], deadline: float
) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run`` of ``python -c`` and this program, with the checkout on its path."""
    return _ended(_commands, (), program, cwd, env, deadline)


def _ended(
    source: _Source,
    arguments: Sequence[str],
    program: str | None,
    cwd: Path,
    env: Mapping[str, str],
    deadline: float,
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = source.fork(arguments, cwd, env, out, err, program=program)
        try:
            code = process.wait(deadline)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        return subprocess.CompletedProcess(list(arguments), code, _text(out), _text(err))


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode()


def master(arguments: Sequence[str], cwd: Path, env: Mapping[str, str], log: BinaryIO) -> Forked:
    """``forkq start`` and these arguments, in a session of its own."""
    return _masters.fork(["start", *arguments], cwd, env, log, log, new_session=True)
