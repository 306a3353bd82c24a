"""What each of several Redis has to do for all jobs together: its CPU time is the bound.

Wall time shows nothing where all servers and children share a few cores. So the figure is the CPU
time of the busiest server for each job of all: one server can be busy for one second a second.
All jobs are pushed, one by one, before any runs, and queue by queue: a server with time to spare
reads fewer commands and hands out fewer jobs at once, and then each costs more. On few cores three
servers at once always have time to spare. What a server spends while it has nothing to do (about a
thousandth of a core) is left out.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import psutil
import pytest

from forkq.config.shards import Shard
from forkq.sharded_client import ShardedClient
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until

pytestmark = pytest.mark.bench

JOBS = 90_000
PUSHERS = 12
QUEUES = ("default", "mail", "bulk")
APP = """
import os, struct, forkq

file = os.open(os.environ["RAN"], os.O_WRONLY | os.O_APPEND)

@forkq.job(name="Note")
def note(number):
    os.write(file, struct.pack("I", number))
"""


class Servers:
    """Redis servers with an append-only file, and the CPU time of each, over all its lives."""

    def __init__(self, count: int) -> None:
        self.all = [Server(tcp=True, aof=True).start() for _ in range(count)]
        self._before = {id(one): 0.0 for one in self.all}

    def cpu(self) -> list[float]:
        return [self._before[id(one)] + _cpu(one) for one in self.all]

    def kill_and_start(self, one: Server) -> None:
        self._before[id(one)] += _cpu(one)
        one.kill()
        one.start()

    def shards(self) -> tuple[Shard, ...]:
        names = zip(QUEUES, self.all, strict=False)
        return tuple(Shard(name, one.url, (name,)) for name, one in names)


def _cpu(server: Server) -> float:
    times = psutil.Process(server.pid).cpu_times()
    return times.user + times.system


@contextmanager
def _servers(count: int) -> Iterator[Servers]:
    servers = Servers(count)
    try:
        yield servers
    finally:
        for one in servers.all:
            one.close()


@contextmanager
def _tree(shards: Sequence[Shard], ran: Path) -> Iterator[None]:
    rows = [
        f'[[redis.shards]]\nname = "{one.name}"\nurl = "{one.url}"\nqueues = ["{one.name}"]'
        for one in shards[1:]
    ]
    capsules = [f'[capsules.{name}]\nqueues = ["{name}"]\nconcurrency = 10' for name in QUEUES]
    head = f'[redis]\nurl = "{shards[0].url}"'
    config = "\n".join([head, *rows, *capsules])
    start_tree = StartTree()
    try:
        args = ("--log-level", "error")
        start_tree(app=APP, args=args, config=config, env={"RAN": str(ran)})
        yield
    finally:
        start_tree.close()


def _push(shards: Sequence[Shard], queue: str, numbers: Sequence[int]) -> None:
    with closing(ShardedClient(shards, "default", shards[0].url)) as client:
        for number in numbers:
            client.push({"class": "Note", "args": [number], "queue": queue})


def _push_from_processes(servers: Servers) -> list[float]:
    """A single client waits for each reply, and a server that waits for one client only pays a
    wake-up for each push. Returns the CPU time of each server, while it got its jobs."""
    shards, spent = servers.shards(), [0.0] * len(servers.all)
    with ProcessPoolExecutor(PUSHERS, mp_context=get_context("fork")) as pool:
        for at, queue in enumerate(QUEUES):
            mine = range(at, JOBS, len(QUEUES))
            parts = (mine[first::PUSHERS] for first in range(PUSHERS))
            here, before = at % len(spent), servers.cpu()
            list(pool.map(partial(_push, shards, queue), parts))
            spent[here] += servers.cpu()[here] - before[here]
    return spent


def _differences(before: list[float], after: list[float]) -> list[float]:
    return [late - early for early, late in zip(before, after, strict=True)]


def _each(seconds: list[float]) -> list[float]:
    """Microseconds for each job of all, by server."""
    return [round(1e6 * each / JOBS, 1) for each in seconds]


def _numbers(ran: Path) -> set[int]:
    return {number for (number,) in struct.iter_unpack("I", ran.read_bytes())}


@pytest.mark.parametrize(
    ("count", "kill"), [(1, False), (3, False), (3, True)], ids=["one", "three", "one-killed"]
)
def test_cpu_time_of_the_busiest_server(tmp_path: Path, count: int, kill: bool) -> None:
    """Prints microseconds of CPU of each server per job of all. With ``kill`` one server of three
    is killed when a quarter of them has run, and started again on its append-only file."""
    ran = tmp_path / "ran"
    ran.touch()
    with _servers(count) as servers:
        pushed = _push_from_processes(servers)
        with _tree(servers.shards(), ran):
            wait_until(lambda: ran.stat().st_size > 0, every=0.01, what="a job")
            before = servers.cpu()
            if kill:
                wait_until(lambda: ran.stat().st_size > JOBS, every=0.01, what="a quarter of them")
                servers.kill_and_start(servers.all[1])
            wait_until(lambda: len(_numbers(ran)) == JOBS, deadline=120, what="every job to run")
            performed = _differences(before, servers.cpu())
    runs = len(ran.read_bytes()) // 4
    figures = {
        "servers": count,
        "killed": kill,
        "push": _each(pushed),
        "run": _each(performed),
        "busiest": max(_each(list(map(sum, zip(pushed, performed, strict=True))))),
        "runs": runs,
    }
    print(f"\n{json.dumps(figures)}", end="", flush=True)
    assert runs >= JOBS
