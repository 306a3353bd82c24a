"""Run a program that cannot outlive the test process: `python bound.py PARENT-PID PROGRAM ...`, or
the like of it by Debian's tools, which start in a seventh of Python's time.

The kernel sends it SIGKILL when the thread that started it ends (Linux; elsewhere the fixtures'
own clean-up must do). Between fork and exec there would be no room for this: `preexec_fn` warns
under threads, and pytest-xdist has threads. The pid stays that of the program.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
# What nohup and a shell's "&" have the tests ignore, and every program that they start.
IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


def main() -> None:
    """Bind this process to its parent, then become the program."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it died before the call
            sys.exit(1)
    os.execvp(program[0], program)


def command(program: list[str]) -> list[str]:
    """The argument list that runs `program` bound to this very process."""
    here = [sys.executable, "-I", "-S", __file__, str(os.getpid())]
    return [*(_tools() or here), *program]


@functools.cache
def _tools() -> list[str] | None:
    """What does as `main`; None where they cannot, as busybox. They do not look whether the parent
    has died in the two milliseconds before the call. A shell could, but it changes PWD."""
    env, setpriv = shutil.which("env"), shutil.which("setpriv")
    if not (env and setpriv):
        return None
    default = "--default-signal=" + ",".join(number.name[3:] for number in IGNORED)
    tools = [env, default, setpriv, "--pdeathsig", "KILL", "--"]
    works = subprocess.run([*tools, "true"], capture_output=True, check=False)
    return tools if works.returncode == 0 else None


if __name__ == "__main__":
    main()
