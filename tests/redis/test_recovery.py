"""Recovery when a reply of Redis is lost: each burial is reported once. Rescue while Redis refuses
everything: it waits, and says so once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from redis import Redis

from forkq.master import rescue as rescue_module
from forkq.master.rescue import DeadChild, Rescue
from forkq.store.connection import ConnectionLost, RedisConnection, RedisError
from forkq.store.crash_record import ProcessDeath
from forkq.store.dead_set import DeadSetLimits
from forkq.store.recovery import Recovered, Recovery
from forkq.store.scripts import RECOVER
from forkq.store.steps import carry_out
from forkq.wire import marks
from forkq.wire.keys import Keys
from forkq.wire.times import now
from tests.redis.proxy import Proxy
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.waiting import wait_until

OWNER = "vm:1:soloaaaaaaaa"
CHILD = "vm:1:aaaaaaaaaaaa"


@pytest.fixture
def recovery() -> Recovery:
    return Recovery(DeadSetLimits(Keys()))


def recover(recovery: Recovery, connection: RedisConnection) -> Recovered:
    connection.connect()
    return carry_out(connection, recovery.recover(["q"], OWNER, ProcessDeath(signal=9)))


def lease(redis: Redis, *jids: str, crashes: int) -> None:
    """The solo child holds these jobs, each of which has that many crash records, and had been
    given back to be buried."""
    records = [{"at": now(), "signal": 9, "alone": True}] * crashes
    noted = {"crashes": records, "failed": {"class": "forkq.errors.Crashed", "message": "x"}}
    for jid in jids:
        job = {"class": "J", "args": [], "jid": jid, "forkq": noted}
        redis.hset("{queue:q}:inflight", f"{OWNER}/{jid}", json.dumps(job))


def test_a_burial_whose_reply_is_lost_is_reported_by_the_next_try(
    recovery: Recovery, connection: RedisConnection, proxy: Proxy, redis: Redis
) -> None:
    lease(redis, "1", crashes=2)
    connection.call("SCRIPT", "LOAD", RECOVER.text)
    proxy.cut(RECOVER.sha)
    with pytest.raises(ConnectionLost):
        recover(recovery, connection)
    assert redis.zcard("dead") == 1
    assert recover(recovery, connection) == Recovered(1, ["J 1"])
    assert recover(recovery, connection) == Recovered(0, [])


def test_a_burial_that_did_not_happen_is_not_reported(
    recovery: Recovery, connection: RedisConnection, proxy: Proxy, redis: Redis
) -> None:
    lease(redis, "1", crashes=2)
    connection.call("SCRIPT", "LOAD", RECOVER.text)
    proxy.cut(RECOVER.sha)
    with pytest.raises(ConnectionLost):
        recover(recovery, connection)
    redis.delete("dead")
    assert recover(recovery, connection) == Recovered(0, [])


def test_the_second_try_knows_how_many_jobs_the_first_one_found(
    recovery: Recovery, connection: RedisConnection, redis: Redis
) -> None:
    """The job that is left was not alone."""
    owner = "vm:1:aaaaaaaaaaaa"
    job = json.dumps({"class": "J", "args": [], "jid": "1"})
    for number, queue in enumerate(("q", "r")):
        redis.hset(f"{{queue:{queue}}}:inflight", f"{owner}/{number}", job)
    redis.set("queue:q", "no list")
    redis.set("{queue:q}:suspects", "no list")

    def recover_both() -> Recovered:
        connection.connect()
        return carry_out(connection, recovery.recover(["q", "r"], owner, ProcessDeath(signal=9)))

    with pytest.raises(RedisError):
        recover_both()
    assert redis.llen("{queue:r}:suspects") == 1
    redis.delete("queue:q", "{queue:q}:suspects")
    assert recover_both() == Recovered(1, [])
    payload: Any = redis.lindex("{queue:q}:suspects", 0)
    assert json.loads(payload)["forkq"]["crashes"][0]["jobs"] == 2


def test_jobs_that_were_leased_ahead_and_had_not_begun_are_no_suspects(
    recovery: Recovery, connection: RedisConnection, redis: Redis
) -> None:
    """They go back to their queue, unchanged."""
    owner = "vm:1:aaaaaaaaaaaa"
    for number in range(8, 13):
        payload = json.dumps({"class": "J", "args": [], "jid": f"{number}"})
        redis.hset("{queue:q}:inflight", f"{owner}/{number}", payload)
    connection.connect()
    steps = recovery.recover(["q"], owner, ProcessDeath(signal=9), last_begun=9)
    recovered = carry_out(connection, steps)
    assert (recovered.moved, sorted(recovered.in_progress)) == (5, ["J 8", "J 9"])
    suspects, ahead = (
        [json.loads(payload) for payload in reversed(_entries(redis, key))]
        for key in ("{queue:q}:suspects", "queue:q")
    )
    assert [job["jid"] for job in suspects] == ["8", "9"]
    assert [job["forkq"]["crashes"][0]["jobs"] for job in suspects] == [2, 2]
    assert [job["jid"] for job in ahead] == ["10", "11", "12"]
    assert not any("forkq" in job for job in ahead)


def _entries(redis: Redis, key: str) -> list[Any]:
    found: Any = redis.lrange(key, 0, -1)
    return list(found)


@contextmanager
def replica(server: Server) -> Iterator[None]:
    """Within it the server is a replica that has lost its master: it reads, and refuses writes."""
    server.cli("REPLICAOF", "127.0.0.1", 1)
    yield
    server.cli("REPLICAOF", "NO", "ONE")


def dead_child_of(server: Server) -> DeadChild:
    """It holds a lease, and has flushed three of the five jobs that it reported."""
    redis = server.client()
    redis.hset("{queue:q}:inflight", f"{CHILD}/1", json.dumps({"class": "J", "jid": "1"}))
    redis.hset(f"forkq:flushed:{CHILD}", mapping={"number": 1, "processed": 3, "failed": 0})
    return DeadChild(CHILD, ("q",), ProcessDeath(signal=9), processed=5)


@pytest.mark.parametrize("fault", [Server.busy, replica])
def test_a_rescue_that_must_wait_says_so_once_and_drops_no_count(
    own_server: Server,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[Server], AbstractContextManager[None]],
) -> None:
    """BUSY: another program's script runs. Each further try is as silent as it is vain."""
    monkeypatch.setattr(rescue_module, "_RETRY_PAUSE", 0.0)
    log = RecordedLog()
    connection = RedisConnection(own_server.url, timeout=1, connect_timeout=1)
    rescue = Rescue(connection, Recovery(DeadSetLimits(Keys())), log)
    rescue.add(dead_child_of(own_server))
    with fault(own_server):
        for _ in range(3):
            assert not rescue.advance()
    assert log.events() == ["rescue waits for redis"]
    wait_until(rescue.advance, what="the rescue")
    connection.close()
    assert log.events() == ["rescue waits for redis", "jobs rescued"]
    assert own_server.cli("GET", "stat:processed") == b"2"


