"""Coroutines, 1,000 at once in one process: rates, what a push costs, and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import psutil

from forkq.values import replace
from tests.bench.compare.cell import Failed, Keys, Stage, has_run
from tests.bench.compare.environments import Found, prepare_all
from tests.bench.compare.peers import APPS, COROUTINES, FORKQ, Peer
from tests.bench.compare.plan import in_turn
from tests.bench.compare.record import Row
from tests.support import bound
from tests.support.postgres import Postgres
from tests.support.server import Server
from tests.support.waiting import wait_until

OURS: Final = f"{FORKQ}-async"
AT_ONCE: Final = 1000
# Jobs of a cell; a peer gets a quarter, since some push 300 jobs a second.
JOBS: Final = {"noop": 40_000, "wait": 10_000, "httpx": 4000, "aiohttp": 10_000, "push": 20_000}
SHARE: Final = 0.25
WINDOW: Final = 6.0  # seconds of a cell, at most
HOLD: Final = "hold"
# Seconds in which all of the jobs have begun that wait; beside a load a peer begins 13 a second.
_ALL_WAIT: Final = 180
KINDS: Final = (*JOBS, HOLD)


def coroutines(server: Server, names: Sequence[str], rounds: int) -> Iterator[Row]:
    """A row for each peer and kind, in turn, forkq beside each of them, round by round. ``names``:
    which peers, among others."""
    with _surroundings() as env:
        peers = [name for name in names if name in COROUTINES]
        found = prepare_all([OURS, *peers])
        there = [name for name in peers if not found[name].missing]
        cells = Cells(server, found, env)
        for number in range(rounds):
            for kind in KINDS:
                for name in in_turn(there, OURS):
                    figures = cells.measure(COROUTINES[name], kind)
                    row = {"round": number, "kind": kind, "peer": name}
                    settings = {"version": found[name].version, "python": sys.version.split()[0]}
                    yield {**row, **settings, **figures, "load": os.getloadavg()[0]}


@contextmanager
def _surroundings() -> Iterator[Mapping[str, str]]:
    """What the jobs need: a server of HTTP, and PostgreSQL where that is installed."""
    command = bound.command([sys.executable, str(APPS / "bench_server.py")])
    http = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    postgres = None
    try:
        assert http.stdout is not None
        env = {"BENCH_HTTP": f"http://127.0.0.1:{int(http.stdout.readline())}/"}
        with suppress(BaseException):  # it is skipped
            postgres = Postgres().start()
            env["BENCH_POSTGRES"] = f"dbname=postgres user=forkq host={postgres.folder}"
        yield env
    finally:
        http.kill()
        http.communicate()
        if postgres is not None:
            postgres.close()


class Cells:
    """Measures one cell after the other. What a queue holds is pushed once for each peer and
    kind; a peer whose jobs are not in Redis pushes them for each cell."""

    def __init__(self, server: Server, found: Mapping[str, Found], env: Mapping[str, str]) -> None:
        self._server = server
        self._found = found
        self._env = env
        self._filled: dict[tuple[str, str, int], Keys] = {}

    def measure(self, peer: Peer, kind: str) -> Row:
        """The figures of that cell, or why there are none."""
        peer = replace(peer, env={**self._env, **peer.env})
        stage = Stage(self._server, peer, self._found[peer.name], AT_ONCE)
        try:
            if kind == "push":
                return self._callers(stage)
            return self._memory(stage) if kind == HOLD else self._rate(stage, kind)
        except Failed as error:
            return {"failed": str(error)}

    def _jobs(self, stage: Stage, kind: str) -> int:
        return int(JOBS[kind] * (1 if stage.peer.name == OURS else SHARE))

    def _rate(self, stage: Stage, kind: str) -> Row:
        jobs = self._jobs(stage, kind)
        keys = self._keys(stage, kind, jobs)
        found = stage.measure(keys, jobs, self._server.url, WINDOW)
        return {"rate": found.rate, "worker_us": found.worker_us}

    def _callers(self, stage: Stage) -> Row:
        """Rate and p99 of pushes by 32 coroutines of one loop."""
        said: Row = json.loads(stage.printed("push", self._jobs(stage, "push")).splitlines()[-1])
        return said

    def _memory(self, stage: Stage) -> Row:
        """MB that 999 waiting jobs add to a process in which one waits."""
        few, many = (self._held(stage, jobs) for jobs in (1, AT_ONCE))
        return {"mb": (many - few) / 1e6, "whole_mb": many / 1e6}

    def _held(self, stage: Stage, jobs: int) -> int:
        with stage.running(self._keys(stage, HOLD, jobs), self._server.url) as (process, counts):
            wait_until(
                lambda: has_run(process, counts, jobs), deadline=_ALL_WAIT, what="jobs that wait"
            )
            return _settled(lambda: _memory_of(process))

    def _keys(self, stage: Stage, kind: str, jobs: int) -> Keys:
        place = stage.peer.name, kind, jobs
        if place not in self._filled or stage.peer.name == "procrastinate":
            self._filled[place] = stage.push(kind, jobs)
        return self._filled[place]


def _settled(look: Callable[[], int]) -> int:
    """The value once it changes by less than 1 % in half a second."""
    before = 0
    while True:
        value = look()
        if abs(value - before) < value / 100:
            return value
        before = value
        time.sleep(0.5)


def _memory_of(process: psutil.Process) -> int:
    """What the program and its children have for themselves alone."""
    return sum(one.memory_full_info().uss for one in [process, *process.children(recursive=True)])
