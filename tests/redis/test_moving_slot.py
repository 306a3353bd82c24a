"""While a slot of a Redis Cluster moves, a script does all of its work or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from redis import Redis

from forkq.child.failure.ends import Ends
from forkq.child.failure.retry import Bury, Retry
from forkq.store import scripts
from forkq.store.cluster import SlotElsewhere
from forkq.store.connection import Call, RedisConnection
from forkq.store.crash_record import Lease, Move
from forkq.store.dead_set import DeadSetLimits
from forkq.store.scripts import BURY, FETCH, REQUEUE, Script
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from tests.support.cluster import Cluster, slot_of

KEYS = Keys("{f}:")
IDENTITY = "vm:1:aaaaaaaaaaaa"
UNIT = UnitOfWork(1, "q", 7, b"payload", 0.0)
ENDS = Ends(IDENTITY, KEYS, DeadSetLimits(KEYS))
SCRIPTS = [value for value in vars(scripts).values() if isinstance(value, Script)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(2).start()
    yield cluster
    cluster.close()


@pytest.fixture
def redis(cluster: Cluster) -> Iterator[Redis]:
    """The first of two nodes, which the slot leaves. One job is leased, and one waits. Of the keys
    of a queue, its mark and its bucket are not there."""
    source, target = cluster.primaries
    slot = slot_of(source, KEYS.queues)
    client = source.client()
    client.flushall()
    client.hset(KEYS.inflight("q"), f"{IDENTITY}/7", "payload")
    client.rpush(KEYS.queue("q"), "next")
    client.rpush(KEYS.suspects("q"), "suspect")
    for key in (KEYS.dead, KEYS.retry, KEYS.schedule):
        client.zadd(key, {"older": 1})
    for key in (KEYS.queues, KEYS.suspected, KEYS.paused):
        client.sadd(key, "other")
    for key in (KEYS.controlled, KEYS.held_classes, KEYS.lost(IDENTITY)):
        client.hset(key, "other", "1")
    client.set(KEYS.awaited("other"), "")
    cluster.begin_move(slot, source, target)
    yield client
    cluster.cancel_move(slot, source, target)
    source.close_clients()


@pytest.fixture
def connection(cluster: Cluster) -> Iterator[RedisConnection]:
    connection = RedisConnection(cluster.primaries[0].url)
    connection.connect()
    yield connection
    connection.close()


def content(redis: Redis) -> dict[bytes, Any]:
    found: Any = redis.keys("*")
    return {key: redis.dump(key) for key in found}


def fetch() -> Call:
    lists = KEYS.lists_and_leases(["q"])
    keys = (KEYS.paused, KEYS.controlled, *lists, KEYS.awaited("q"))
    return Call(FETCH, keys, (1, f"{IDENTITY}/", 8, 0, 1, 1, 1, 1, 1, 1, 7))


LEASE = Lease(1, f"{IDENTITY}/7".encode(), b"whole", b"{}", b"")
CALLS = {
    "retry": ENDS.retry(UNIT, Retry(5.0, b"again")).call(),
    "bury": ENDS.bury(UNIT, Bury(b"dead", None)).call(),
    "isolate": ENDS.isolate(UNIT).call(),
    "put back": ENDS.return_to_queue(UNIT).call(),
    "requeue": Call(REQUEUE, (KEYS.queues, *KEYS.of_returns(["q"])), (f"{IDENTITY}/", 0, 1000)),
    "recover": DeadSetLimits(KEYS).recover(
        ["q"], IDENTITY, [Move(LEASE, "requeue", 0, b"stamped")], 60
    ),
    "fetch": fetch(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_script_that_lacks_a_key_changes_nothing(
    redis: Redis, connection: RedisConnection, call: Call
) -> None:
    """It did its work and then failed, where it made a key by itself: the job ran twice."""
    before = content(redis)
    with pytest.raises(SlotElsewhere):
        connection.script(call.script, call.keys, call.arguments)
    assert content(redis) == before


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.name))
def test_no_script_runs_while_one_of_its_keys_is_elsewhere(
    redis: Redis, connection: RedisConnection, script: Script
) -> None:
    keys: Sequence[str] = (KEYS.queue("q"), KEYS.queue("moved"))
    with pytest.raises(SlotElsewhere):
        connection.script(script, keys, ())


def test_all_of_it_works_where_all_keys_are(redis: Redis, connection: RedisConnection) -> None:
    keys = (KEYS.inflight("q"), KEYS.dead, KEYS.awaited("other"))
    arguments = (f"{IDENTITY}/7", 5.5, "dead", 0, 1)
    assert connection.script(BURY, keys, arguments) == 1
    assert redis.zrange(KEYS.dead, 0, -1) == [b"dead"]
