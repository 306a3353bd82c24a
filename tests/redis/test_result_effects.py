"""Each way out of a job answers those who wait for its result: the table of all ways out
(forkq/features/ways.py) is tried, by each process that decides so."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import api, middleware, registry
from forkq.child.failure.ends import Ends
from forkq.child.failure.retry import End, Retry
from forkq.clock.ended_results import EndedResults
from forkq.features.results.parts import placeholder, read, waits_for
from forkq.features.ways import WAYS
from forkq.store.connection import RedisConnection
from forkq.store.dead_set import DeadSetLimits
from forkq.wire.payload import dumps, loads
from forkq.wire.times import now
from tests.redis import test_effects
from tests.redis.test_effects import CASES, ENDS, IDENTITY, INFLIGHT, KEYS, TAKES, leased, unit
from tests.redis.test_effects import connection as connection  # noqa: PLC0414 - a fixture
from tests.support.server import Server

RESULT = KEYS.result("m1")
WAITS = placeholder("Unique", "default", 60.0)
FATES = {way.name: way.result for way in WAYS}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    monkeypatch.setitem(test_effects.MORE, "result_ttl", 60)


def waits(redis: Redis) -> None:
    redis.set(RESULT, WAITS, px=5000)


def found(redis: Redis) -> dict[str, Any]:
    raw: Any = redis.get(RESULT)
    return dict(json.loads(raw))


@pytest.mark.parametrize(("name", "number"), CASES)
def test_the_result_of_a_job_has_the_fate_of_its_way(
    client: Any, redis: Redis, connection: RedisConnection, name: str, number: int
) -> None:
    waits(redis)
    TAKES[name][number](redis, connection)
    fate, left = FATES[name], redis.pttl(RESULT)
    if fate == "kept":
        assert (found(redis), 0 < left <= 5000) == (json.loads(WAITS), True)
    elif fate == "none":  # it waits anew
        assert (found(redis), waits_for() - 10_000 < left) == (json.loads(WAITS), True)
    else:
        outcome = name if fate != "replaced" else "replaced"
        result = found(redis)
        assert (result["outcome"], result["class"], 0 < left <= 60_000) == (outcome, "Unique", True)
        assert ("value" in result, "error" in result) == (fate == "value", fate != "value")


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_key_of_another_type_keeps_no_job_from_its_way(
    client: Any, redis: Redis, connection: RedisConnection, name: str, number: int
) -> None:
    redis.rpush(RESULT, "x")
    TAKES[name][number](redis, connection)
    assert redis.lrange(RESULT, 0, -1) == [b"x"]
    counted: Any = redis.hget(ENDS, "(feature)|damaged")
    assert (int(counted or 0) > 0) == (FATES[name] != "kept")
    assert redis.hlen(INFLIGHT) == 0


@pytest.mark.parametrize("name", ["done", "dropped", "expired", "retried", "dead"])
def test_a_full_server_takes_the_result(
    redis: Redis, connection: RedisConnection, name: str
) -> None:
    waits(redis)
    leased(redis, test_effects.payload())
    ends = Ends(IDENTITY, KEYS, DeadSetLimits(KEYS))
    call = test_effects.CHILD[name](ends, unit(test_effects.payload())).call()
    redis.config_set("maxmemory", 1)
    try:
        assert connection.script(call.script, call.keys, call.arguments) == 1
    finally:
        redis.config_set("maxmemory", 0)
    assert found(redis).get("outcome", "retried") == name


def test_a_lease_that_is_gone_writes_no_result(redis: Redis, connection: RedisConnection) -> None:
    """Another host has the job by now, and its end counts."""
    waits(redis)
    ending = Ends(IDENTITY, KEYS, DeadSetLimits(KEYS)).done(unit(test_effects.payload()), "done")
    assert ending is not None
    call = ending.call()
    assert connection.script(call.script, call.keys, call.arguments) == 0
    assert found(redis) == json.loads(WAITS)


def test_a_retry_may_wait_for_longer_than_a_placeholder_lives(
    redis: Redis, connection: RedisConnection
) -> None:
    raw = test_effects.payload()
    leased(redis, raw)
    later = now() + 40 * 86_400
    call = Ends(IDENTITY, KEYS, DeadSetLimits(KEYS)).retry(unit(raw), Retry(later, raw)).call()
    assert connection.script(call.script, call.keys, call.arguments) == 1
    assert redis.pttl(RESULT) > waits_for(39 * 86_400)


@pytest.mark.parametrize("odd", [None, "60", True, 0, -1, 1e12, [], {}])
def test_an_odd_need_keeps_no_result(odd: object) -> None:
    one = unit(test_effects.payload())
    assert one.marked is not None
    one.marked["forkq"] = {"needs": {"result_ttl": odd}}
    assert Ends(IDENTITY, KEYS, DeadSetLimits(KEYS)).done(one, "done") is None


def test_the_dead_set_tells_with_which_error_a_job_died(client: Any, redis: Redis) -> None:
    """A person buries a job that has failed before: its last error is the reason."""
    job = loads(test_effects.payload(error_class="ValueError", error_message="bad"))
    redis.zadd("retry", {dumps(job): 2e9})
    api.RetrySet().kill_all()
    assert found(redis)["error"] == {"class": "ValueError", "message": "bad"}


def test_a_dead_job_that_was_deleted_and_is_restored_is_dead_again(
    client: Any, redis: Redis
) -> None:
    """With its error, and for as long as the result of one that has just died."""
    job = loads(test_effects.payload(error_class="ValueError", error_message="bad"))
    redis.zadd("dead", {dumps(job): now()})
    deleted = api.DeadSet().delete_all(undo=True)
    assert outcome(redis, "m1") == "deleted"
    redis.pexpire(RESULT, 500)
    assert api.undo(deleted.undo).done == redis.zcard("dead") == 1
    assert found(redis)["error"] == {"class": "ValueError", "message": "bad"}
    assert (outcome(redis, "m1"), redis.pttl(RESULT) > 1000) == ("dead", True)


# Of jobs of which at most one waits a push ends another one, whose key its script does not know.


def write_noted(redis_server: Server) -> None:
    connection = RedisConnection(redis_server.url)
    connection.connect()
    clock = EndedResults(KEYS, connection)
    clock.load(watch=False)
    while clock.next_due() is not None:
        clock.work()
    connection.close()


def outcome(redis: Redis, jid: str) -> str:
    raw: Any = redis.get(KEYS.result(jid))
    result = read(raw)
    assert result is not None
    return result.outcome


def unique_job(how: Any = "latest") -> Any:
    @forkq.job(name="Newest", unique_for=60, on_duplicate=how, result_ttl=60)
    def perform(number: int) -> None: ...

    return perform


@pytest.mark.parametrize("how", ["latest", "replace"])
def test_a_job_that_is_replaced_while_it_waits_answers(
    client: Any, redis: Redis, redis_server: Server, how: str
) -> None:
    job = unique_job(how)
    jids = [job.perform_async(1) for _ in range(3)]
    assert [outcome(redis, jid) for jid in jids] == ["", "", ""]
    write_noted(redis_server)
    assert [outcome(redis, jid) for jid in jids] == ["replaced", "replaced", ""]
    assert not redis.exists(KEYS.results_ended)


def test_a_job_that_is_replaced_in_the_schedule_answers(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    job = unique_job("replace")
    first, second = job.perform_in(600, 1), job.perform_in(700, 1)
    write_noted(redis_server)
    assert [outcome(redis, first), outcome(redis, second)] == ["replaced", ""]
    assert redis.pttl(KEYS.result(second)) > waits_for(690)
    assert redis.zcard("schedule") == 1


def test_a_newest_job_that_is_deleted_with_its_ticket_answers(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    job = unique_job()
    jids = [job.perform_async(1) for _ in range(2)]
    assert api.Queue("default").clear() == 1
    write_noted(redis_server)
    assert [outcome(redis, jid) for jid in jids] == ["deleted", "deleted"]


def test_a_retry_that_a_newer_job_replaces_answers(
    client: Any, redis: Redis, connection: RedisConnection
) -> None:
    """The script of the retry finds a newer job behind the one that has failed."""
    job = unique_job()
    first = job.perform_async(1)
    raw: Any = redis.lindex("queue:default", 0)
    redis.delete("queue:default")
    leased(redis, raw)
    one = unit(raw)
    ends = Ends(IDENTITY, KEYS, DeadSetLimits(KEYS))
    started = ends.ticket_start(one)
    assert started is not None
    assert connection.script(started.script, started.keys, started.arguments) == b"run"
    second = job.perform_async(1)
    call = ends.retry(one, Retry(2e9, raw)).call()
    assert connection.script(call.script, call.keys, call.arguments) == 1
    assert [outcome(redis, first), outcome(redis, second)] == ["replaced", ""]
    assert redis.zcard("retry") == 0


def test_a_note_about_a_job_that_has_ended_otherwise_changes_nothing(
    redis: Redis, redis_server: Server, connection: RedisConnection
) -> None:
    leased(redis, test_effects.payload())
    one = unit(test_effects.payload())
    call = Ends(IDENTITY, KEYS, DeadSetLimits(KEYS)).end(one, End("discarded", "Unique")).call()
    connection.script(call.script, call.keys, call.arguments)
    redis.rpush(KEYS.results_ended, "replaced m1", "replaced gone")
    write_noted(redis_server)
    assert outcome(redis, "m1") == "discarded"
    assert not redis.exists(KEYS.results_ended, KEYS.result("gone"))
