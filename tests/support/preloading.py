"""Imports, and forks ``bin/forkq`` at each request: `python preloading.py DESCRIPTOR MODULE ...`.

preloaded.py starts it. A forked process leaves this file's loop and runs bin/forkq as its main
program, so that it also ends as any Python does. An ended one stays a zombie until the test asks
for its exit code, as with subprocess.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import json
import os
import runpy
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import setproctitle

PRESENT = set(sys.modules)  # before anything is loaded for the sake of what is forked
CHECKOUT = Path(__file__).resolve().parents[2]
PROGRAM = CHECKOUT / "bin" / "forkq"
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
LENGTH = struct.Struct("!Q")
loaded: dict[str, ModuleType] = {}


def main() -> None:
    """Answers requests until the test process ends. Returns in each forked process, too."""
    tests = socket.socket(fileno=int(sys.argv[1]))
    tests.set_inheritable(False)
    sys.path[0] = str(CHECKOUT)
    atexit.register(_keep_modules)  # first registered, last called
    for module in sys.argv[2:]:
        importlib.import_module(module)
    loaded.update({name: sys.modules[name] for name in set(sys.modules) - PRESENT - {"warnings"}})
    setproctitle.getproctitle()  # finds a title's place by the environment, before that changes
    while True:
        head, descriptors, _, _ = socket.recv_fds(tests, LENGTH.size, 2)
        if not head:
            os._exit(0)
        request = json.loads(_read(tests, LENGTH.unpack(head)[0]))
        if "poll" in request:
            answer = _poll(request["poll"])
        else:
            answer = os.fork()
            if answer == 0:
                tests.close()
                return _become(request, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
        tests.sendall(json.dumps(answer).encode())


def _keep_modules() -> None:
    """Hides what was loaded before the fork from Python's end, which would free each object of it:
    most of a short command's time goes into that, as all these pages must first be copied."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(loaded))
    for name in loaded:
        sys.modules.pop(name, None)


def _read(tests: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        data += tests.recv(length - len(data))
    return data


def _poll(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Makes this forked process what ``bin/forkq`` with these arguments finds."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if request["new_session"]:
        os.setsid()
    for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), *descriptors)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    sys.argv = [str(PROGRAM), *request["arguments"]]
    sys.orig_argv[1:] = sys.argv
    sys.path[0] = str(PROGRAM.parent)


if __name__ == "__main__":
    main()
    runpy.run_path(sys.argv[0], run_name="__main__")
