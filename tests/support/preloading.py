"""Imports, and forks ``bin/forkq`` at each request: `python preloading.py DESCRIPTOR MODULE ...`.

preloaded.py starts it, with a socket that listens. Each test process that connects gets a fork of
its own, which forks for it. A forked process leaves this file's loops and runs bin/forkq, or what
``python -c`` was given, as its main program. An ended one stays a zombie until the test asks for
its exit code, as with subprocess.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import setproctitle

CHECKOUT = Path(__file__).resolve().parents[2]
PROGRAM = CHECKOUT / "bin" / "forkq"
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
LENGTH = struct.Struct("!Q")


def main() -> str | None:
    """Imports, and lets each test process have its requests answered. Returns in each forked
    process, with the program for it: None for bin/forkq."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    sys.path[0] = str(CHECKOUT)
    gc.disable()  # as in forkq/__main__.py
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.freeze()  # else each forked process soon looks through all of it, and so copies its pages
    gc.enable()
    setproctitle.getproctitle()  # finds a title's place by the environment, before that changes
    return _answer(accept(listener))


def accept(listener: socket.socket) -> socket.socket:
    """A connection, in a process that was forked for it: this one goes on accepting."""
    handler = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so none is left as a zombie
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, handler)
            return connection
        connection.close()


def _answer(tests: socket.socket) -> str | None:
    """Answers requests until the test process ends. Returns in each forked process, as ``main``."""
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


def _read(tests: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        data += tests.recv(length - len(data))
    return data


def _poll(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _become(request: dict[str, Any], descriptors: list[int]) -> str | None:
    """Makes this forked process what ``bin/forkq`` with these arguments finds, or ``python -c``."""
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
    program: str | None = request["program"]
    sys.argv = ["-c" if program else str(PROGRAM), *request["arguments"]]
    sys.orig_argv[1:] = ["-c", program] if program else sys.argv
    sys.path[:1] = ["", str(CHECKOUT)] if program else [str(PROGRAM.parent)]
    return program


def _run(program: str | None) -> NoReturn:
    """Runs bin/forkq or this program, and ends as Python does."""
    code: object = 0
    try:
        if program is None:
            runpy.run_path(sys.argv[0], run_name="__main__")
        else:
            sys.modules["__main__"] = ModuleType("__main__")
            compiled = compile(program, "<string>", "exec", dont_inherit=True)
            exec(compiled, vars(sys.modules["__main__"]))  # noqa: S102 - as python -c does
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
    except BaseException:  # noqa: BLE001 - as Python does
        sys.excepthook(*sys.exc_info())
        code = 1
    leave(code if isinstance(code, int) else 1)


def leave(code: int) -> NoReturn:
    """The end of a forked process: what Python does then, but it frees nothing. Most of a short
    command's time went into that: each page that holds an object had to be copied first."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the other threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _run(main())
