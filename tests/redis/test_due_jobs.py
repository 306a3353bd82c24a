"""The clock's mover: each due job reaches its queue once, also if several clocks move jobs."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest
from redis import Redis

from forkq.child.failure.retry import Retry, decide
from forkq.clock import due_jobs
from forkq.clock.due_jobs import DueJobMover
from forkq.store.connection import RedisConnection, ResponseError
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from forkq.wire.times import now
from tests.support.server import Server


@pytest.fixture
def mover(redis: Redis, redis_server: Server) -> Iterator[DueJobMover]:
    connection = RedisConnection(redis_server.url)
    connection.connect()
    yield DueJobMover(Keys(), connection)
    connection.close()


def job(**keys: Any) -> str:
    return json.dumps({"class": "J", "args": [], "jid": "m1", "queue": "q", **keys})


def move_all(mover: DueJobMover) -> None:
    """As the clock does: batch after batch while anything is due."""
    mover.load(watch=False)
    while (due := mover.next_due()) is not None and due <= now():
        mover.work()


def queued(redis: Redis, queue: str = "q") -> list[dict[str, Any]]:
    found: Any = redis.lrange(f"queue:{queue}", 0, -1)
    return [json.loads(payload) for payload in reversed(found)]


def payloads(redis: Redis, name: str) -> list[dict[str, Any]]:
    members: Any = redis.zrange(name, 0, -1)
    return [json.loads(member) for member in members]


@pytest.mark.parametrize("name", ["schedule", "retry"])
def test_due_jobs_move_and_the_others_stay(mover: DueJobMover, redis: Redis, name: str) -> None:
    redis.zadd(name, {job(jid="due"): now() - 1, job(jid="later"): now() + 60})
    move_all(mover)
    assert [found["jid"] for found in queued(redis)] == ["due"]
    assert redis.zcard(name) == 1
    assert redis.smembers("queues") == {b"q"}


@pytest.mark.parametrize("watch", [False, True])
def test_a_large_job_is_not_read_to_know_when_it_is_due(
    mover: DueJobMover, redis: Redis, watch: bool
) -> None:
    """The clock looks after each change of the set, and may have little memory."""
    if watch:
        mover.connection.track()
    due = now() + 60
    redis.zadd("schedule", {job(args=["x" * (4 << 20)]): due})
    sent = redis.info("stats")["total_net_output_bytes"]
    mover.load(watch)
    assert redis.info("stats")["total_net_output_bytes"] - sent < 1 << 20
    assert (mover.next_due(), mover.sets[1].later) == (due, None)


def test_a_moved_job_gets_enqueued_at_and_nothing_else_changes(
    mover: DueJobMover, redis: Redis
) -> None:
    before = {"retry_count": 2, "failed_at": 1795216066.5, "custom": {"k": []}, "n": 10**30}
    redis.zadd("retry", {job(**before, enqueued_at=1795216066123): 1})
    at = now()
    move_all(mover)
    [found] = queued(redis)
    assert at <= found.pop("enqueued_at") <= now()
    assert found == json.loads(job(**before))


def test_jobs_are_enqueued_in_the_order_of_their_times(mover: DueJobMover, redis: Redis) -> None:
    redis.zadd("schedule", {job(jid=str(number)): 1000 - number for number in range(500)})
    move_all(mover)
    assert [found["jid"] for found in queued(redis)] == [str(n) for n in reversed(range(500))]


def test_each_job_goes_to_its_own_queue(mover: DueJobMover, redis: Redis) -> None:
    members = {job(queue=f"q{number % 3}", jid=str(number)): 1 for number in range(9)}
    redis.zadd("schedule", {**members, '{"class":"J","args":[]}': 1, job(queue=None): 1})
    move_all(mover)
    assert [len(queued(redis, f"q{number}")) for number in range(3)] == [3, 3, 3]
    assert len(queued(redis, "default")) == 2
    assert redis.smembers("queues") == {b"q0", b"q1", b"q2", b"default"}


@pytest.mark.parametrize("member", ["{nope", "", '{"args":[]}', job(queue=7)])
def test_a_member_that_is_not_a_job_is_buried_verbatim(
    mover: DueJobMover, redis: Redis, member: str
) -> None:
    redis.zadd("schedule", {member: 1, job(): 2})
    move_all(mover)
    assert redis.zrange("dead", 0, -1) == [member.encode()]
    assert len(queued(redis)) == 1
    assert redis.exists("schedule") == 0


@pytest.mark.parametrize("member", ["[1]", "42"])
def test_json_that_is_not_an_object_is_buried_as_the_argument_of_one(
    mover: DueJobMover, redis: Redis, member: str
) -> None:
    redis.zadd("retry", {member: 1})
    move_all(mover)
    [found] = payloads(redis, "dead")
    assert (found["class"], found["args"]) == ("forkq.malformed", [member])
    assert redis.exists("retry") == 0


def test_several_leaders_at_once_move_each_job_once(redis: Redis, redis_server: Server) -> None:
    count = 2000
    redis.zadd("schedule", {job(jid=str(number)): number for number in range(count)})
    start = threading.Barrier(4)
    errors: list[BaseException] = []

    def lead() -> None:
        connection = RedisConnection(redis_server.url)
        try:
            connection.connect()
            start.wait(10)
            move_all(DueJobMover(Keys(), connection))
        except BaseException as error:  # noqa: BLE001 - asserted below
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=lead) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert Counter(found["jid"] for found in queued(redis)) == {str(n): 1 for n in range(count)}
    assert redis.exists("schedule") == 0


def next_due(mover: DueJobMover, *, watch: bool = False) -> float | None:
    mover.load(watch=watch)
    return mover.next_due()


def test_the_next_due_time_is_the_earliest_of_both_sets(mover: DueJobMover, redis: Redis) -> None:
    assert next_due(mover) is None
    redis.zadd("schedule", {job(jid="1"): 2e9})
    assert next_due(mover) == 2e9
    redis.zadd("retry", {job(jid="2"): 1.9e9 + 0.25})
    assert next_due(mover) == 1.9e9 + 0.25


@pytest.mark.parametrize("name", ["schedule", "retry"])
def test_the_next_due_time_is_known_after_the_last_move(
    mover: DueJobMover, redis: Redis, name: str
) -> None:
    redis.zadd(name, {job(jid="due"): 1, job(jid="later"): 2e9 + 0.5})
    move_all(mover)
    assert mover.next_due() == 2e9 + 0.5


@pytest.mark.parametrize("name", ["schedule", "retry"])
@pytest.mark.parametrize("moved", [False, True])
def test_a_change_of_either_set_is_reported(
    mover: DueJobMover, redis: Redis, name: str, moved: bool
) -> None:
    """Also after the mover has changed the sets itself, which the server does not report to it."""
    mover.connection.call("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP")
    if moved:
        redis.zadd("schedule", {job(jid="s"): 1})
        redis.zadd("retry", {job(jid="r"): 1})
    mover.load(watch=True)
    while (due := mover.next_due()) is not None and due <= now():
        mover.work()
    assert mover.connection.wait(0) is False
    redis.zadd(name, {job(): 2e9})
    assert mover.connection.wait(10) is True
    assert next_due(mover, watch=True) == 2e9


def test_large_jobs_are_moved_one_by_one(mover: DueJobMover, redis: Redis) -> None:
    """A batch is bounded in bytes, so that it does not use up the memory of server and clock."""
    jobs = [large(jid=str(n)) for n in range(6)]
    redis.zadd("schedule", {payload: n for n, payload in enumerate(jobs)})
    most = 0
    mover.load(watch=False)
    while (due := mover.next_due()) is not None and due <= now():
        mover.work()
        most = max(most, len(mover.sets[0].batch))
    assert most == 2
    found: Any = redis.lrange("queue:q", 0, -1)
    assert sorted(found) == [payload.encode() for payload in jobs], "each as it was"


def large(**keys: Any) -> str:
    """A job of which the clock reads the beginning only."""
    first = {"class": "J", "queue": "q", **keys}
    return json.dumps({**first, "args": ["x" * (350 << 10)]})


@pytest.mark.parametrize("last", [{"queue": "q"}, {"queue": "q", "retry": True, "x": {"queue": 1}}])
def test_a_large_job_may_name_its_queue_after_its_arguments(
    mover: DueJobMover, redis: Redis, last: dict[str, Any]
) -> None:
    """As a program does that sorts the keys."""
    payload = json.dumps({"args": ["x" * (350 << 10)], "class": "J", **last})
    redis.zadd("schedule", {payload: 1})
    move_all(mover)
    assert redis.lrange("queue:q", 0, -1) == [payload.encode()]
    assert not redis.exists("dead")


@pytest.mark.parametrize("first", [{"meta": {"queue": "other"}}, {"class": "args"}])
def test_no_value_of_a_large_job_is_taken_for_its_queue(
    mover: DueJobMover, redis: Redis, first: dict[str, Any]
) -> None:
    payload = json.dumps({**first, **json.loads(large(**first))})
    redis.zadd("schedule", {payload: 1})
    move_all(mover)
    assert redis.lrange("queue:q", 0, -1) == [payload.encode()]
    assert not redis.exists("queue:other", "dead")


def test_a_large_job_that_has_failed_with_a_long_error_is_retried(
    mover: DueJobMover, redis: Redis
) -> None:
    """The program that pushed it writes the queue behind the arguments."""
    payload = json.dumps({"args": ["x" * (350 << 10)], "class": "J", "jid": "1", "queue": "q"})
    unit = UnitOfWork(1, "q", 1, payload.encode())
    decision = decide(unit, None, ValueError("no " * 3000), lambda error, meaning: None)
    assert isinstance(decision, Retry)
    redis.zadd("retry", {decision.payload: 1})
    move_all(mover)
    assert [found["jid"] for found in queued(redis)] == ["1"]
    assert not redis.exists("dead")


def test_a_large_job_that_names_no_queue_at_either_end_is_buried(
    mover: DueJobMover, redis: Redis
) -> None:
    payload = json.dumps({"class": "J", "args": ["x" * (350 << 10), {"queue": "q"}]})
    redis.zadd("schedule", {payload: 1, large(jid="next"): 2})
    move_all(mover)
    assert redis.zrange("dead", 0, -1) == [payload.encode()]
    assert redis.llen("queue:q") == 1


def test_suspects_go_to_their_own_list(mover: DueJobMover, redis: Redis) -> None:
    marks = {"forkq": {"suspect": True}}
    flagged = json.dumps({**json.loads(large()), **marks})
    redis.zadd("retry", {job(jid="1", **marks): 1, job(jid="2"): 2, flagged: 3})
    move_all(mover)
    found: Any = redis.lrange("{queue:q}:suspects", 0, -1)
    assert [len(payload) > 300_000 for payload in found] == [True, False]
    assert redis.smembers("forkq:suspects") == {b"q"}
    assert [job["jid"] for job in queued(redis)] == ["2"]


def test_a_job_is_moved_only_if_it_is_still_there(mover: DueJobMover, redis: Redis) -> None:
    """Between the reading and the move it may have been deleted, or enqueued by hand."""
    redis.zadd("schedule", {job(jid="gone"): 1, job(jid="there"): 2})
    mover.load(watch=False)
    mover.work()
    assert len(mover.sets[0].batch) == 2
    redis.zrem("schedule", job(jid="gone"))
    mover.work()
    assert [found["jid"] for found in queued(redis)] == ["there"]


@pytest.mark.parametrize("name", ["schedule", "retry"])
def test_changes_of_the_set_do_not_put_off_what_is_due(
    mover: DueJobMover, redis: Redis, name: str
) -> None:
    """A busy clock reads the sets anew before each step, since each has changed meanwhile."""
    redis.zadd(name, {job(jid="due"): now() - 1})
    for number in range(3):
        redis.zadd(name, {job(jid=f"later{number}"): now() + 60})
        mover.load(watch=False)
        mover.work()
    assert [found["jid"] for found in queued(redis)] == ["due"]


def test_a_batch_that_was_found_long_ago_is_read_anew(
    mover: DueJobMover, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person has given the job another time since."""
    redis.zadd("schedule", {job(jid="due"): now() - 1})
    mover.load(watch=False)
    mover.work()  # finds it
    redis.zadd("schedule", {job(jid="due"): now() + 60})
    later = time.monotonic() + 11
    monkeypatch.setattr(due_jobs, "monotonic", lambda: later)
    mover.load(watch=False)
    mover.work()
    assert (queued(redis), redis.zcard("schedule")) == ([], 1)


