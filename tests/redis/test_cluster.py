"""A Redis Cluster: the node that has the slot is found, and followed when the slot moves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

import forkq
from forkq import api, default_client
from forkq.config.load import load
from forkq.errors import ServerUnavailable
from forkq.store.cluster import SlotElsewhere
from forkq.store.connection import ConnectionLost, RedisConnection
from forkq.wire.keys import Keys
from tests.support.cluster import SLOTS, Cluster, Node, slot_of
from tests.support.waiting import wait_until

KEYS = Keys("{f}:")
JOB = {"class": "Noop", "args": [], "queue": "q"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(2).start()
    yield cluster
    cluster.close()


class Slot:
    """The slot of KEYS, which is on ``here``."""

    def __init__(self, cluster: Cluster) -> None:
        self.number = slot_of(cluster.primaries[0], KEYS.queues)
        self._cluster = cluster
        self.here = cluster.owner(self.number)
        [self.there] = [node for node in cluster.primaries if node is not self.here]

    @property
    def redis(self) -> Redis:
        return self.here.client()

    def begin_move(self) -> None:
        self._cluster.begin_move(self.number, self.here, self.there)

    def cancel_move(self) -> None:
        self._cluster.cancel_move(self.number, self.here, self.there)

    def end_move(self) -> None:
        self._cluster.end_move(self.number, self.here, self.there)
        self.here, self.there = self.there, self.here

    def move(self) -> None:
        self.begin_move()
        self.end_move()


@pytest.fixture
def slot(cluster: Cluster) -> Iterator[Slot]:
    slot = Slot(cluster)
    slot.cancel_move()
    slot.redis.flushall()
    yield slot
    for node in cluster.nodes:
        node.close_clients()


@pytest.fixture
def client(slot: Slot) -> Iterator[forkq.Client]:
    """It is given the address of the node that does not have the slot."""
    client = forkq.Client(url_of(slot.there), prefix=KEYS.prefix, timeout=2.0)
    yield client
    client.close()


@pytest.fixture
def connection(slot: Slot) -> Iterator[RedisConnection]:
    connection = RedisConnection(url_of(slot.here), prefix=KEYS.prefix)
    connection.connect()
    yield connection
    connection.close()


def url_of(*nodes: Node) -> str:
    return "cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


def test_a_push_reaches_the_node_that_has_the_slot(client: forkq.Client, slot: Slot) -> None:
    client.push(JOB)
    client.push_bulk({**JOB, "args": [[]] * 5000})
    assert slot.redis.llen(KEYS.queue("q")) == 5001


def test_a_push_follows_the_slot(client: forkq.Client, slot: Slot) -> None:
    """Over the pooled connections to the node that had it, too."""
    client.push(JOB)
    slot.move()
    client.push(JOB)
    slot.move()
    client.push_bulk({**JOB, "args": [[]] * 5000})
    assert slot.redis.llen(KEYS.queue("q")) == 5002


def test_a_read_and_a_command_follow_the_slot(client: forkq.Client, slot: Slot) -> None:
    """Over the pooled connection to the node that had it; each failed once after a move."""
    client.push(JOB)
    server = client.servers.default
    assert api.Queue("q", server).size == 1
    slot.move()
    assert api.Queue("q", server).size == 1
    slot.move()
    assert api.Queue("q", server).pause()
    slot.move()
    assert server.ask_at_once(("LLEN", KEYS.queue("q")), ("SCARD", KEYS.paused)) == [1, 1]


def test_a_read_waits_while_the_slot_moves(client: forkq.Client, slot: Slot) -> None:
    client.push(JOB)
    slot.begin_move()
    found: list[int] = []
    reader = threading.Thread(
        target=lambda: found.append(api.Queue("q", client.servers.default).size)
    )
    reader.start()
    wait_until(lambda: refusals(slot.here) > 0, what="a refusal")
    slot.end_move()
    reader.join()
    assert found == [1]


def test_a_read_gives_up_if_the_slot_moves_for_too_long(client: forkq.Client, slot: Slot) -> None:
    client.push(JOB)
    slot.begin_move()
    began = time.monotonic()
    with pytest.raises(ServerUnavailable, match="its slot moves"):
        _ = api.Queue("q", client.servers.default).size
    assert time.monotonic() - began >= 2.0, "as long as for a reply"
    slot.end_move()


def test_a_push_waits_while_the_slot_moves(client: forkq.Client, slot: Slot) -> None:
    """Each job is pushed once."""
    slot.redis.sadd(KEYS.queues, "q")
    slot.begin_move()
    pusher = threading.Thread(target=client.push, args=(JOB,))
    pusher.start()
    wait_until(lambda: refusals(slot.here) > 0, what="a refusal")
    slot.end_move()
    pusher.join()
    assert slot.redis.llen(KEYS.queue("q")) == 1


def test_a_push_gives_up_if_the_slot_moves_for_too_long(client: forkq.Client, slot: Slot) -> None:
    slot.begin_move()
    began = time.monotonic()
    with pytest.raises(ServerUnavailable, match=r"its slot moves .*nothing was pushed") as caught:
        client.push(JOB)
    assert time.monotonic() - began >= 2.0, "as long as for a reply"
    assert (caught.value.pushed, caught.value.unknown) == ((), ())
    slot.end_move()
    assert slot.redis.llen(KEYS.queue("q")) == 0


def test_a_child_that_waits_hears_that_the_slot_has_left(
    connection: RedisConnection, slot: Slot
) -> None:
    """Its node tells nothing of pushes to the next one: it asks for a key of its own."""
    slot.move()
    with pytest.raises(SlotElsewhere, match=f"is on 127.0.0.1:{slot.here.port} now"):
        connection.wait(30.0)
    connection.connect()
    assert connection.call("SADD", KEYS.queues, "q") == 1
    assert slot.redis.scard(KEYS.queues) == 1


def test_one_that_hears_of_a_move_tells_the_others_of_its_process(
    connection: RedisConnection, client: forkq.Client, slot: Slot
) -> None:
    idle = RedisConnection(connection.url, prefix=KEYS.prefix)
    idle.connect()
    slot.move()
    with pytest.raises(SlotElsewhere):
        connection.call("LLEN", KEYS.queue("q"))
    assert idle.stale()
    idle.close()


def test_a_script_is_an_outage_while_the_slot_moves(
    connection: RedisConnection, slot: Slot
) -> None:
    slot.redis.sadd(KEYS.queues, "q")
    slot.begin_move()
    with pytest.raises(ConnectionLost, match="until all of it has moved"):
        connection.call("EXISTS", KEYS.queues, KEYS.paused)
    slot.cancel_move()


def test_a_cluster_that_is_down_is_an_outage(slot: Slot) -> None:
    """A node whose cluster has lost too many others refuses all."""
    own = Cluster(1)
    own.primaries[0].start()  # without slots
    connection = RedisConnection(url_of(own.primaries[0]), prefix=KEYS.prefix)
    with pytest.raises(ConnectionLost, match="knows no owner of slot 3168"):
        connection.connect()
    own.close()
    plain = RedisConnection(slot.here.url)
    plain.connect()
    slot.here.cli("CLUSTER", "DELSLOTS", slot.number)
    with pytest.raises(ConnectionLost, match="the cluster is down"):
        plain.call("LLEN", KEYS.queue("q"))
    slot.here.cli("CLUSTER", "ADDSLOTS", slot.number)
    plain.close()
    wait_until(lambda: slot.here.is_ready, what="the cluster")


def refusals(node: Node) -> int:
    """How often the node has answered ASK."""
    found = node.client().info("errorstats").get("errorstat_ASK", {})
    return int(found.get("count", 0))


@pytest.mark.usefixtures("slot")
def test_two_shards_of_one_cluster_are_in_slots_far_apart(cluster: Cluster, tmp_path: Path) -> None:
    """They have the same URL, and a prefix each: what is pushed to one is not seen on the other."""
    url = f"cluster://127.0.0.1:{cluster.primaries[0].port}"
    text = f'[redis]\nurl = "{url}"\nprefix = "{KEYS.prefix}"\ncluster_shards = 2\n'
    row = '[[redis.shards]]\nname = "s1"\nqueues = ["mail"]'
    (tmp_path / "forkq.toml").write_text(text + row)
    config = load(None, {}, {}, tmp_path)
    before = default_client.swap(None)
    try:
        with closing(default_client.use(config)) as client:
            client.push_bulk({"class": "Noop", "args": [[], []], "queue": "mail"})
            client.push(JOB)
            sizes = [[api.Queue(q, s).size for q in ("mail", "q")] for s in api.servers()]
    finally:
        default_client.swap(before)
    assert sizes == [[0, 1], [2, 0]]
    slots = []
    for shard, queue in zip(config.shards, (b"q", b"mail"), strict=True):
        keys = Keys(shard.prefix)
        slots.append(slot_of(cluster.primaries[0], keys.queues))
        node = cluster.owner(slots[-1])
        assert node.cli("SMEMBERS", keys.queues) == {queue}
        node.cli("DEL", keys.queues, keys.queue("mail"), keys.queue("q"))
    assert abs(abs(slots[0] - slots[1]) - SLOTS // 2) <= SLOTS // 128
