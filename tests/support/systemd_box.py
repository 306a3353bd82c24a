"""A machine of one's own on which the real systemd is PID 1, booted in half a second.

systemd_box.sh makes it; here it is used from Python. Only for root on Linux: `obstacle` says what
else is missing.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

SCRIPT = Path(__file__).with_name("systemd_box.sh")
PROGRAMS = ("bash", "unshare", "nsenter", "setpriv", "pivot_root", "mount", "ip", "systemctl")
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


class NoBox(Exception):
    """systemd did not come up here; the message is what was said on the way."""


def obstacle() -> str | None:
    """Why no box can be booted on this machine, or None if nothing speaks against it."""
    if sys.platform != "linux":
        return "systemd is Linux's: run the tests on Linux"
    if os.geteuid() != 0:
        return "needs root, to make namespaces and mounts: run the tests as root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or not Path("/lib/systemd/systemd").exists():
        return f"needs {', '.join(missing) or '/lib/systemd/systemd'}: `make test-deps`"
    if "overlay" not in Path("/proc/filesystems").read_text():
        return "needs overlayfs: `modprobe overlay`"
    if not any(os.access(path / "cgroup.procs", os.W_OK) for path in _cgroup2()):
        return "needs a writable cgroup v2 hierarchy: in a container, run it privileged"
    return None


def _cgroup2() -> tuple[Path, ...]:
    return Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")


class Box:
    """One booted machine: `with Box({source: target}) as box: box.run("systemctl", "status")`.

    `binds` are folders of this machine and where they appear inside; everything else that is
    written inside is gone at the end. Raises NoBox when it does not boot.
    """

    def __init__(self, binds: Mapping[Path, str]) -> None:
        self._binds = [f"{source}:{target}" for source, target in binds.items()]
        self._init = 0
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            ["bash", str(SCRIPT), *self._binds],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NoBox(self._process.communicate()[1])
        self._init = int(line)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None
        self._process.communicate()  # closes its input, and waits until the box has vanished

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program inside, as root, with nothing of our environment."""
        enter = ["nsenter", "-t", str(self._init), "-m", "-p", "-u", "-i", "-n", "-C"]
        program = [*enter, *command]
        done = subprocess.run(
            program, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr}")
        return done

    def path(self, inside: str) -> Path:
        """A path inside, as it can be used from outside. It must not cross an absolute symlink."""
        return Path(f"/proc/{self._init}/root{inside}")

    def write(self, inside: str, text: str, mode: int = 0o644) -> None:
        """Make a file inside, with its folder."""
        path = self.path(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)


class Unit:
    """One service inside a box."""

    def __init__(self, box: Box, name: str) -> None:
        self.box = box
        self.name = name
        self._cgroup = ""

    def ask(self, verb: str, *options: str, check: bool = True) -> str:
        """`systemctl VERB NAME`, and what it printed."""
        return self.box.run("systemctl", verb, *options, self.name, check=check).stdout

    def drop_in(self, settings: Sequence[str]) -> None:
        """What `systemctl edit` would leave: these lines of [Service] besides the unit's own."""
        text = "\n".join(["[Service]", *settings, ""])
        self.box.write(f"/etc/systemd/system/{self.name}.d/test.conf", text)
        self.box.run("systemctl", "daemon-reload")

    def show(self, key: str) -> str:
        """One property of the unit, such as ActiveState."""
        return self.ask("show", f"--property={key}", "--value").strip()

    def number(self, key: str) -> int:
        """A property that is a number."""
        return int(self.show(key))

    @functools.cached_property
    def state(self) -> str:
        """Its state directory."""
        return f"/var/lib/{self.show('StateDirectory')}"

    @functools.cached_property
    def runtime(self) -> str:
        """Its runtime directory."""
        return f"/run/{self.show('RuntimeDirectory')}"

    def log(self) -> str:
        """Its journal, as the program wrote it."""
        return self.box.run("journalctl", "--output=cat", "--no-pager", "-u", self.name).stdout

    def processes(self) -> dict[int, str]:
        """Every process of its cgroup, by the pid that it has outside, with its title."""
        # The same for each start; systemd forgets it while the unit is stopped.
        self._cgroup = self._cgroup or self.show("ControlGroup")
        if not self._cgroup:
            return {}
        root = self.box.path("/sys/fs/cgroup")
        root = root / "unified" if (root / "unified").exists() else root
        try:
            pids = (root / self._cgroup.lstrip("/") / "cgroup.procs").read_text().split()
        except OSError:  # the cgroup goes with its last process, also while it is read
            return {}
        return {int(pid): _title(int(pid)) for pid in pids}


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except (FileNotFoundError, ProcessLookupError):  # gone in between
        return ""
