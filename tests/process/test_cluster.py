"""A tree on a Redis Cluster of six nodes: a failover and moves of its slot lose no job, and no job
runs in two places at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import forkq
from forkq.config.cluster_shards import prefix_of
from forkq.wire.keys import Keys
from tests.process.shared import APP, Journal, wait_events
from tests.support.cluster import Cluster, slot_of
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

KEYS = Keys("{forkq}:")
CONFIG = f'[redis]\nprefix = "{KEYS.prefix}"\n'
OF_MAIL = Keys(prefix_of(KEYS.prefix, 1))
_BETWEEN_PUSHES = 0.005  # seconds: a load that leaves processor time to the others
ARGS = ["-w", "2", "-c", "5", "--log-format", "json", "--log-level", "info"]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(3, replicas=1)
    try:
        yield cluster.start()
    finally:
        cluster.close()


class Load:
    """A thread that pushes jobs one by one, and knows which of them were surely pushed."""

    def __init__(self, url: str, keys: Keys = KEYS, queue: str = "default") -> None:
        self.pushed: list[str] = []
        self.refused = 0
        self._queue = queue
        self._client = forkq.Client(url, prefix=keys.prefix)
        self._thread = threading.Thread(target=self._run)
        self._stop = threading.Event()
        self._thread.start()

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        while not self._stop.wait(_BETWEEN_PUSHES):
            try:
                jid = self._client.push({"class": "Quick", "args": [0.002], "queue": self._queue})
            except forkq.ServerUnavailable:
                self.refused += 1
            else:
                assert jid is not None
                self.pushed.append(jid)


def test_a_slot_that_moves_to_and_fro_under_load_loses_no_job(
    cluster: Cluster, tree: StartTree, journal: Journal
) -> None:
    """Also to a node that has just joined, and that leaves the cluster afterwards."""
    forkq = start(cluster, tree, journal)
    slot = slot_of(cluster.nodes[0], KEYS.queues)
    with Load(url_of(cluster)) as load:
        joined = cluster.add()
        for target in (*cluster.primaries, joined, *cluster.primaries):
            source = cluster.owner(slot)
            if source is not target:
                cluster.move(slot, source, target)
                wait_more(journal, 20)
        cluster.forget(joined)
        wait_more(journal, 20)
    assert load.refused == 0, "each move was short, so that no push gave up"
    check(load.pushed, journal, cluster)
    assert forkq.stop() == 0


def test_a_primary_that_is_killed_loses_no_job(
    cluster: Cluster, tree: StartTree, journal: Journal
) -> None:
    """All that its replica knows runs."""
    forkq = start(cluster, tree, journal)
    slot = slot_of(cluster.nodes[0], KEYS.queues)
    owner = cluster.owner(slot)
    with Load(url_of(cluster)) as load:
        wait_more(journal, 50)
    client = owner.client()
    client.set(f"{KEYS.prefix}marker", "1")
    assert client.wait(1, 5000) == 1  # the replica has all that came before
    owner.close_clients()
    owner.kill()
    with Load(url_of(cluster)) as later:
        wait_until(lambda: len(later.pushed) > 50, deadline=40, what="pushes to the new primary")
    check([*load.pushed, *later.pushed], journal, cluster)
    assert wait_events(forkq, "redis is back", 1)
    assert forkq.stop() == 0


def test_two_shards_follow_their_slots_while_a_queue_moves_between_them(
    cluster: Cluster, tree: StartTree, journal: Journal
) -> None:
    """Both slots go to a node that joins, and back, before it leaves. Programs with the old table
    push mail to the default shard, those with the new one to s1, and the command brings it
    there."""
    url = url_of(cluster)
    shards = 'cluster_shards = 2\n[[redis.shards]]\nname = "s1"\nqueues = ["mail"]\n'
    capsule = '[capsules.default]\nqueues = ["default", "mail"]\n'
    config = f'{CONFIG}url = "{url}"\n{shards}{capsule}'
    forkq = tree(app=APP, args=ARGS, config=config, env=journal.env)
    with ExitStack() as stack:
        places = ((KEYS, "default"), (KEYS, "mail"), (OF_MAIL, "mail"))
        loads = [stack.enter_context(Load(url, keys, queue)) for keys, queue in places]
        joined = cluster.add()
        slots = [slot_of(cluster.nodes[0], keys.queues) for keys in (KEYS, OF_MAIL)]
        homes = [cluster.owner(slot) for slot in slots]
        for slot, home in zip(slots, homes, strict=True):
            cluster.move(slot, home, joined)
            wait_more(journal, 20)
        assert forkq.run("shards", "move", "mail", "s1", "--no-wait").returncode in (0, 1)
        for slot, home in zip(slots, homes, strict=True):
            cluster.move(slot, joined, home)
            wait_more(journal, 20)
        cluster.forget(joined)
        wait_more(journal, 20)
    found = forkq.run("shards", "move", "mail", "s1")
    assert found.returncode == 0, found.stderr
    check([jid for load in loads for jid in load.pushed], journal, cluster)
    left = cluster.owner(slots[0]).cli("EXISTS", KEYS.queue("mail"), KEYS.inflight("mail"))
    assert left == 0
    assert forkq.stop() == 0


def start(cluster: Cluster, tree: StartTree, journal: Journal) -> ForkqTree:
    return tree(url_of(cluster), app=APP, args=ARGS, config=CONFIG, env=journal.env)


def url_of(cluster: Cluster) -> str:
    return "cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes[:3])


def wait_more(journal: Journal, count: int) -> None:
    """Waits until so many jobs more have ended."""
    seen = len(journal.lines("end"))
    wait_until(lambda: len(journal.lines("end")) > seen + count, what="jobs that end")


def check(pushed: list[str], journal: Journal, cluster: Cluster) -> None:
    """The ledger: each job that was pushed has ended, and none ran in two places at once."""
    journal.wait("end", pushed, deadline=60)
    open_runs: dict[str, int] = {}
    for line in sorted(journal.lines("begin", "end"), key=lambda line: line.at):
        if line.event == "begin":
            assert line.jid not in open_runs, f"{line.jid} runs in two places at once"
            open_runs[line.jid] = line.pid
        else:
            open_runs.pop(line.jid, None)
    slot = slot_of(next(node for node in cluster.nodes if node.running), KEYS.queues)
    redis = cluster.owner(slot).client()
    wait_until(lambda: not redis.exists(KEYS.inflight("default")), what="all acknowledged")
