"""Recovery when a reply of Redis is lost: each burial is reported once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis import Redis

from forkq.store.connection import ConnectionLost, RedisConnection, RedisError
from forkq.store.crash_record import Crash
from forkq.store.dead_set import DeadSet
from forkq.store.recovery import Recovered, Recovery
from forkq.store.scripts import RECOVER
from forkq.store.steps import carry_out
from forkq.wire.keys import Keys
from forkq.wire.times import now
from tests.redis.proxy import Proxy

OWNER = "vm:1:soloaaaaaaaa"


@pytest.fixture
def recovery() -> Recovery:
    return Recovery(DeadSet(Keys()))


def recover(recovery: Recovery, connection: RedisConnection) -> Recovered:
    connection.connect()
    return carry_out(connection, recovery.recover(["q"], OWNER, Crash(signal=9)))


def lease(redis: Redis, *jids: str, crashes: int) -> None:
    """The solo child holds these jobs, each of which has that many crash records, and had been
    given back to be buried."""
    records = [{"at": now(), "signal": 9, "alone": True}] * crashes
    marks = {"crashes": records, "failed": {"class": "forkq.errors.Crashed", "message": "x"}}
    for jid in jids:
        job = {"class": "J", "args": [], "jid": jid, "forkq": marks}
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
        return carry_out(connection, recovery.recover(["q", "r"], owner, Crash(signal=9)))

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
    steps = recovery.recover(["q"], owner, Crash(signal=9), last_begun=9)
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
