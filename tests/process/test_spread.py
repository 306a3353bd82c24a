"""A hot queue over three servers: each part has children of its own, one that dies takes no job
with it and keeps nobody from pushing, and a job that Ruby pushes into one part is run."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial

import pytest
from redis import Redis

from forkq import default_client
from forkq.config.cluster_shards import prefix_of
from forkq.config.load import load
from forkq.errors import ServerUnavailable
from forkq.sharded_client import ShardedClient
from forkq.wire.keys import Keys
from forkq.wire.spread import part_of
from tests.process.shared import APP, Journal, leased, waiting
from tests.support import bound, ruby
from tests.support.cluster import Cluster, slot_of
from tests.support.server import Server
from tests.support.spread import JOB, PARTS, QUEUE, config_of
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

CAPSULE = f'[capsules.default]\nconcurrency = 2\nqueues = ["{QUEUE}"]\n'
# It pushes one job to the server of REDIS_URL, as Ruby's Sidekiq does.
_PUSH = """
require "sidekiq"
puts Sidekiq::Client.push("class" => "Quick", "args" => [0.0], "queue" => "imports")
"""


@pytest.fixture
def servers() -> Iterator[dict[str, Server]]:
    with ExitStack() as stack:
        found = {name: Server(tcp=True, aof=True).start() for name in ("default", "b", "c")}
        for server in found.values():
            stack.callback(server.close)
        yield found


@pytest.fixture
def forkq(servers: dict[str, Server], tree: StartTree, journal: Journal) -> ForkqTree:
    return tree(app=APP, config=config_of(servers, CAPSULE), env=journal.env)


@contextmanager
def client_of(forkq: ForkqTree) -> Iterator[ShardedClient]:
    """This process with the configuration of the tree."""
    before = default_client.swap(None)
    client = default_client.use(load(None, {}, {}, forkq.cwd))
    try:
        assert isinstance(client, ShardedClient)
        yield client
    finally:
        default_client.swap(before)
        client.close()


class Ledger:
    """Threads that push until the end of the block. ``pushed``: the jobs that a server has taken,
    as the pushes told; ``failed``: the errors of the others, which may be there all the same."""

    def __init__(self, client: ShardedClient, count: int) -> None:
        self.pushed: list[str] = []
        self.failed: list[ServerUnavailable] = []
        self._client = client
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]

    def __enter__(self) -> Ledger:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.002):
            try:
                jid = self._client.push({**JOB, "args": [0.001]})
            except ServerUnavailable as error:
                self.failed.append(error)
            else:
                assert jid is not None
                self.pushed.append(jid)

    def wait_for(self, more: int) -> None:
        target = len(self.pushed) + more
        wait_until(lambda: len(self.pushed) >= target, what=f"{more} pushes")


def _is_empty(redis: Redis) -> bool:
    return not (waiting(redis, QUEUE) or leased(redis, QUEUE))


def test_a_part_that_is_killed_under_load_loses_no_job(
    servers: dict[str, Server], forkq: ForkqTree, journal: Journal
) -> None:
    """While it is away, all jobs go to the other parts, and run. A push fails only if the server
    died after it had got the job and before it had told so."""
    with client_of(forkq) as client, Ledger(client, 3) as ledger:
        ledger.wait_for(200)
        servers["b"].kill()
        ledger.wait_for(100)
        wait_until(lambda: client._down, what="a push that has found the part down")
        before = len(ledger.pushed)
        ledger.wait_for(200)
        while_away = ledger.pushed[before : before + 200]
        journal.wait("end", while_away)
        assert any(part_of(PARTS, jid) == "b" for jid in while_away)
        servers["b"].start()
        wait_until(lambda: not client._down, what="a push that has found the part up again")
        ledger.wait_for(200)
    assert all(error.unknown for error in ledger.failed), ledger.failed
    journal.wait("end", ledger.pushed)
    for name, server in servers.items():
        with server.client() as redis:
            wait_until(partial(_is_empty, redis), what=f"the end of all jobs on {name}")
    assert forkq.stop() == 0
    forkq.assert_gone()


def test_a_node_of_a_cluster_that_is_killed_takes_no_job_with_it(
    tree: StartTree, journal: Journal
) -> None:
    """The other parts take the jobs until its replica has its slot; then that gets its part."""
    with closing(Cluster(3, replicas=1)) as cluster:
        cluster.start()
        nodes = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)
        keys = Keys(prefix_of("{forkq}:", 1))
        url = f'[redis]\nurl = "cluster://{nodes}"\nprefix = "{{forkq}}:"\ncluster_shards = 3\n'
        config = f"{url}{CAPSULE}[spread]\n{QUEUE} = 3"
        forkq = tree(app=APP, config=config, env=journal.env)
        slot = slot_of(cluster.nodes[0], keys.queues)
        owner = cluster.owner(slot)
        with client_of(forkq) as client:
            with Ledger(client, 2) as before:
                before.wait_for(100)
            marker = owner.client()
            marker.set(f"{keys.prefix}marker", "1")
            assert marker.wait(1, 5000) == 1  # its replica has all that came before
            owner.close_clients()
            owner.kill()
            with Ledger(client, 2) as ledger:
                ledger.wait_for(100)
                wait_until(lambda: cluster.owner(slot) is not owner, deadline=40, what="a failover")
                wait_until(lambda: not client._down, deadline=40, what="pushes to the new owner")
                ledger.wait_for(100)
        assert any(part_of(["default", "s1", "s2"], jid) == "s1" for jid in ledger.pushed[-100:])
        journal.wait("end", [*before.pushed, *ledger.pushed], deadline=60)
        assert forkq.stop() == 0


def test_each_part_has_children_of_its_own(forkq: ForkqTree, journal: Journal) -> None:
    """They run the jobs of their part, and each part has its share."""
    names = sorted(child["name"] for child in forkq.status()["children"])
    assert names == [
        *("clock", "clock@b", "clock@c"),
        *("default.0", "default@b.0", "default@c.0"),
    ]
    with client_of(forkq) as client:
        jids = client.push_bulk({**JOB, "args": [[0.0]] * 600})
        jids += [str(client.push({**JOB, "args": [0.0], "at": 0.1})) for _ in range(30)]
    journal.wait("end", jids)
    pids = {child["pid"]: child["name"] for child in forkq.status()["children"]}
    ran = {line.jid: pids[line.pid] for line in journal.lines("begin")}
    of_part = {"default": "default.0", "b": "default@b.0", "c": "default@c.0"}
    assert ran == {jid: of_part[part_of(PARTS, jid)] for jid in jids}
    assert min(Counter(ran.values()).values()) > 150


@pytest.mark.skipif(ruby.obstacle() is not None, reason=str(ruby.obstacle()))
def test_a_push_in_ruby_lands_in_one_part_and_is_run(
    servers: dict[str, Server], forkq: ForkqTree, journal: Journal
) -> None:
    """Ruby knows one of the servers, and nothing of the others."""
    pushed = subprocess.run(
        bound.command(["ruby", "-e", _PUSH]),
        env={**forkq.env, "REDIS_URL": servers["b"].url},
        capture_output=True,
        text=True,
        check=True,
    )
    jid = pushed.stdout.strip()
    journal.wait("end", [jid])
    names = {child["pid"]: child["name"] for child in forkq.status()["children"]}
    [line] = journal.lines("begin")
    assert (line.jid, names[line.pid]) == (jid, "default@b.0")


def test_a_periodic_job_of_a_spread_queue_is_published_in_one_part(
    servers: dict[str, Server], tree: StartTree, journal: Journal
) -> None:
    names = [f"tidy-{number}" for number in range(6)]
    rows = "".join(
        f'[[cron]]\nname = "{name}"\ncron = "0 0 1 1 *"\njob = "Quick"\nargs = [0.0]\n'
        f'queue = "{QUEUE}"\n'
        for name in names
    )
    tree(app=APP, config=config_of(servers, CAPSULE + rows), env=journal.env)

    def published() -> dict[str, str]:
        found: dict[str, str] = {}
        for part, server in servers.items():
            with server.client() as redis:
                found |= {name.decode(): part for name in redis.hkeys("forkq:cron")}
        return found

    wait_until(lambda: len(published()) == len(names), what="all periodic jobs")
    assert published() == {name: part_of(PARTS, name) for name in names}


def test_a_spread_that_begins_and_ends_loses_no_job(
    servers: dict[str, Server], tree: StartTree, journal: Journal
) -> None:
    """The jobs that a part still has when it is none any more are moved by the command."""
    spread = config_of(servers, CAPSULE)
    lines = spread.splitlines()
    alone = "\n".join(line for line in lines if not line.startswith(("[spread]", QUEUE)))
    forkq = tree(app=APP, config=alone, env=journal.env)
    with client_of(forkq) as client:
        jids = client.push_bulk({**JOB, "args": [[0.0]] * 100})
    (forkq.cwd / "forkq.toml").write_text(spread)
    assert forkq.run("restart", "--wait").returncode == 0
    with client_of(forkq) as client:
        jids += client.push_bulk({**JOB, "args": [[0.0]] * 300})
    journal.wait("end", jids)
    with client_of(forkq) as client:
        later = [str(client.push({**JOB, "args": [0.0], "at": 4e9})) for _ in range(30)]
    (forkq.cwd / "forkq.toml").write_text(alone)
    moved = forkq.run("shards", "move", QUEUE, "default", "--json")
    assert moved.returncode == 0, moved.stderr
    assert sum(kinds["scheduled"] for kinds in json.loads(moved.stdout)["moved"].values()) > 10
    with servers["default"].client() as redis:
        scheduled = {json.loads(member)["jid"] for member in redis.zrange("schedule", 0, -1)}
    assert scheduled == set(later)
    assert forkq.stop() == 0
