"""No process of a tree listens on an address, the embedded server's least of all."""

from __future__ import annotations

import stat

import psutil

from tests.support.tree import StartTree, all_processes
from tests.support.waiting import wait_until


def test_the_embedded_server_has_a_private_socket_and_no_port(tree: StartTree) -> None:
    forkq = tree("embedded", app="")
    wait_until(lambda: forkq.status().get("ready"), what="the tree to be ready")
    processes = [p for p in all_processes() if _is_of(p, forkq.pid)]
    assert len(processes) >= 4, "master, child, clock and server"
    listening = [c for p in processes for c in p.net_connections("inet")]
    assert listening == []
    [socket] = forkq.state.rglob("redis.sock")
    assert stat.S_IMODE(socket.lstat().st_mode) == 0o700
    assert stat.S_IMODE(socket.parent.lstat().st_mode) == 0o700
    for file in (forkq.runtime / "forkq").iterdir():
        assert not stat.S_IMODE(file.lstat().st_mode) & 0o077, file
    assert stat.S_IMODE((forkq.runtime / "forkq").lstat().st_mode) == 0o700
    assert forkq.stop() == 0


def _is_of(process: psutil.Process, master: int) -> bool:
    """Whether it is the master, or was started by it."""
    try:
        return master in (process.pid, *(parent.pid for parent in process.parents()))
    except psutil.NoSuchProcess:
        return False
