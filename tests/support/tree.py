"""A tree of forkq processes under test: started as a user starts it, and surely gone afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from . import bound, preloaded
from .server import Server
from .waiting import PATIENCE, NotInTime, wait_until

CHECKOUT = Path(__file__).resolve().parents[2]
FORKQ = [sys.executable, str(CHECKOUT / "bin" / "forkq")]
_LINKS = Path("/proc/self/cwd")  # of a process to its folder, on Linux
# What the tester's own shell or service manager says must not reach the tree under test.
FOREIGN = re.compile(
    r"FORKQ_(?!TEST_)|REDIS_URL$|NOTIFY_SOCKET$|WATCHDOG_|XDG_|(RUNTIME|STATE)_DIRECTORY$"
)


class ForkqTree:
    """`bin/forkq start` in a folder of its own, and every process that comes of it.

    `app` is Python source, saved as jobs.py and loaded with `-r jobs`, or the path of a file to
    copy there; `config` the text of forkq.toml; `redis` a Server or a URL for `--redis`, or None to
    leave that to config and env. Output and log of all processes go to one file.
    """

    wrapper: Sequence[str] = ()  # a command that the master is started by
    program: Sequence[str] = FORKQ
    fresh = False  # whether the master is executed, even if a fork would make no difference

    def __init__(
        self,
        redis: Server | str | None = None,
        *,
        app: str | Path | None = None,
        config: str | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        # Not pytest's tmp_path: the embedded server's Unix socket needs a short path.
        self.root = Path(tempfile.mkdtemp(prefix="forkq-tree-"))
        self.cwd = self._folder("app")
        self.runtime = self._folder("run")
        self.state = self._folder("state")
        self.log = self.root / "log"
        self.args = [*_app_arguments(app, self.cwd), *_redis_arguments(redis), *args]
        self.env = self._environment(env or {})
        if config is not None:
            (self.cwd / "forkq.toml").write_text(textwrap.dedent(config))
        self._process: subprocess.Popen[bytes] | preloaded.Forked | None = None
        self._sessions: set[int] = set()
        self._born = time.time()

    def _folder(self, name: str) -> Path:
        folder = self.root / name
        folder.mkdir(mode=0o700)
        return folder

    def _environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
        own = {"XDG_RUNTIME_DIR": str(self.runtime), "XDG_STATE_HOME": str(self.state)}
        return {**inherited, **own, **extra}

    def start(self) -> ForkqTree:
        """Start the master in a session of its own; also again, once the last one has ended."""
        if self.alive:
            raise RuntimeError(f"the master already runs as pid {self.pid}")
        with self.log.open("ab") as log:
            self._process = self._start(log)
        self._sessions.add(self._process.pid)
        return self

    def _start(self, log: BinaryIO) -> subprocess.Popen[bytes] | preloaded.Forked:
        plain = self.program is FORKQ and not self.wrapper and not self.fresh
        if plain and preloaded.can_run(self.args, self.env):
            return preloaded.master(self.args, self.cwd, self.env, log)
        return subprocess.Popen(
            bound.command([*self.wrapper, *self.program, "start", *self.args]),
            cwd=self.cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def run(self, *args: str, deadline: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Another command as the same user, in the same folder: `tree.run("status", "--json")`."""
        if self.program is FORKQ and preloaded.can_run(args, self.env):
            return preloaded.run(args, self.cwd, self.env, deadline)
        return subprocess.run(
            [*self.program, *args],
            cwd=self.cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=deadline,
            check=False,
        )

    @property
    def process(self) -> subprocess.Popen[bytes] | preloaded.Forked:
        """The master, as its parent sees it."""
        if self._process is None:
            raise RuntimeError("the tree was not started")
        return self._process

    @property
    def pid(self) -> int:
        """The master's pid."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether the master runs."""
        return self._process is not None and self._process.poll() is None

    def children(self, title: str = "") -> list[psutil.Process]:
        """The master's living children whose title contains `title`, oldest first."""
        try:
            found = psutil.Process(self.pid).children()
        except psutil.NoSuchProcess:
            return []
        found = [process for process in found if title in _title(process)]
        return sorted(found, key=lambda process: (process.create_time(), process.pid))

    def log_text(self) -> str:
        """All that the tree has written so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def status(self) -> dict[str, Any]:
        """What the master wrote for `forkq status`, beside its pidfile; empty if nothing yet."""
        for path in self._status_files():
            try:
                found: dict[str, Any] = json.loads(path.read_bytes())
            except (FileNotFoundError, ValueError):  # replaced or removed while we look
                continue
            if found.get("pid", self.pid) == self.pid:  # a killed master leaves its own behind
                return found
        return {}

    def _status_files(self) -> Iterator[Path]:
        """Looked at a hundred times a second while a tree boots: glob takes five times as long."""
        for folder, _, names in os.walk(self.runtime):
            yield from (Path(folder, name) for name in names if name.endswith(".status.json"))

    def ready(self) -> bool:
        """Whether the master has said that all children are ready."""
        return bool(self.status().get("ready"))

    def wait_ready(self, deadline: float = 60.0) -> ForkqTree:
        """Wait until all children are ready; a master that ended instead fails at once."""
        try:
            wait_until(lambda: self.ready() or not self.alive, deadline=deadline, what="ready")
        except AssertionError as error:
            raise AssertionError(f"{error}; {self._account()}") from None
        assert self.alive, f"the master ended with {self.process.returncode}; {self._account()}"
        return self

    def wait_log(self, pattern: str, deadline: float = PATIENCE) -> re.Match[str]:
        """Wait until the log holds a match of this regular expression, and return that."""
        what = f"{pattern!r} in the log"
        try:
            found = wait_until(
                lambda: re.search(pattern, self.log_text()), deadline=deadline, what=what
            )
        except NotInTime as error:
            raise NotInTime(f"{error}; {self._account()}") from None
        assert found is not None
        return found

    def signal(self, number: signal.Signals) -> None:
        """Send the master a signal, as `kill -s` does."""
        self.process.send_signal(number)

    def wait(self, deadline: float = 40.0) -> int:
        """Wait for the master's end and return its exit code (-9 if SIGKILL ended it).

        The deadline is that of a free machine, as in `wait_until`."""
        try:
            wait_until(lambda: self.process.poll() is not None, deadline=deadline, what="its end")
        except NotInTime as error:
            raise NotInTime(f"the master lived on: {error}; {self._account()}") from None
        return self.process.wait()

    def stop(self, deadline: float = 40.0) -> int:
        """SIGTERM, and the exit code once the master has ended."""
        self.signal(signal.SIGTERM)
        return self.wait(deadline)

    def processes(self) -> list[psutil.Process]:
        """Every living process of this tree, orphans and the embedded server included.

        A process belongs if it is in the session of one of our masters, or works in our folder:
        neither changes when its parent dies or when it sets its title.
        """
        born = self._born - 1
        near = map(_process, filter(self._is_near, psutil.pids()))
        return [one for one in near if one and one.create_time() >= born and self._owns(one)]

    def _is_near(self, pid: int) -> bool:
        """Whether ``_owns`` may be true of it: a look that costs a thousandth of one by psutil."""
        if not _LINKS.exists():
            return True
        try:
            in_session = os.getsid(pid) in self._sessions
            return in_session or os.readlink(f"/proc/{pid}/cwd").startswith(str(self.root))  # noqa: PTH115
        except OSError:  # it has ended, or is not ours to ask
            return False

    def _owns(self, process: psutil.Process) -> bool:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:  # dead: its parent's business
                return False
            if os.getsid(process.pid) in self._sessions:
                return True
            return Path(process.cwd()).is_relative_to(self.root)
        except (psutil.Error, OSError):  # it ended while we looked, or is not ours to ask
            return False

    def assert_gone(self, deadline: float = 5.0) -> None:
        """No process of this tree is left, and no pidfile."""
        wait_until(
            lambda: not self.processes(), deadline=deadline, what=f"an end of {self.processes()}"
        )
        left = [str(path) for path in self.runtime.glob("**/*.pid")]
        assert not left, f"pidfiles left: {left}"

    def close(self) -> None:
        """SIGKILL what is left of the tree, and remove its folder."""
        wait_until(self._killed, what=f"the end of {self.root}'s processes")
        if self._process is not None:
            self._process.wait(10)
        shutil.rmtree(self.root, ignore_errors=True)

    def _killed(self) -> bool:
        left = self.processes()
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return not left

    def _account(self) -> str:
        return f"log:\n{self.log_text()[-4000:] or '(empty)'}"


def all_processes() -> Iterator[psutil.Process]:
    """The processes of this machine. ``psutil.process_iter`` keeps its objects: where a pid is used
    again, it shows the dead process. A run of all tests uses each pid several times."""
    yield from filter(None, map(_process, psutil.pids()))


def _process(pid: int) -> psutil.Process | None:
    """None if it has ended by now."""
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


class StartTree:
    """The trees of one test: call it to start one, `close` to end them all."""

    def __init__(self) -> None:
        self._trees: list[ForkqTree] = []

    def __call__(
        self,
        redis: Server | str | None = None,
        *,
        app: str | Path | None = None,
        config: str | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        ready: bool = True,
    ) -> ForkqTree:
        """Start a tree (see ForkqTree) and, unless `ready` is False, wait until it is ready."""
        tree = ForkqTree(redis, app=app, config=config, args=args, env=env)
        self._trees.append(tree)
        tree.start()
        return tree.wait_ready() if ready else tree

    def logs(self) -> list[tuple[str, str]]:
        """A heading and the last of the log, for each tree of this test."""
        return [(f"log of the tree {tree.pid}", tree.log_text()[-8000:]) for tree in self._trees]

    def close(self) -> None:
        """End every tree of this test."""
        while self._trees:
            self._trees.pop().close()


def _app_arguments(app: str | Path | None, cwd: Path) -> list[str]:
    if app is None:
        return []
    source = app.read_text() if isinstance(app, Path) else textwrap.dedent(app)
    (cwd / "jobs.py").write_text(source)
    # A file in the place of the folder: Python keeps no compiled app. It would run that copy where
    # a test has written new code of the same size within the same second.
    (cwd / "__pycache__").touch()
    return ["-r", "jobs"]


def _redis_arguments(redis: Server | str | None) -> list[str]:
    if redis is None:
        return []
    return ["--redis", redis.url if isinstance(redis, Server) else redis]


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it ended while we looked
        return ""