def test_counts_that_redis_refuses_are_told_when_the_jobs_are_back(
    own_server: Server,
) -> None:
    log = RecordedLog()
    connection = RedisConnection(own_server.url, timeout=1, connect_timeout=1)
    rescue = Rescue(connection, Recovery(DeadSetLimits(Keys())), log)
    rescue.add(dead_child_of(own_server))
    own_server.cli("SET", f"forkq:flushed:{CHILD}", "no hash")
    wait_until(rescue.advance, what="the rescue")
    connection.close()
    assert log.events() == ["jobs rescued", "counts of a dead child dropped"]


def lease_group(redis: Redis, count: int) -> None:
    """A solo child holds that many suspects, each of which has died with others."""
    noted = {"suspect": True, "crashes": [{"at": now(), "signal": 9, "group": 2 * count}]}
    for number in range(1, count + 1):
        job = {"class": "J", "args": [], "jid": f"{number}", "forkq": noted}
        redis.hset("{queue:q}:inflight", f"{OWNER}/{number}", json.dumps(job))


def suspects(redis: Redis) -> list[Any]:
    """The payloads in the list of suspects, the next one first."""
    found: Any = redis.lrange("{queue:q}:suspects", 0, -1)
    return [json.loads(payload) for payload in reversed(found)]


def test_the_death_of_a_group_of_suspects_counts_against_none_and_keeps_their_order(
    recovery: Recovery, connection: RedisConnection, redis: Redis
) -> None:
    lease_group(redis, 4)
    assert recover(recovery, connection).moved == 4
    found = suspects(redis)
    assert [job["jid"] for job in found] == ["1", "2", "3", "4"]
    for job in found:
        last = job["forkq"]["crashes"][-1]
        assert (last["group"], last.get("alone")) == (4, None)
        assert marks.counted(job["forkq"]["crashes"]) == 0
        assert marks.most_together(job["forkq"]) == 2


def test_the_one_of_a_group_whose_step_crashed_was_not_alone_and_will_be(
    recovery: Recovery, connection: RedisConnection, redis: Redis
) -> None:
    """The others stay suspects at their places, without a further record."""
    lease_group(redis, 3)
    connection.connect()
    death = ProcessDeath(signal=11, beside=True)
    carry_out(connection, recovery.recover(["q"], OWNER, death, begun={2}))
    found = suspects(redis)
    assert [job["jid"] for job in found] == ["1", "2", "3"]
    assert [len(job["forkq"]["crashes"]) for job in found] == [1, 2, 1]
    blamed = found[1]["forkq"]
    assert marks.counted(blamed["crashes"]) == 0
    assert [marks.most_together(job["forkq"]) for job in found] == [3, 1, 3]


def test_what_is_left_of_a_group_at_the_second_try_was_not_alone(
    recovery: Recovery, connection: RedisConnection, proxy: Proxy, redis: Redis
) -> None:
    lease_group(redis, 2)
    redis.hdel("{queue:q}:inflight", f"{OWNER}/2")
    other = json.dumps({"class": "J", "args": [], "jid": "2", "forkq": {"suspect": True}})
    redis.hset("{queue:r}:inflight", f"{OWNER}/2", other)
    redis.set("{queue:r}:suspects", "no list")
    redis.set("queue:r", "no list")
    connection.connect()
    with pytest.raises(RedisError):
        carry_out(connection, recovery.recover(["q", "r"], OWNER, ProcessDeath(signal=9)))
    redis.delete("{queue:r}:suspects", "queue:r")
    carry_out(connection, recovery.recover(["q", "r"], OWNER, ProcessDeath(signal=9)))
    left: Any = redis.lindex("{queue:r}:suspects", 0)
    assert json.loads(left)["forkq"]["crashes"][-1].get("alone") is None
