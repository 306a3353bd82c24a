"""Jobs that sleep, or wait for a signal: they give their worker back, and go on once."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import api, middleware, registry
from forkq.api.features.steps import waiting_jobs
from forkq.child.failure.ends import Ends
from forkq.child.failure.retry import Sleeps
from forkq.child.failure.steps import wait_call
from forkq.clock import signalled_jobs
from forkq.clock.due_jobs import DueJobMover
from forkq.clock.signalled_jobs import SignalledJobs
from forkq.config.shards import Shard
from forkq.features.steps.parts import RememberedStep, SignalWait, pause, read, waiting_for
from forkq.servers import Server as Server_
from forkq.sharded_client import ShardedClient
from forkq.steps import signals
from forkq.store.connection import Call, DamagedKey, RedisConnection, pack
from forkq.store.dead_set import DeadSetLimits
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from forkq.wire.payload import dumps, loads
from forkq.wire.times import now
from tests.redis.in_process_child import IDENTITY, InProcessChild
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.waiting import wait_until

KEYS = Keys()
QUEUE, INFLIGHT = "queue:default", "{queue:default}:inflight"
EVENT = KEYS.event("approved:7")
DAYS = 86_400
calls: list[Any] = []
fails: list[BaseException] = []


def note(what: Any) -> None:
    calls.append(what)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    calls.clear()
    fails.clear()

    @forkq.job(name="naps")
    def naps() -> None:
        forkq.step("before", note, "before")
        forkq.sleep("nap", timedelta(days=3))
        if fails:
            raise fails.pop()
        forkq.step("after", note, "after")

    @forkq.job(name="async_naps")
    async def async_naps() -> None:
        await forkq.astep("before", note, "before")
        await forkq.asleep("nap", 3 * DAYS)
        if fails:
            raise fails.pop()
        await forkq.astep("after", note, "after")

    @forkq.job(name="waits")
    def waits() -> None:
        forkq.step("before", note, "before")
        note(data_of(forkq.wait_for("approved", key=7, timeout=3 * DAYS)))
        if fails:
            raise fails.pop()

    @forkq.job(name="async_waits")
    async def async_waits() -> None:
        await forkq.astep("before", note, "before")
        note(data_of(await forkq.await_for("approved", key=7, timeout=timedelta(days=3))))
        if fails:
            raise fails.pop()


def data_of(signal: forkq.Signal | None) -> Any:
    return "none" if signal is None else signal.data


@pytest.fixture
def connection(redis_server: Server) -> Iterator[RedisConnection]:
    connection = RedisConnection(redis_server.url)
    connection.connect()
    yield connection
    connection.close()


@pytest.fixture
def run(redis: Redis, redis_server: Server) -> Callable[[], InProcessChild]:
    """Runs what waits in the queue, in one child."""

    def until_over() -> InProcessChild:
        with InProcessChild(redis_server.url, concurrency=1) as child:
            wait_until(lambda: not redis.exists(QUEUE, INFLIGHT), what="the job")
        return child

    return until_over


def push(redis: Redis, name: str, jid: str = "m1", **keys: Any) -> bytes:
    redis.sadd("queues", "default")
    job = {"class": name, "args": [], "queue": "default", "jid": jid, "retry": 5}
    raw = dumps({**job, "created_at": 1.5, "enqueued_at": 1.5, **keys})
    redis.lpush(QUEUE, raw)
    return raw


def entries(redis: Redis, place: str = "schedule") -> list[tuple[dict[str, Any], float]]:
    found: Any = redis.zrange(place, 0, -1, withscores=True)
    return [(loads(raw), score) for raw, score in found]


def move_due(connection: RedisConnection) -> None:
    mover = DueJobMover(KEYS, connection)
    mover.load(watch=False)
    while (due := mover.next_due()) is not None and due <= now():
        mover.work()


def let_pass(redis: Redis, connection: RedisConnection, name: str, jid: str = "m1") -> None:
    """Lets the time of a pause pass: nothing else knows of it."""
    end = now() - 1
    for place in ("schedule", "retry"):
        waiting: Any = redis.zrange(place, 0, -1)
        for raw in waiting:
            redis.zadd(place, {raw: end})
    kept: Any = redis.hget(KEYS.steps(jid), name)
    text = json.loads(kept)
    if "until" in text:
        redis.hset(KEYS.steps(jid), name, json.dumps({**text, "until": end}, separators=(",", ":")))
    move_due(connection)


def wake(connection: RedisConnection, log: Any = None) -> None:
    """What the leader does after a signal."""
    log = log or RecordedLog()
    leader = SignalledJobs(KEYS, connection, log)
    leader.load(watch=False)
    while leader.next_due() is not None:
        leader.work()
    move_due(connection)


@pytest.mark.parametrize("name", ["naps", "async_naps"])
def test_a_job_that_sleeps_gives_its_worker_back_and_goes_on(
    redis: Redis, connection: RedisConnection, run: Callable[[], Any], name: str
) -> None:
    """Under its jid, without a retry; the end of the sleep is remembered, and passes once."""
    push(redis, name, forkq={"snoozed": {"since": 1.5, "count": 7}})
    child = run()
    [(job, due)] = entries(redis)
    assert due == pytest.approx(now() + 3 * DAYS, abs=60)
    assert (job["jid"], job["forkq"]) == ("m1", {"needs": {"steps": True}, "v": 7})
    assert not {"retry_count", "error_message", "failed_at"} & job.keys()
    assert redis.ttl(KEYS.steps("m1")) > 182 * DAYS
    [told] = [more for _, event, more in child.log.lines if event == "asleep"]
    assert (told["step"], told["again_in"]) == ("nap", "3 d")
    fails.append(ValueError())
    let_pass(redis, connection, "nap")
    run()
    assert [job["retry_count"] for job, _ in entries(redis, "retry")] == [0]
    let_pass(redis, connection, "nap")
    run()
    assert calls == ["before", "after"]
    assert not redis.exists("schedule", "retry", KEYS.steps("m1"))


def test_a_job_that_is_sent_to_its_queue_early_sleeps_on(
    client: Any, redis: Redis, run: Callable[[], Any]
) -> None:
    push(redis, "naps")
    run()
    [(_, due)] = entries(redis)
    next(iter(api.ScheduledSet())).add_to_queue()
    run()
    assert [(job["jid"], score) for job, score in entries(redis)] == [("m1", due)]
    assert calls == ["before"]


def test_a_sleep_beyond_the_expiry_ends_the_job(redis: Redis, run: Callable[[], Any]) -> None:
    needs = {"expires_at": now() + DAYS}
    push(redis, "naps", forkq={"v": 1, "needs": needs}, expiry=needs["expires_at"])
    child = run()
    assert not redis.exists("schedule", KEYS.steps("m1"))
    [told] = [more for _, event, more in child.log.lines if event == "expired"]
    assert "beyond its expiry" in told["reason"]


@pytest.mark.parametrize("name", ["waits", "async_waits"])
def test_a_signal_that_came_before_is_taken_at_once(
    client: Any, redis: Redis, run: Callable[[], Any], name: str
) -> None:
    assert forkq.signal("approved", key=7, data={"by": "ann"})
    push(redis, name)
    run()
    assert calls == ["before", {"by": "ann"}]
    assert not redis.exists("schedule", KEYS.steps("m1"))
    assert 29 * DAYS < redis.ttl(EVENT) <= 30 * DAYS
    push(redis, name, "m2")  # it stays for later waits
    run()
    assert calls[2:] == ["before", {"by": "ann"}]


@pytest.mark.parametrize("name", ["waits", "async_waits"])
def test_a_signal_wakes_the_job_that_waits(
    client: Any, redis: Redis, connection: RedisConnection, run: Callable[[], Any], name: str
) -> None:
    """The next run, too, gets the same."""
    push(redis, name)
    child = run()
    [(job, due)] = entries(redis)
    assert due == pytest.approx(now() + 3 * DAYS, abs=60)
    assert job["forkq"]["needs"] == {"steps": True, "waits": "approved:7"}
    [told] = [more for _, event, more in child.log.lines if event == "asleep"]
    assert told["step"] == "approved:7"
    assert forkq.signal("approved", key=7, data=[1])
    assert not forkq.signal("approved", key=7, data=[2])  # the first one counts
    assert redis.smembers(KEYS.signalled) == {b"approved:7"}
    wake(connection)
    assert not redis.exists("schedule", KEYS.signalled)
    fails.append(ValueError())
    run()
    assert calls == ["before", [1]]
    let_pass(redis, connection, "approved:7")
    run()
    assert calls == ["before", [1], [1]]
    assert redis.hkeys(EVENT) == [b""]


def test_a_job_that_snoozes_after_its_wait_does_not_wait_any_more(
    client: Any, redis: Redis, connection: RedisConnection, run: Callable[[], Any]
) -> None:
    """Pages, `forkq steps` and doctor would tell that no signal wakes it."""
    push(redis, "waits")
    run()
    assert [one.jid for one in waiting_jobs()] == ["m1"]
    forkq.signal("approved", key=7)
    wake(connection)
    fails.append(forkq.Snooze(600))
    run()
    assert calls == ["before", None]
    [(job, _)] = entries(redis)
    assert job["forkq"]["needs"] == {"steps": True}
    assert waiting_jobs() == []


def test_a_wait_that_times_out_stays_so(
    client: Any, redis: Redis, connection: RedisConnection, run: Callable[[], Any]
) -> None:
    """A signal that comes between its time and its run is too late: the time-out came first."""
    push(redis, "waits")
    run()
    let_pass(redis, connection, "approved:7")
    assert forkq.signal("approved", key=7)
    fails.append(ValueError())
    run()
    assert calls == ["before", "none"]
    wake(connection)
    let_pass(redis, connection, "approved:7")
    run()
    assert calls == ["before", "none", "none"]


def test_a_wait_of_no_time_only_looks(client: Any, redis: Redis, run: Callable[[], Any]) -> None:
    @forkq.job(name="looks")
    def looks() -> None:
        note(data_of(forkq.wait_for("approved", key=7, timeout=0)))
        note(data_of(forkq.wait_for("approved", key=7, timeout=0, name="again")))

    push(redis, "looks")
    run()
    assert calls == ["none", "none"]
    forkq.signal("approved", key=7, data=1)
    push(redis, "looks", "m2")
    run()
    assert calls[2:] == [1, 1]


def test_a_signal_in_time_counts_though_the_leader_was_late(
    client: Any, redis: Redis, connection: RedisConnection, run: Callable[[], Any]
) -> None:
    """The job comes to its run by its time-out, before the leader has seen the signal."""
    push(redis, "waits")
    run()
    forkq.signal("approved", key=7, data="yes")
    let_pass(redis, connection, "approved:7")
    kept: Any = redis.hget(KEYS.steps("m1"), "approved:7")
    text = {**json.loads(kept), "until": now()}
    redis.hset(KEYS.steps("m1"), "approved:7", json.dumps(text, separators=(",", ":")))
    run()
    assert calls == ["before", "yes"]
    wake(connection)
    assert redis.hkeys(EVENT) == [b""]
    assert not redis.exists(KEYS.steps("m1"), KEYS.signalled)


def test_a_signal_for_one_is_that_of_the_oldest(
    client: Any, redis: Redis, connection: RedisConnection, run: Callable[[], Any]
) -> None:
    """One that has ended since takes none, also if another program has deleted it."""
    for jid in ("m0", "m1", "m2", "m3"):
        push(redis, "waits", jid)
        run()
    raw: Any = next(entry for entry in api.ScheduledSet() if entry.jid == "m0").raw
    assert redis.zrem("schedule", raw) == 1
    redis.delete(KEYS.steps("m0"))
    [first] = [entry for entry in api.ScheduledSet() if entry.jid == "m1"]
    first.delete()
    assert set(redis.hkeys(EVENT)) == {b"m0", b"m2", b"m3"}
    calls.clear()
    for data in ("one", "two", "three"):
        assert forkq.signal("approved", key=7, data=data, for_one=True)
        wake(connection)
        run()
    assert calls == ["one", "two"]
    push(redis, "waits", "m4")
    run()
    assert calls == ["one", "two", "before", "three"]
    assert not redis.exists(KEYS.steps("m0"))
    assert not redis.exists(EVENT)


def test_a_signal_is_gone_after_its_time(client: Any, redis: Redis, run: Callable[[], Any]) -> None:
    assert forkq.signal("approved", key=7, data=1, ttl=timedelta(days=2))
    assert DAYS < redis.ttl(EVENT) <= 2 * DAYS
    old = f"{now() - 9:.6f} {now() - 5:.6f} 0 1"
    redis.hset(EVENT, "", old)  # its time is over, and jobs keep the event
    push(redis, "waits")
    run()
    assert calls == ["before"]
    assert forkq.signal("approved", key=7, data=2)


def test_a_signal_that_comes_between_the_run_and_its_end(
    client: Any, redis: Redis, connection: RedisConnection
) -> None:
    call = sleep_of(redis, "m1")
    forkq.signal("approved", key=7, data="between")
    assert not redis.exists(KEYS.signalled)  # no job waits yet
    assert connection.script(call.script, call.keys, call.arguments) == 1
    assert [score <= now() for _, score in entries(redis)] == [True]
    assert b'"between"' in (redis.hget(KEYS.steps("m1"), "approved:7") or b"")
    assert redis.hkeys(EVENT) == [b""]
    assert connection.script(call.script, call.keys, call.arguments) == 0


def sleep_of(redis: Redis, jid: str, lasts: float = 900.0) -> Call:
    """The call that ends the run of a job which waits."""
    kept = pause("approved:7", now() + lasts, "approved:7")
    job = {"class": "waits", "args": [], "queue": "default", "jid": jid}
    raw = dumps({**job, "forkq": {"v": 7, "needs": waiting_for({"steps": True}, kept)}})
    redis.hset(INFLIGHT, f"{IDENTITY}/7", raw)
    unit = UnitOfWork(1, "default", 7, raw)
    unit.marked = {name: loads(raw)[name] for name in ("class", "jid", "queue", "forkq")}
    ends = Ends(IDENTITY, KEYS, DeadSetLimits(KEYS))
    call: Call = ends.retry(unit, Sleeps(kept.until, raw, "waits", kept, jid)).call()
    return call


def contents(redis: Redis) -> dict[bytes, Any]:
    found: dict[bytes, Any] = {}
    for key in redis.scan_iter():
        kind: Any = redis.type(key)
        found[key] = {b"hash": redis.hgetall, b"zset": lambda k: redis.zrange(k, 0, -1)}.get(
            kind, lambda k: True
        )(key)
    return found


def test_a_child_that_is_killed_once_it_has_asked_to_sleep(
    redis: Redis, redis_server: Server, connection: RedisConnection
) -> None:
    """All is done, and only once."""
    call = sleep_of(redis, "m1")
    with socket.create_connection(("127.0.0.1", redis_server.port or 0)) as killed:
        text = call.script.text  # the server may not know the script
        killed.sendall(pack([("EVAL", text, *call.command[2:])]))
    wait_until(lambda: not redis.exists(INFLIGHT), what="the end")
    after = contents(redis)
    assert (redis.zcard("schedule"), redis.hlen(EVENT)) == (1, 1)
    assert connection.script(call.script, call.keys, call.arguments) == 0
    assert contents(redis) == after


@pytest.mark.parametrize("for_one", [False, True])
def test_many_jobs_wait_for_one_signal(
    client: Any,
    redis: Redis,
    connection: RedisConnection,
    monkeypatch: pytest.MonkeyPatch,
    *,
    for_one: bool,
) -> None:
    """No step of the leader reads all of them; one that was damaged keeps no other one from it."""
    monkeypatch.setattr(signalled_jobs, "_PAGE", 7)
    redis.hset(EVENT, mapping={"damaged": "x", "odd": "1.5 -1 3 abc", "nan": "nan 9 1 x"})
    for number in range(50):
        call = sleep_of(redis, f"m{number}")
        connection.script(call.script, call.keys, call.arguments)
    forkq.signal("approved", key=7, for_one=for_one)
    largest, read = 0, SignalledJobs._read

    def measured(leader: SignalledJobs, scan: Any) -> Any:
        nonlocal largest
        cursor, found = read(leader, scan)
        largest = max(largest, len(found))
        return cursor, found

    monkeypatch.setattr(SignalledJobs, "_read", measured)
    log = RecordedLog()
    wake(connection, log)
    assert redis.llen(QUEUE) == (1 if for_one else 50)
    assert redis.hlen(EVENT) == (52 if for_one else 4)
    assert largest < 30
    assert redis.zcard("schedule") == (49 if for_one else 0)
    assert not redis.exists(KEYS.signalled)
    assert {"damaged", "nan"} <= {more["jid"] for _, _, more in log.lines}


def test_a_signal_for_one_passes_over_jobs_whose_time_is_up(
    client: Any, redis: Redis, connection: RedisConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of them waits in a queue that is full, and another page is damaged: no one of these
    takes the signal, and the leader does not look at them again and again."""
    monkeypatch.setattr(signalled_jobs, "_PAGE", 3)
    for number in range(6):
        call = sleep_of(redis, f"late{number}", lasts=-60.0)
        connection.script(call.script, call.keys, call.arguments)
        redis.hset(EVENT, f"odd{number}", f"{number}.5 -1 3 abc")
    call = sleep_of(redis, "m1")
    connection.script(call.script, call.keys, call.arguments)
    forkq.signal("approved", key=7, for_one=True)
    log = RecordedLog()
    leader = SignalledJobs(KEYS, connection, log)
    leader.load(watch=False)
    leader.work()
    assert leader.next_due() is None
    assert [score <= now() for job, score in entries(redis) if job["jid"] == "m1"] == [True]
    assert not redis.hexists(EVENT, "m1")
    assert redis.hlen(EVENT) == 12
    assert {more["jid"] for _, _, more in log.lines} == {f"odd{number}" for number in range(6)}


