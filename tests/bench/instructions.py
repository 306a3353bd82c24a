"""How many instructions a push takes. A busy machine does not change them, as it changes seconds.

``python -m tests.bench.instructions`` prints them for one ``perform_async``, for one row of
``perform_bulk``, for both of a unique job, and for the same two commands over a socket with nothing
but hiredis. It needs
``valgrind``. Python's own instructions are counted, so they depend on how this Python was built.
"""

from __future__ import annotations

import math
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import hiredis

import forkq
from forkq.store import pool
from forkq.store.scripts import PUSH
from tests.bench.load import PAYLOAD
from tests.support.documents import ROOT
from tests.support.server import Server, client_of

_FEW, _MANY = 200, 1200
_PATHS: Final = (
    "perform_async", "a row of perform_bulk", "... of a unique job", "... a row of these",
    "a socket and hiredis",
)  # fmt: skip
_COMMANDS: Final[tuple[Any, ...]] = (
    ("SADD", "queues", "default"),
    ("LPUSH", "queue:default", PAYLOAD),
)
_VALGRIND: Final = "valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null"


@forkq.job(name="Noop")
def _noop(number: int, word: str) -> None: ...


@forkq.job(name="Unique", unique_for=600)
def _unique(number: int, word: str) -> None: ...


def _push(job: Any, count: int) -> None:
    for number in _fresh(count):
        job.perform_async(number, "word")


def _push_bulk(job: Any, count: int) -> None:
    job.perform_bulk([(number, "word") for number in _fresh(count)])


def _fresh(count: int) -> range:
    """Numbers that no other call of this, and no other process, has: no job is a duplicate."""
    first = time.monotonic_ns()
    return range(first, first + count)


def _floor(port: int) -> Callable[[int], None]:
    """What sends both commands and reads both replies, with no more than that takes."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.settimeout(None)
    reader = hiredis.Reader()

    def push(count: int) -> None:
        for _ in range(count):
            connection.sendall(b"".join(map(hiredis.pack_command, _COMMANDS)))
            replies = 0
            while replies < len(_COMMANDS):
                if reader.gets() is False:
                    reader.feed(connection.recv(65_536))
                else:
                    replies += 1

    return push


def _run_each(port: int) -> None:
    """Runs each path twice, each time in a forked process: valgrind says at the end of a process
    how many instructions it has executed since the first one began."""
    forkq.configure(f"redis://127.0.0.1:{port}")
    ours: Any = pool
    ours._FRESH = math.inf  # valgrind is slow: all connections would be looked at
    works: list[Callable[[int], None]] = [
        partial(push, job) for job in (_noop, _unique) for push in (_push, _push_bulk)
    ]
    with client_of(f"redis://127.0.0.1:{port}") as redis:
        redis.script_load(PUSH.text)
    for work in (*works, _floor(port)):
        for count in (_FEW, _MANY):
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                work(10)  # what only the first push of a process does
                work(count)
                os._exit(0)
            os.waitpid(pid, 0)


def measured(port: int) -> dict[str, int]:
    """The instructions of one job, for each of the paths."""
    command = [*_VALGRIND.split(), sys.executable, "-m", __spec__.name, str(port)]
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    told = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True
    )
    found = re.findall(r"I +refs: +([\d,]+)", told.stderr)
    totals = [int(each.replace(",", "")) for each in found]
    return {
        path: (totals[2 * at + 1] - totals[2 * at]) // (_MANY - _FEW)
        for at, path in enumerate(_PATHS)
    }


if __name__ == "__main__":
    if sys.argv[1:]:
        _run_each(int(sys.argv[1]))
    else:
        server = Server(tcp=True).start()
        for path, count in measured(server.port).items():
            print(f"{path:24}{count:8,} instructions")
        server.close()
