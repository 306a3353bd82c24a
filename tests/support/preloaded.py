"""A command of forkq in a process that was forked with the libraries loaded, forkq itself not.

Most of a short command's time goes into importing redis-py and the like, and the tests run hundreds
of commands. What forkq imports, and in which order, is the same as for a user.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path

LIBRARIES = ["click", "msgspec", "psutil", "pytest", "redis", "setproctitle", "structlog"]
# They fork, execute or watch processes themselves, or have children that outlive them.
OWN_PROCESS = {"restart", "demo", "doctor"}
READ_AT_START = ("PYTHON", "LC_", "LANG")  # variables that Python reads before it runs anything

_context = multiprocessing.get_context("forkserver")
_started = False


def start() -> None:
    """Starts the process that is forked; it ends with this one."""
    global _started  # noqa: PLW0603 - one for the test process, as multiprocessing has it
    _context.set_forkserver_preload([*LIBRARIES, __name__])
    forkserver.ensure_running()
    _started = True


def can_run(arguments: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a process of its own would make no difference to this command."""
    names = {name for name in {*env, *os.environ} if name.startswith(READ_AT_START)}
    changed = any(env.get(name) != os.environ.get(name) for name in names)
    return _started and not changed and OWN_PROCESS.isdisjoint(arguments)


def run(
    arguments: Sequence[str], cwd: Path, env: Mapping[str, str], deadline: float
) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run`` of ``forkq`` with these arguments."""
    with tempfile.TemporaryDirectory(prefix="forkq-command-") as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = _context.Process(target=_command, args=(arguments, cwd, dict(env), out, err))
        process.start()
        process.join(deadline)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(arguments), deadline, out.read_bytes())
        code = process.exitcode
        process.close()
        return subprocess.CompletedProcess(
            list(arguments), code, out.read_text("utf-8"), err.read_text("utf-8")
        )


def _command(
    arguments: Sequence[str], cwd: Path, env: Mapping[str, str], out: Path, err: Path
) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate((out, err), 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    sys.argv = ["forkq", *arguments]
    importlib.import_module("forkq.__main__").main()