def test_a_signal_that_another_program_has_written_stops_no_other_one(
    client: Any, redis: Redis, connection: RedisConnection
) -> None:
    """It is none: jobs wait on, and the next signal counts."""
    call = sleep_of(redis, "m1")
    connection.script(call.script, call.keys, call.arguments)
    redis.hset(EVENT, "", "soon later 0 1")
    redis.sadd(KEYS.signalled, "approved:7")
    wake(connection)
    assert not redis.exists(KEYS.signalled)
    assert redis.hexists(EVENT, "m1")
    assert forkq.signal("approved", key=7)
    wake(connection)
    assert redis.llen(QUEUE) == 1


def test_a_new_signal_during_a_look_is_not_forgotten(
    client: Any, redis: Redis, connection: RedisConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader has read an old signal, whose time ends, and a job begins to wait for the next."""
    call = sleep_of(redis, "m1")
    connection.script(call.script, call.keys, call.arguments)
    forkq.signal("approved", key=7, data="old", for_one=True)
    reading = SignalledJobs._read

    def meanwhile(leader: SignalledJobs, scan: Any) -> Any:
        found = reading(leader, scan)
        monkeypatch.setattr(SignalledJobs, "_read", reading)
        redis.hdel(EVENT, "")
        call = sleep_of(redis, "m2")
        connection.script(call.script, call.keys, call.arguments)
        forkq.signal("approved", key=7, data="new")
        return found

    monkeypatch.setattr(SignalledJobs, "_read", meanwhile)
    wake(connection)
    assert redis.llen(QUEUE) == 2
    assert not redis.exists(KEYS.signalled)


def test_a_signal_goes_to_every_shard(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also to the others if one is away; one for a single job is refused."""
    url = redis_server.url
    shards = [Shard("default", url), Shard("a", url, prefix="a:"), Shard("b", url, prefix="b:")]
    sharded = ShardedClient(shards, "default", url)
    monkeypatch.setattr(signals, "default", lambda: sharded)
    run_on = Server_.run

    def cut(server: Server_, *more: Any) -> Any:
        if server.name == "a":
            raise forkq.ServerUnavailable("a is away")
        return run_on(server, *more)

    try:
        monkeypatch.setattr(Server_, "run", cut)
        with pytest.raises(forkq.ServerUnavailable, match="a is away"):
            forkq.signal("approved", key=7)
        monkeypatch.setattr(Server_, "run", run_on)
        events = (EVENT, f"a:{EVENT}", f"b:{EVENT}")
        assert [redis.exists(event) for event in events] == [1, 0, 1]
        assert forkq.signal("approved", key=7)  # so it is sent again
        assert [redis.exists(event) for event in events] == [1, 1, 1]
        assert not forkq.signal("approved", key=7)
        with pytest.raises(forkq.ForkqError, match="is for one job, and there are 3 shards"):
            forkq.signal("approved", key=8, for_one=True)
    finally:
        sharded.close()


def test_an_event_of_another_type_fails_the_job(redis: Redis, run: Callable[[], Any]) -> None:
    redis.set(EVENT, "x")
    push(redis, "waits")
    run()
    [(job, _)] = entries(redis, "retry")
    assert EVENT in job["error_message"]
    assert calls == ["before"]


def test_an_event_of_another_type_keeps_no_other_signal_from_its_jobs(
    client: Any, redis: Redis, connection: RedisConnection, run: Callable[[], Any]
) -> None:
    """The leader tells of it once, and forgets it."""
    push(redis, "waits")
    run()
    forkq.signal("approved", key=7)
    redis.set(KEYS.event("a"), "x")
    redis.sadd(KEYS.signalled, "a")  # the first in the leader's order
    with pytest.raises(DamagedKey, match="forkq:event:a"):
        wake(connection)
    wake(connection)
    assert not redis.exists(KEYS.signalled, "schedule")


def test_what_is_no_wait_sleep_or_signal(client: Any, redis: Redis, run: Callable[[], Any]) -> None:
    def refused(job: Callable[[], Any]) -> str:
        redis.delete("retry")
        forkq.job(name="odd")(job)
        push(redis, "odd")
        run()
        registry._jobs.pop("odd")
        [(found, _)] = entries(redis, "retry")
        return str(found["error_message"])

    odd: Any = 1.5

    async def in_loop() -> None:
        forkq.wait_for("approved", timeout=5)

    def kinds() -> None:
        forkq.step("nap", note, 1)
        if fails:
            raise fails.pop()

    assert "write `await forkq.await_for" in refused(in_loop)
    wait_for: Any = forkq.wait_for
    assert "forkq.wait_for takes a time-out" in refused(lambda: wait_for("approved"))
    assert "got the time -1" in refused(lambda: forkq.sleep("nap", -1))
    assert "without a colon" in refused(lambda: forkq.wait_for("a:b", timeout=5))
    assert "the key of the event" in refused(lambda: forkq.wait_for("a", key=odd, timeout=5))
    text = refused(lambda: forkq.step("outer", lambda: forkq.sleep("inner", 5)))
    assert 'was called in the function of the step "outer"' in text
    redis.hset(KEYS.steps("m1"), "nap", json.dumps({"until": now() - 5, "at": 1.5}))
    assert 'remembers "nap" as one of forkq.sleep' in refused(kinds)
    redis.delete(KEYS.steps("m1"))
    set_of_data: Any = {1, 2}
    with pytest.raises(forkq.InvalidJob, match=r"data is a set.*; send a sorted list"):
        forkq.signal("approved", key=7, data=set_of_data)
    with pytest.raises(forkq.InvalidJob, match=r"has 300,002 bytes.*most is 65,536: send an id"):
        forkq.signal("approved", key=7, data="x" * 300_000)
    odd_keywords: Any = ({"ttl": 0}, {"ttl": "1"}, {"data": object()}, {"data": "x" * 70_000})
    for odd in odd_keywords:
        with pytest.raises(forkq.ForkqError):
            forkq.signal("approved", key=7, **odd)
    with pytest.raises(forkq.ForkqError, match="outside of a running job"):
        forkq.sleep("nap", 5)
    with pytest.raises(forkq.ForkqError, match="outside of a running job"):
        asyncio.run(forkq.await_for("approved", timeout=5))


class Story:
    """Jobs that wait for one event, signals, and a leader, in a random order. What each job gets
    is compared with what a person would say who has seen all of it."""

    def __init__(self, seed: int, redis: Redis, connection: RedisConnection) -> None:
        self.random = random.Random(seed)
        self.redis, self.connection = redis, connection
        self.ends = Ends(IDENTITY, KEYS, DeadSetLimits(KEYS))
        self.state = {f"m{number}": "new" for number in range(4)}
        self.got: dict[str, list[Any]] = {jid: [] for jid in self.state}
        self.sent: dict[int, bool] = {}  # the number of a signal, and whether it is for one

    def play(self) -> None:
        acts = (self.begin, self.begin, self.signal, self.leader, self.leader, self.run, self.end)
        for _ in range(30):
            self.random.choice(acts)()
        for _ in range(3):
            self.leader()
            for jid in self.state:
                self.run(jid)

    def pick(self, *states: str) -> str | None:
        found = [jid for jid, state in self.state.items() if state in states]
        return self.random.choice(found) if found else None

    def look(self, jid: str) -> bytes:
        """What a run finds: the job is leased, and asks."""
        raw = dumps({"class": "waits", "args": [], "queue": "default", "jid": jid})
        self.redis.hset(INFLIGHT, f"{IDENTITY}/7", raw)
        kept: Any = self.redis.hget(KEYS.steps(jid), "approved:7")
        begun = None if kept is None else read(kept)
        if begun is not None and not begun.until:
            if self.random.random() < 0.5:
                return bytes(kept)
            begun = RememberedStep(now(), until=now() + 900, event="approved:7")  # as read before
        wait = SignalWait("approved:7", "approved:7", 900.0, begun)
        call = wait_call(self.ends, UnitOfWork(1, "default", 7, raw), jid, raw, len(raw), wait)
        reply: bytes = self.connection.script(call.script, call.keys, call.arguments)
        return reply

    def note(self, jid: str, reply: bytes) -> None:
        self.got[jid].append(json.loads(reply)["signal"]["data"])
        self.state[jid] = "over"

    def begin(self) -> None:
        if (jid := self.pick("new")) is None:
            return
        if reply := self.look(jid):
            self.note(jid, reply)
            return
        call = sleep_of(self.redis, jid)
        if self.random.random() < 0.3:
            self.signal()  # between the run and its end
        assert self.connection.script(call.script, call.keys, call.arguments) == 1
        self.state[jid] = "waits"

    def signal(self) -> None:
        number, for_one = len(self.sent), self.random.random() < 0.5
        if forkq.signal("approved", key=7, data=number, for_one=for_one):
            self.sent[number] = for_one

    def leader(self) -> None:
        wake(self.connection)

    def run(self, jid: str | None = None) -> None:
        """A job runs that is due, or that a person has sent to its queue."""
        jid = jid or self.pick("waits", "over")
        if jid is None or self.state[jid] not in ("waits", "over"):
            return
        waiting: Any = self.redis.lrange(QUEUE, 0, -1)
        due = [raw for raw in waiting if loads(raw)["jid"] == jid]
        for raw in due:
            self.redis.lrem(QUEUE, 1, raw)
        reply = self.look(jid)
        if reply:
            self.note(jid, reply)
        elif due:
            raise AssertionError(f"{jid} was woken without a signal")

    def end(self) -> None:
        """A job is deleted that waits."""
        if self.random.random() < 0.2 and (jid := self.pick("waits")) is not None:
            for entry in api.ScheduledSet():
                if entry.jid == jid:
                    entry.delete()
                    self.state[jid] = "gone"

    def check(self) -> None:
        for jid, found in self.got.items():
            assert len(set(found)) <= 1, f"{jid} got {found}"
        taken = [found[0] for found in self.got.values() if found]
        for number, for_one in self.sent.items():
            assert taken.count(number) <= 1 or not for_one
        left = signal_left(self.redis)
        waiting = [jid for jid, state in self.state.items() if state == "waits"]
        assert left is None or not waiting, f"{waiting} wait, and signal {left} stands there"
        assert not self.redis.exists(KEYS.signalled)


def signal_left(redis: Redis) -> int | None:
    found: Any = redis.hget(EVENT, "")
    return None if found is None else int(found.rpartition(b" ")[2])


@pytest.mark.parametrize(
    "seeds", [range(25), pytest.param(range(25, 1500), marks=pytest.mark.slow)]
)
def test_signals_and_waits_in_any_order(
    client: Any, redis: Redis, connection: RedisConnection, seeds: range
) -> None:
    for seed in seeds:
        redis.flushall()
        redis.sadd("queues", "default")
        story = Story(seed, redis, connection)
        try:
            story.play()
            story.check()
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {story.state} {story.got} {story.sent}") from error