def test_a_job_of_a_damaged_queue_waits_and_delays_no_other(
    mover: DueJobMover, redis: Redis
) -> None:
    """It is tried again every minute, until the key is moved away."""
    damaged: list[str] = []
    mover.on_damaged_queues = damaged.extend
    redis.set("queue:odd", "no list")
    redis.zadd("schedule", {job(jid="1", queue="odd"): 1, job(jid="2"): 2})
    move_all(mover)
    assert [found["jid"] for found in payloads(redis, "schedule")] == ["1"]
    [(member, due)] = cast("list[tuple[bytes, float]]", redis.zscan("schedule")[1])
    assert 50 < due - now() <= 60
    assert not redis.exists("dead")
    assert damaged == ["odd"]
    assert [found["jid"] for found in queued(redis)] == ["2"]
    redis.rename("queue:odd", "damaged:queue:odd")
    redis.zincrby("schedule", -60, member)
    move_all(mover)
    assert [found["jid"] for found in queued(redis, "odd")] == ["1"]


@pytest.mark.parametrize("broken", ["queues", "dead"])
def test_a_key_of_the_wrong_type_loses_no_job(
    mover: DueJobMover, redis: Redis, broken: str
) -> None:
    """A job that cannot be moved stays in its set, with a later time."""
    redis.set(broken, "neither set nor sorted set")
    redis.set("queue:odd", "no list")
    redis.zadd("retry", {"{nope": 1, job(jid="1"): 2, job(jid="2", queue="odd"): 3})
    move_all(mover)
    assert [found["jid"] for found in queued(redis)] == ["1"]
    assert redis.zcard("retry") == (2 if broken == "dead" else 1)
    assert redis.zcount("retry", "-inf", now()) == 0
    assert broken == "dead" or redis.zcard("dead") == 1


def test_a_damaged_set_raises_the_servers_error(mover: DueJobMover, redis: Redis) -> None:
    redis.set("retry", "no set")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        mover.load(watch=False)
    redis.delete("retry")
    assert next_due(mover) is None


def test_moving_works_on_a_full_server(own_server: Server) -> None:
    redis, connection = own_server.client(), RedisConnection(own_server.url)
    redis.zadd("schedule", {job(): 1, "{nope": 1})
    own_server.cli("CONFIG", "SET", "maxmemory", 1)
    connection.connect()
    move_all(DueJobMover(Keys(), connection))
    connection.close()
    assert len(queued(redis)) == 1
    assert redis.zrange("dead", 0, -1) == [b"{nope"]


def test_under_a_prefix_only_its_own_jobs_move(redis: Redis, redis_server: Server) -> None:
    redis.zadd("schedule", {job(jid="other"): 1})
    redis.zadd("app:schedule", {job(jid="mine"): 1})
    connection = RedisConnection(redis_server.url)
    connection.connect()
    move_all(DueJobMover(Keys("app:"), connection))
    connection.close()
    assert redis.zcard("schedule") == 1
    assert redis.llen("app:queue:q") == 1
    assert redis.smembers("app:queues") == {b"q"}
