"""A host of a run: a forkq tree that is started again whenever it ends, as a service manager does
it, and a network of its own to Redis."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.redis.proxy import Proxy
from tests.support.tree import ForkqTree
from tests.support.waiting import NotInTime, wait_until, within

APP = Path(__file__).with_name("jobs.py")
UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--uts", "--kill-child"]
# What the first process of a host does. The exit codes show whether a master ended by itself.
SERVICE = """
[ -z "$FORKQ_TEST_CHAOS_NAMESPACE" ] || hostname "$FORKQ_TEST_CHAOS_HOST"
while [ ! -e stop ]; do
    "$@" & echo $! > master; wait $!; echo $? >> exits; sleep 0.1
done
"""
STOP_TIMEOUT = 2.0
CONFIG = """
[forkq]
app = "jobs.py"
workers = 2
timeout = {timeout}
preload = {preload}
max_memory = "90MB"
hard_max_memory = "200MB"
silent_after = 2

[redis]
url = "{url}"
connect_timeout = 1
timeout = 2

[log]
level = "warning"
format = "json"

[capsules.default]
queues = [["default", 3], ["limited", 1], ["damaged", 1]]
concurrency = 5

[limits]
limited = 3
"""


def namespace_obstacle() -> str:
    """Why hosts cannot have pid namespaces of their own here; "" if they can."""
    if shutil.which("unshare") is None:
        return "no unshare(1) on this machine: `make test-deps`"
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    return f"{tried.stderr.strip()}: run it as root" if tried.returncode else ""


class Host(ForkqTree):
    """`causes` are the processes that the harness has ended on purpose: pid as the host sees it ->
    why. `ended` counts the masters that it has ended, by the exit code that must come of it."""

    def __init__(
        self,
        name: str,
        proxy: Proxy,
        folder: Path,
        *,
        namespace: bool,
        preload: bool,
        env: Mapping[str, str],
    ) -> None:
        self.name = name
        self.proxy = proxy
        self.wrapper = [*(UNSHARE if namespace else []), "sh", "-c", SERVICE, "sh"]
        more = {"FORKQ_TEST_CHAOS_HOST": name, "FORKQ_TEST_CHAOS_FOLDER": str(folder), **env}
        more["FORKQ_TEST_CHAOS_NAMESPACE"] = "1" if namespace else ""
        config = CONFIG.format(url=proxy.url, timeout=STOP_TIMEOUT, preload=str(preload).lower())
        super().__init__(config=config, env=more)
        shutil.copy(APP, self.cwd / "jobs.py")
        self.causes: dict[int, str] = {}
        self.ended: dict[int, int] = {0: 0, 137: 0}
        self.stops: list[float] = []
        self.stopping = 0  # the pid of the master that has got TERM

    @property
    def pid(self) -> int:
        """The master's, as seen from here; 0 while there is none."""
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            inside = int((self.cwd / "master").read_text())
            for process in psutil.Process(self.process.pid).children(recursive=True):
                if pid_inside(process.pid) == inside:
                    return process.pid
        return 0

    def status(self) -> dict[str, Any]:
        """Of this very master, in whose eyes its pid is another one."""
        inside = pid_inside(self.pid)
        for path in self.runtime.glob("**/*.status.json"):
            with contextlib.suppress(OSError, ValueError):
                found: dict[str, Any] = json.loads(path.read_bytes())
                if inside and found.get("pid") == inside:
                    return found
        return {}

    def master(self) -> list[psutil.Process]:
        """The master, if it is ready to read signals."""
        with contextlib.suppress(psutil.Error):
            if self.ready():
                return [psutil.Process(self.pid)]
        return []

    def everyone(self) -> list[psutil.Process]:
        """All processes of forkq, masters first; not the service."""
        with contextlib.suppress(psutil.Error):
            found = psutil.Process(self.process.pid).children(recursive=True)
            return [
                each for each in found if "forkq" in title(each) and SERVICE not in each.cmdline()
            ]
        return []

    def kill(self, process: psutil.Process, cause: str) -> None:
        """SIGKILL, and a note of it: before the deed, since its consequences follow at once."""
        self.causes[pid_inside(process.pid)] = cause
        if process.pid == self.pid:
            self.ended[137] += 1
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()

    def kill_all(self, cause: str) -> None:
        """All of its processes at the same time: none is left to rescue or to clean up."""
        everyone = self.everyone()
        for each in everyone:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.suspend()
        for each in everyone:
            self.kill(each, cause)

    def lose(self) -> None:
        """The end of the host itself; `start` then makes a new one of the same name."""
        for each in self.everyone():
            self.causes[pid_inside(each.pid)] = "lose host"
        self.process.kill()
        self.process.wait(10)
        wait_until(self._killed, what="the end of the host")

    def shut_down(self) -> str:
        """The last stop of a run. Returns what was wrong with it, or ""."""
        try:
            wait_until(self.master, deadline=60, what=f"{self.name} to be ready")
        except NotInTime as error:
            return str(error)
        (self.cwd / "stop").touch()
        began = time.monotonic()
        self.ended[0] += 1
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(within(STOP_TIMEOUT + 5))
        except subprocess.TimeoutExpired:
            return f"{self.name}: still there {time.monotonic() - began:.1f} s after TERM"
        self.stops.append(time.monotonic() - began)
        try:
            self.assert_gone()
        except AssertionError as error:
            return f"{self.name}: {error}"
        return ""

    def signal(self, number: signal.Signals) -> None:
        """To the master, not to the service."""
        for master in self.master():
            master.send_signal(number)

    def exits(self) -> list[int]:
        """The exit codes of its masters, in order."""
        path = self.cwd / "exits"
        return [int(line) for line in path.read_text().split()] if path.exists() else []


def pid_inside(pid: int) -> int:
    """The pid of a process as its own namespace has it; 0 if it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0


def title(process: psutil.Process) -> str:
    """What ps shows of a process; "" once it has ended."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline()).strip()
    return ""
