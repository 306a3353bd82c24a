"""`forkq shards move` beside workers and pushers of both shards, killed again and again: each job
runs once."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial

import pytest
from redis import Redis

from forkq.config.shards import Shard
from forkq.sharded_client import ShardedClient
from forkq.wire.keys import Keys
from tests.process.shared import APP, Journal, leased, waiting
from tests.support import bound
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

KEYS = Keys()
JOB = {"class": "Quick", "args": [0.0], "queue": "mail"}
BACKLOG, KILLS = 6_000, 3


class TwoServers:
    """``old`` had the queue mail, ``new`` has it now. Some programs still push to the old one."""

    def __init__(self, stack: ExitStack) -> None:
        self.old, self.new = (Server(tcp=True).start() for _ in range(2))
        for server in (self.old, self.new):
            stack.callback(server.close)
        self.default = Shard("default", self.old.url)
        self.mail = Shard("mail", self.new.url, ("mail",))

    @property
    def config(self) -> str:
        return (
            f'[redis]\nurl = "{self.old.url}"\n[[redis.shards]]\nname = "mail"\n'
            f'url = "{self.new.url}"\nqueues = ["mail"]\n'
            '[capsules.default]\nconcurrency = 2\nqueues = ["default", "mail"]'
        )

    def push(self, *shards: Shard, count: int, at: float | None = None) -> list[str]:
        """Pushes as a program with these shards in its configuration does."""
        with closing(ShardedClient(shards, "default", self.old.url)) as client:
            return client.push_bulk({**JOB, "args": [[0.0]] * count, "at": at})


@pytest.fixture
def servers() -> Iterator[TwoServers]:
    with ExitStack() as stack:
        yield TwoServers(stack)


def move(forkq: ForkqTree) -> subprocess.Popen[str]:
    return subprocess.Popen(
        bound.command([*forkq.program, "shards", "move", "mail", "mail", "--json"]),
        cwd=forkq.cwd, env=forkq.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def arrived(redis: Redis) -> int:
    """How many pages the new shard has."""
    return sum(int(page.split()[0]) for page in redis.hvals(KEYS.arrived))


def kill_after_a_page(forkq: ForkqTree, new: Redis) -> int:
    """Begins a move, and kills it once a page more has arrived. Returns its exit code."""
    pages, command = arrived(new), move(forkq)
    wait_until(lambda: arrived(new) > pages or command.poll() is not None, what="a page", every=0)
    command.kill()
    command.communicate()
    return command.returncode


def nothing_left(redis: Redis) -> bool:
    return not leased(redis, "mail") and not waiting(redis, "mail")


def test_a_queue_moves_beside_its_workers_though_the_move_is_killed(
    servers: TwoServers, tree: StartTree, journal: Journal
) -> None:
    jids = servers.push(servers.default, count=BACKLOG)
    jids += servers.push(servers.default, count=300, at=4_000_000_000)
    forkq = tree(app=APP, config=servers.config, env=journal.env)
    with servers.old.client() as old, servers.new.client() as new:
        codes = []
        for _ in range(KILLS):
            jids += servers.push(servers.default, count=100)  # by a program with the old table
            jids += servers.push(servers.default, servers.mail, count=100)
            codes.append(kill_after_a_page(forkq, new))
        assert -9 in codes
        last = move(forkq)
        out, err = last.communicate(timeout=60)
        assert last.returncode == 0, err
        assert json.loads(out)["running"] == {"default": 0}
        assert old.zcard(KEYS.schedule) == 0
        assert old.smembers(KEYS.queues) <= {b"default"}
        assert new.zcard(KEYS.schedule) == 300
        for member in new.zrange(KEYS.schedule, 0, -1):
            new.zadd(KEYS.schedule, {member: 1})
        journal.wait("end", jids, deadline=60)
        runs = journal.runs()
        assert {jid for jid, begun in runs.items() if len(begun) > 1} == set()
        assert set(runs) == set(jids)
        for redis in (old, new):
            wait_until(partial(nothing_left, redis), what="acknowledgements")
    assert forkq.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_move_that_waits_for_jobs(
    servers: TwoServers, tree: StartTree, journal: Journal, number: signal.Signals
) -> None:
    """A job still runs on the old shard. Without the wait the command says so."""
    forkq = tree(app=APP, config=servers.config, env=journal.env)
    with closing(ShardedClient((servers.default,), "default", servers.old.url)) as client:
        jid = client.push({**JOB, "class": "Nap", "args": [60]})
        assert jid is not None
    journal.wait("begin", [jid])
    late = servers.push(servers.default, count=1, at=4_000_000_000)
    found = forkq.run("shards", "move", "mail", "mail", "--no-wait")
    assert found.returncode == 1
    assert found.stdout == (
        "mail moved from default to mail: 1 scheduled\n"
        "1 job still runs on default: run this again later\n"
    )
    command = move(forkq)
    with servers.old.client() as old:
        wait_until(
            lambda: any(c["cmd"] == "llen" for c in old.client_list()),
            what="the command that waits",
        )
    command.send_signal(number)
    out, err = command.communicate(timeout=60)
    assert command.returncode == 130
    assert "interrupted: no job is lost, but up to a page of jobs" in err
    assert "run the same command again, and the move goes on" in err
    assert json.loads(out)["running"] == {"default": 1}
    assert late
