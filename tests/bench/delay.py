"""A network between a program and Redis: delay_proxy.c, compiled when it is needed."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path

from tests.support import bound
from tests.support.server import Server
from tests.support.waiting import wait_until

SOURCE = Path(__file__).with_name("delay_proxy.c")
REMEDY = "gcc is not installed: apt-get install gcc"


@contextmanager
def away(server: Server, round_trip: float) -> Iterator[Server]:
    """The server as it looks from a machine with that round trip, in seconds more. 0: as it is."""
    if not round_trip:
        yield server
        return
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "delay_proxy"
        subprocess.run(["gcc", "-O2", "-o", program, SOURCE], check=True)
        front = copy(server)
        front.port = _free_port()
        ports = (str(front.port), str(server.port), str(round(round_trip / 2 * 1e6)))
        process = subprocess.Popen(bound.command([str(program), *ports]))
        try:
            wait_until(lambda: _listens(front.port), what="the proxy")
            yield front
        finally:
            process.terminate()
            process.wait(30)


def has_compiler() -> bool:
    """Whether ``away`` can be used."""
    return shutil.which("gcc") is not None


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port: int = door.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
