"""Batches while children, pushers, clocks, masters and Redis are killed: each callback comes, none
early, and none again but where the process that ran it was killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

import forkq
from forkq import api
from forkq.api.features.batches import batch_reports
from forkq.clock.other_shards import OtherShards
from forkq.clock.standing_batches import StandingBatches
from forkq.config.load import load
from forkq.store.connection import RedisConnection
from forkq.wire.keys import Keys
from tests.process.shared import workers
from tests.redis.test_standing_batches import look
from tests.support import bound
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

APP = Path(__file__).with_name("batches_app.py")
# How many batches the slow variant makes.
MANY = int(os.environ.get("FORKQ_TEST_BATCHES", "300"))
SHARDS = """
[[redis.shards]]
name = "mail"
prefix = "mail:"
queues = ["mail"]
"""


STEP = 3  # batches that begin between two faults


class Faults:
    """What is killed while batches run: one of the ``kinds`` at a time, by chance."""

    def __init__(self, tree: ForkqTree, program: subprocess.Popen[bytes], server: Server) -> None:
        self._tree, self._program, self._server = tree, program, server
        self.killed = set[int]()
        self.counts: Counter[str] = Counter()

    def strike_while_pushed(
        self, kinds: Sequence[str], most: int, begun: Callable[[], int], step: int, what: str
    ) -> None:
        """Strikes up to ``most`` times, each time after ``step`` more have ``begun``, and waits for
        the end of all pushes. Then the program that pushes has ended, also after an error."""
        program = self._program
        try:
            while sum(self.counts.values()) < most and program.poll() is None:
                before = begun()
                wait_until(
                    lambda: program.poll() is not None or begun() >= before + step,  # noqa: B023
                    every=0.02,
                    deadline=120,
                    what=f"more {what}",
                )
                self.strike(kinds)
            wait_until(lambda: program.poll() is not None, deadline=3000, what="all pushes")
        finally:
            end(program)

    def strike(self, kinds: Sequence[str]) -> None:
        kind = random.choice(kinds)
        with suppress(psutil.NoSuchProcess, IndexError):
            getattr(self, f"_strike_{kind}")()
            self.counts[kind] += 1

    def _kill(self, found: Sequence[psutil.Process]) -> None:
        one = random.choice(found)
        one.kill()
        self.killed.add(one.pid)

    def _strike_child(self) -> None:
        self._kill(workers(self._tree))

    def _strike_pusher(self) -> None:
        self._kill(psutil.Process(self._program.pid).children())

    def _strike_clock(self) -> None:
        self._kill(self._tree.children("forkq clock"))

    def _strike_master(self) -> None:
        """With all that it has forked, as a power cut does. The tree starts again."""
        master = psutil.Process(self._tree.pid)
        for process in (master, *master.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.kill()
                self.killed.add(process.pid)
        self._tree.process.wait(10)
        self._tree.start()
        self._tree.wait_ready()

    def _strike_redis(self) -> None:
        self._server.kill()
        self._server.start()


def start_pushers(tree: ForkqTree, pushers: int, rounds: int) -> subprocess.Popen[bytes]:
    command = bound.command([sys.executable, str(APP), str(pushers), str(rounds)])
    return subprocess.Popen(command, env=tree.env, cwd=tree.cwd)


def end(program: subprocess.Popen[bytes]) -> None:
    found = psutil.Process(program.pid).children() if program.poll() is None else []
    program.kill()
    program.wait()
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def is_over(redis: Redis) -> bool:
    keys = [Keys(), Keys("mail:")]
    names = [name for one in keys for name in (one.schedule, one.retry)]
    for one in keys:
        for queue in ("default", "mail"):
            names += (one.queue(queue), one.inflight(queue), one.suspects(queue))
    return not redis.exists(*names) and not any(redis.xlen(one.notes) for one in keys)


def runs_of(ledger: Redis, name: str) -> dict[str, list[tuple[int, str]]]:
    """By which processes each callback was run, and when it had come to its queue; without those
    that were never run."""
    runs = {}
    for event in ("death", "finish", "success"):
        found: Any = ledger.lrange(f"called:{name}:{event}", 0, -1)
        if found:
            each = (entry.decode().split() for entry in found)
            runs[event] = [(int(pid), came) for pid, came in each]
    return runs


def assert_kept(
    report: api.BatchReport, ledger: Redis, killed: set[int], *, may_repeat: bool = False
) -> None:
    """A batch whose block has not come to its end stays open, or is broken; each other one is
    finished. Each callback was pushed once, and ran again only where its process was killed, or
    ``may_repeat``, since Redis was."""
    assert report.waiting == 0, report
    expected = {"death"} if report.dead else set()
    if report.state not in ("open", "broken"):
        expected |= {"finish"} | ({"success"} if report.done == report.total else set())
    runs = runs_of(ledger, report.name)
    assert runs.keys() == expected, report
    for found in runs.values():
        assert len({came for _, came in found}) == 1, f"a callback was pushed twice: {report}"
        again = [pid for pid, _ in found[:-1] if pid not in killed]
        assert may_repeat or again == [], "no process that ran it before was killed"


def run_batches(
    running: ForkqTree,
    servers: tuple[Server, Server],
    pushers: int,
    rounds: int,
    kinds: Sequence[str],
    most: int,
) -> tuple[list[api.BatchReport], Faults]:
    """Pushes so many batches while processes are killed, until nothing is left to do."""
    server, ledger = servers
    redis = server.client()
    program = start_pushers(running, pushers, rounds)
    faults, made = Faults(running, program, server), ledger.client()
    faults.strike_while_pushed(kinds, most, lambda: made.scard("made"), STEP, "batches")
    wait_until(lambda: is_over(redis), deadline=600, what="the end of all jobs")
    if "mail" in running.env.get("FORKQ_TEST_QUEUES", ""):
        look_for_lost_places(running, server)
    return [*reports_of(server, ""), *reports_of(server, "mail:")], faults


def look_for_lost_places(running: ForkqTree, server: Server) -> None:
    """What the leaders do within half an hour: a process that was killed behind its places on
    another shard has left them without members."""
    config, redis = load(None, {}, {"FORKQ_REDIS": server.url}, running.cwd), server.client()
    for shard in config.shards:
        with (
            closing(RedisConnection(server.url)) as connection,
            closing(OtherShards(config.of_shard(shard.name))) as others,
        ):
            connection.connect()
            leader = StandingBatches(Keys(shard.prefix), connection, others, RecordedLog())
            look(leader, 3)
        # What this leader has noted for the other shard would put the look of that one off.
        wait_until(lambda: is_over(redis), deadline=60, what="the notes and the callbacks")


def reports_of(server: Server, prefix: str) -> Iterator[api.BatchReport]:
    """All batches of the shard with that prefix."""
    client = forkq.Client(server.url, prefix=prefix)
    here, before = client.servers.default, Keys(prefix).batch("")
    [names] = here.ask(("ZRANGE", here.keys.batches, 0, -1))
    bids = [name.decode().removeprefix(before) for name in names]
    for first in range(0, len(bids), 500):
        yield from batch_reports(bids[first : first + 500], here)
    client.close()


def test_each_callback_comes_once_however_many_processes_are_killed(
    tree: StartTree, redis_server: Server, own_server: Server
) -> None:
    environ = {"FORKQ_TEST_LEDGER": own_server.url, "FORKQ_REDIS": redis_server.url}
    args = ["-w", "2", "-c", "4", "--log-level", "error"]
    running = tree(app=APP, args=args, env=environ)
    reports, faults = run_batches(
        running, (redis_server, own_server), 3, 12, ("child", "child", "pusher", "clock"), 10
    )
    ledger = own_server.client()
    assert len(reports) >= 30
    assert faults.killed
    for report in reports:
        assert_kept(report, ledger, faults.killed)
    assert ledger.lrange("early", 0, -1) == []
    assert {"finished", "succeeded"} <= {report.state for report in reports}


@pytest.mark.slow
def test_each_callback_comes_once_over_two_shards_whatever_is_killed(
    tree: StartTree, own_server: Server
) -> None:
    """FORKQ_TEST_BATCHES says how many batches: pushers, children, masters, clocks and Redis, which
    has an append-only file, are killed while they run."""
    with closing(Server(aof=True, extra=("--appendfsync", "always")).start()) as server:
        environ = {"FORKQ_TEST_LEDGER": own_server.url, "FORKQ_REDIS": server.url}
        environ |= {"FORKQ_TEST_QUEUES": "default mail", "FORKQ_TEST_LONGEST": "0.001"}
        args = ["-w", "2", "-c", "4", "-q", "default", "-q", "mail", "--log-level", "error"]
        running = tree(app=APP, args=args, env=environ, config=SHARDS)
        kinds = ("child", "pusher", "clock", "clock", "master", "redis")
        most = max(10, MANY // 30)
        reports, faults = run_batches(running, (server, own_server), 3, MANY // 3, kinds, most)
        ledger = own_server.client()
        states = Counter(report.state for report in reports)
        print(f"{len(reports):,} batches: {dict(states)}; killed: {dict(faults.counts)}")  # noqa: T201 - for who runs it
        assert [report for report in reports if report.waiting] == []
        for report in reports:
            assert_kept(report, ledger, faults.killed, may_repeat=True)
        assert ledger.lrange("early", 0, -1) == []
        assert {"finished", "succeeded"} <= states.keys()
