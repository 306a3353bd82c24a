"""A Redis for tests, and a real master with its children on it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from .. import default_client
from ..api.find import find
from ..config import provided
from ..config.paths import beside
from ..errors import CannotBoot, ForkqError
from ..master.embedded_redis import EmbeddedRedis
from ..wire.payload import loads
from .modes import real
from .perform import child_log

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from ..client import Client
    from ..store.find_job import Found

_POLL: Final = 0.02
_LOG_SHOWN: Final = 4000
_STOP_LIMIT: Final = "5"
_KILL_AFTER: Final = 15.0


class RedisForTests:
    """A server in its own folder, as ``forkq start --redis embedded`` has it."""

    def __init__(self) -> None:
        # Not pytest's tmp_path: a Unix socket needs a short path.
        self._folder = Path(tempfile.mkdtemp(prefix="forkq-testing-"))
        self._server = EmbeddedRedis(self._folder, self._folder / "url", child_log())
        self.url = self._server.url

    def __enter__(self) -> Self:
        """Raises ServerUnavailable, with the remedy, if this machine has no Redis and no Valkey."""
        try:
            self._server.start()
        except ForkqError:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


class ForkqServer:
    """An empty Redis for one test, which is where its pushes go, and the master on it.

    ``url`` is its address. Pushes of the test to any other address are refused.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._mode = real(url)
        self._folder = Path(tempfile.mkdtemp(prefix="forkq-testing-"))
        self._before: Client | None = None
        self._master: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._before = default_client.swap(None)
        self._mode.__enter__()
        try:
            self._flush(default_client.configure(self.url))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        finally:
            used = default_client.swap(self._before)
            if used is not None:
                used.close()
            self._mode.__exit__(None, None, None)
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def log(self) -> str:
        """What the master and its children have written."""
        return self._log_file.read_text(errors="replace") if self._log_file.exists() else ""

    def start(self, app: str = "", *arguments: str, timeout: float = 60.0) -> None:
        """Runs ``forkq start -r app`` in the working directory of the test, with its import path
        and its forkq.toml, and waits until the children are ready. ``arguments`` are more of the
        command line, such as ``"-c", "2"``.

        In a Django project it runs what ``manage.py forkq start`` does, on the databases of the
        test; ``app`` may be left out. For Flask name the app or its factory: ``"shop:create_app"``.
        """
        if self._master is not None:
            raise RuntimeError("this test has started forkq already; call stop() first")
        own = ("--redis", self.url, "--pidfile", str(self._pidfile), "--timeout", _STOP_LIMIT)
        command, variables = _project_command(app)
        with self._log_file.open("ab") as log:
            self._master = _launch([sys.executable, *command, *own, *arguments], variables, log)
        deadline = time.monotonic() + timeout
        while not self._is_ready():
            if self._master.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(self._with_log("forkq did not become ready"))
            time.sleep(_POLL)

    def wait_for(self, *jids: str, timeout: float = 30.0) -> None:
        """Waits until these jobs have ended. Raises AssertionError, with the end of the log, if one
        has failed, or has not ended within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        for jid in jids:
            while (found := find(jid)) is not None:
                if found.location in ("retrying", "dead"):
                    raise AssertionError(self._with_log(_failure(jid, found)))
                if time.monotonic() > deadline:
                    text = f"the job {jid} is still {found.location} after {timeout:g} s"
                    raise AssertionError(self._with_log(text))
                time.sleep(_POLL)

    def stop(self) -> None:
        """Ends the master and its children, as TERM does. Jobs that do not end within 5 seconds go
        back to their queues."""
        master, self._master = self._master, None
        if master is None:
            return
        master.terminate()
        try:
            master.wait(_KILL_AFTER)
        except subprocess.TimeoutExpired:
            master.kill()
            master.wait()

    @property
    def _pidfile(self) -> Path:
        return self._folder / "forkq.pid"

    @property
    def _log_file(self) -> Path:
        return self._folder / "log"

    def _is_ready(self) -> bool:
        try:
            status: dict[str, Any] = json.loads(beside(self._pidfile, ".status.json").read_bytes())
        except FileNotFoundError:
            return False
        return bool(status["ready"])

    def _with_log(self, text: str) -> str:
        return f"{text}; the end of its log:\n{self.log[-_LOG_SHOWN:]}"

    def _flush(self, client: Client) -> None:
        with client.connection() as connection:
            connection.call("FLUSHALL")


def _project_command(app: str) -> tuple[list[str], dict[str, str]]:
    """How the project starts forkq: arguments of Python, and variables."""
    found = provided.source and provided.source.command(app)
    if found:
        return found
    if not app:
        raise CannotBoot('name the module that defines your jobs: start("app.jobs")')
    return ["-m", "forkq", "start", "-r", app], {}


def _launch(
    command: list[str], variables: dict[str, str], log: IO[bytes]
) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(part for part in sys.path if part)
    return subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": path, **variables},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,  # Ctrl-C is for pytest, which then stops the master
    )


def _failure(jid: str, found: Found) -> str:
    job = loads(found.payload)
    reason = f"{job.get('error_class')}: {job.get('error_message')}"
    return f"the job {jid} ({job['class']}) has failed and is {found.location}: {reason}"
