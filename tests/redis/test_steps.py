"""Durable steps: a step is done once for each job, whatever becomes of its runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

import pytest
from redis import Redis

import forkq
from forkq import middleware, registry
from forkq.child.failure import steps
from forkq.child.failure.ends import Ends
from forkq.child.job_log import StepsLog
from forkq.features.steps import parts
from forkq.store.connection import ConnectionLost, RedisConnection
from forkq.store.crash_record import ProcessDeath
from forkq.store.dead_set import DeadSetLimits
from forkq.store.pool import RedisPool
from forkq.store.recovery import Recovery
from forkq.store.steps import carry_out
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from forkq.wire.payload import dumps, loads
from forkq.wire.times import now
from tests.redis.in_process_child import IDENTITY, InProcessChild
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.waiting import wait_until

QUEUE, INFLIGHT = "queue:default", "{queue:default}:inflight"
JID = "st0123456789"
KEY = Keys().steps(JID)
YEARS = 1000 * 86_400 * 179
calls: list[Any] = []
fails: list[BaseException] = []
names: list[str] = []


def work(name: str, value: Any = None) -> Any:
    """What a step does: notes that it was called, and with which key."""
    calls.append((name, forkq.step.key))
    return value


def fail_if_told() -> None:
    if fails:
        raise fails.pop()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    for each in (calls, fails, names):
        each.clear()
    names.extend(["charge", "ship"])

    @forkq.job(name="order")
    def order(value: Any) -> None:
        calls.extend(forkq.step(name, work, name, value=value) for name in names)
        fail_if_told()

    @forkq.job(name="async_order")
    async def async_order(value: Any) -> None:
        async def later(name: str) -> Any:
            await asyncio.sleep(0)
            return work(name, value)

        calls.append(await forkq.astep(names[0], later, names[0]))
        calls.append(await forkq.astep(names[1], work, names[1], value=value))
        fail_if_told()


@pytest.fixture
def run(redis: Redis, redis_server: Server) -> Callable[[], InProcessChild]:
    """Runs what waits in the queue, and what waits for its retry, in one child."""

    def until_over() -> InProcessChild:
        waiting: Any = redis.zrange("retry", 0, -1)
        for raw in waiting:
            redis.zrem("retry", raw)
            redis.lpush(QUEUE, raw)
        log = RecordedLog()
        with InProcessChild(redis_server.url, concurrency=1, observers=[StepsLog(log)]) as child:
            wait_until(lambda: not redis.exists(QUEUE, INFLIGHT), what="the job")
        child.log.lines += log.lines
        return child

    return until_over


def push(redis: Redis, value: Any = None, name: str = "order", **keys: Any) -> bytes:
    redis.sadd("queues", "default")
    job = {"class": name, "args": [value], "queue": "default", "jid": JID, "retry": 5}
    raw = dumps({**job, "created_at": 1.5, "enqueued_at": 1.5, **keys})
    redis.lpush(QUEUE, raw)
    return raw


def only(redis: Redis, place: str) -> dict[str, Any]:
    found: Any = redis.zrange(place, 0, -1)
    [raw] = found
    return loads(raw)


def commands(redis: Redis) -> dict[str, int]:
    found: Any = redis.info("commandstats")
    return {name.removeprefix("cmdstat_"): info["calls"] for name, info in found.items()}


def called(name: str) -> tuple[str, str]:
    return name, f"{JID}:{name}"


@pytest.mark.parametrize("name", ["order", "async_order"])
def test_a_retry_skips_what_is_done(redis: Redis, run: Callable[[], Any], name: str) -> None:
    """It gets the same value, and the step asks another service with the same key."""
    fails.append(ValueError("later"))
    push(redis, [1, {"a": "é"}], name)
    run()
    value = [1, {"a": "é"}]
    assert calls == [called("charge"), value, called("ship"), value]
    job = only(redis, "retry")
    assert (list(job)[-1], job["forkq"]) == ("forkq", {"v": 7, "needs": {"steps": True}})
    assert redis.hlen(KEY) == 3  # with the bytes of all
    assert redis.pttl(KEY) > YEARS
    calls.clear()
    run()
    assert calls == [value, value]
    assert not redis.exists("retry", KEY)


@pytest.mark.parametrize("name", ["order", "async_order"])
def test_a_failed_step_is_not_remembered(
    redis: Redis, run: Callable[[], Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no money")

    push(redis, 7, name)
    before = work
    monkeypatch.setitem(globals(), "work", fail)
    run()
    assert not redis.exists(KEY)
    monkeypatch.setitem(globals(), "work", before)
    run()
    assert calls == [called("charge"), 7, called("ship"), 7]


def test_a_tuple_is_the_list_that_a_later_run_gets(redis: Redis, run: Callable[[], Any]) -> None:
    @forkq.job(name="pair")
    def pair(value: Any) -> None:
        calls.append(forkq.step("pair", lambda: (1, (2, None))))

    push(redis, name="pair")
    run()
    assert calls == [[1, [2, None]]]


def test_the_first_step_reads_all_and_a_skipped_one_asks_nothing(
    redis: Redis, run: Callable[[], Any]
) -> None:
    names[:] = [f"page:{number}" for number in range(10)]
    fails.append(ValueError())
    push(redis)
    redis.config_resetstat()
    run()
    first = commands(redis)
    redis.config_resetstat()
    run()
    second = commands(redis)
    assert (first["hgetall"], second["hgetall"]) == (1, 1)
    assert first["hincrby"] == 10  # one for each step that is saved
    assert "hincrby" not in second
    assert first["evalsha"] + first.get("eval", 0) - second["evalsha"] - second.get("eval", 0) >= 8


def test_a_job_without_steps_asks_nothing(redis: Redis, run: Callable[[], Any]) -> None:
    names.clear()
    push(redis)
    redis.config_resetstat()
    run()
    assert "hgetall" not in commands(redis)


def test_a_run_that_lost_its_lease_records_nothing(redis: Redis, run: Callable[[], Any]) -> None:
    @forkq.job(name="loses")
    def loses(value: Any) -> None:
        forkq.step("first", redis.delete, INFLIGHT)
        calls.append("second")

    push(redis, name="loses")
    child = run()
    assert calls == []
    assert not redis.exists(KEY, "retry", "dead")
    assert [event for _, event, _ in child.log.lines if "another host" in event]


def test_a_lost_lease_ends_the_run_at_its_next_step(redis: Redis, run: Callable[[], Any]) -> None:
    """Also where the next step is remembered."""

    @forkq.job(name="loses")
    def loses(value: Any) -> None:
        forkq.step("first", calls.append, 1)
        view = forkq.current_job()
        assert view._run is not None
        view._run.unit.lost = True  # the heartbeat has found it so
        forkq.step("second", calls.append, 2)

    push(redis, name="loses")
    run()
    assert calls == [1]


def test_two_steps_of_one_name_are_an_error_at_once(redis: Redis, run: Callable[[], Any]) -> None:
    names[:] = ["charge", "charge"]
    push(redis)
    run()
    assert calls == [called("charge"), None]
    text = only(redis, "retry")["error_message"]
    assert text.startswith('two steps of one run are called "charge"')
    run()  # and the retry says the same
    assert calls == [called("charge"), None, None]


@pytest.mark.parametrize("name", ["", "  ", "x" * 201, 7, None, "\ud800"])
def test_what_is_no_name_is_refused(redis: Redis, run: Callable[[], Any], name: Any) -> None:
    names[:] = [name]
    push(redis)
    run()
    assert calls == []
    assert "step" in only(redis, "retry")["error_message"]


@pytest.mark.parametrize(
    ("value", "problem"),
    [("x" * 300_000, "300,002 bytes of JSON"), (object(), "JSON does not know")],
)
@pytest.mark.parametrize("name", ["order", "async_order"])
def test_a_value_that_cannot_be_kept_never_repeats_the_step(
    redis: Redis, run: Callable[[], Any], value: Any, problem: str, name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The job is dead at once, and again when a person retries it."""

    def charge(*_: Any, **__: Any) -> Any:
        calls.append("charged")
        return value

    monkeypatch.setitem(globals(), "work", charge)
    push(redis, None, name)
    run()
    text = only(redis, "dead")["error_message"]
    assert 'the step "charge" is done, and will not be done again' in text
    assert problem in text
    assert "Return less, such as an id" in text
    assert redis.pttl(KEY) > YEARS
    [raw] = cast("Any", redis.zrange("dead", 0, -1))
    redis.zrem("dead", raw)
    redis.lpush(QUEUE, raw)
    run()
    assert only(redis, "dead")["error_message"] == text
    assert calls == ["charged"]


@pytest.mark.parametrize(("bound", "most"), [("MOST", 2), ("MOST_BYTES", 150)])
def test_more_steps_than_a_job_may_have(
    redis: Redis, run: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    monkeypatch.setattr(parts, bound, most)
    names[:] = ["one", "two", "three", "four"]
    push(redis, "v" * 20)
    run()
    done = [name for name, *_ in calls if name in names]
    assert done == names[:3]
    assert parts.TOO_MANY in only(redis, "dead")["error_message"]
    left: Any = redis.hget(KEY, "three")
    assert json.loads(left)["problem"] == parts.TOO_MANY


def test_a_value_without_room_leaves_its_room_to_others(
    redis: Redis, run: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person has the job return less, and retries it: it goes on."""
    monkeypatch.setattr(parts, "MOST_BYTES", 1000)

    @forkq.job(name="grows")
    def grows(value: None) -> None:
        for name in names:
            forkq.step(name, work, name, "v" * 1500 if name == "large" else name)

    names[:] = ["one", "large"]
    push(redis, name="grows")
    run()
    assert parts.TOO_MANY in only(redis, "dead")["error_message"]
    [raw] = cast("Any", redis.zrange("dead", 0, -1))
    redis.zrem("dead", raw)
    redis.lpush(QUEUE, raw)
    names[:] = ["one", "small", "smaller"]
    run()
    assert [name for name, *_ in calls] == ["one", "large", "small", "smaller"]
    assert not redis.exists("dead", KEY)


def test_a_step_waits_while_redis_is_away(
    redis: Redis, run: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a reply was lost: the step is saved once, and done once."""
    connection, cuts = RedisPool.connection, [1, 1, 0, 1, 1, 0, 1]

    def cut(pool: RedisPool) -> Any:
        if cuts and cuts.pop(0):
            raise ConnectionLost[0]("cut")
        return connection(pool)

    push(redis, 3)
    monkeypatch.setattr(RedisPool, "connection", cut)
    run()
    assert calls == [called("charge"), 3, called("ship"), 3]
    assert not cuts


def test_a_child_that_is_to_stop_does_not_wait_for_redis(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job goes back to its queue, and has not failed."""
    raw = push(redis)

    def cut(pool: RedisPool) -> Any:
        names[0] = "seen"
        raise ConnectionLost[0]("cut")

    monkeypatch.setattr(RedisPool, "connection", cut)
    monkeypatch.setattr(steps, "stopping", lambda: True)
    with InProcessChild(redis_server.url, concurrency=1) as child:
        wait_until(lambda: names[0] == "seen", what="the run")
        child.manager.quiet()
    assert (redis.lrange(QUEUE, 0, -1), calls) == ([raw], [])


def test_steps_that_cannot_be_read_fail_the_job_and_nothing_is_done(
    redis: Redis, run: Callable[[], Any]
) -> None:
    push(redis)
    redis.set(KEY, "x")
    run()
    assert (calls, KEY in only(redis, "retry")["error_message"]) == ([], True)
    redis.delete(KEY)
    redis.hset(KEY, "charge", "[")
    run()
    assert (calls, only(redis, "retry")["retry_count"]) == ([], 1)
    assert "cannot be read" in only(redis, "retry")["error_message"]


def test_a_step_that_the_code_no_longer_has_is_told(redis: Redis, run: Callable[[], Any]) -> None:
    fails.append(ValueError())
    push(redis)
    run()
    names[1] = "send"  # the deploy that comes between has renamed it: it is done anew
    calls.clear()
    child = run()
    assert calls == [None, called("send"), None]
    [told] = [more for _, event, more in child.log.lines if "no longer" in event]
    assert (told["jid"], told["steps"]) == (JID, "ship")


def test_a_burial_after_a_crash_keeps_the_steps(redis: Redis, redis_server: Server) -> None:
    """The payload of the lease says from the first step on that there are some."""
    raw = push(redis)
    redis.delete(QUEUE)
    connection = RedisConnection(redis_server.url)
    connection.connect()
    lease = IDENTITY.replace(":0123", ":solo") + "/7"
    redis.hset(INFLIGHT, lease, raw)
    ends = Ends(lease[:-2], Keys(), DeadSetLimits(Keys()))
    unit = UnitOfWork(1, "default", 7, raw)
    records = [{"at": now(), "signal": 9, "alone": True} for _ in range(2)]
    failed = {"class": "forkq.errors.Crashed", "message": "died"}
    noted = {"crashes": records, "suspect": True, "failed": failed, "v": 7}
    grown = dumps({**loads(raw), "forkq": {**noted, "needs": {"steps": True}}})
    call = steps.save_call(ends, unit, JID, grown, len(raw), "charge", parts.done(1), b"{}")
    assert connection.script(call.script, call.keys, call.arguments) == 1
    assert redis.zscore(Keys().marked, "default") == float("inf")
    redis.expire(KEY, 50)
    recovery = Recovery(DeadSetLimits(Keys()))
    carry_out(connection, recovery.recover(["default"], lease[:-2], ProcessDeath(signal=9)))
    assert redis.zcard("dead") == 1
    assert redis.pttl(KEY) > YEARS
    connection.close()


def test_a_save_leaves_the_mark_of_the_master(redis: Redis, redis_server: Server) -> None:
    raw = push(redis)
    noted = raw[:-1] + b',"forkq":{"failed":{}}}'
    redis.hset(INFLIGHT, f"{IDENTITY}/7", noted)
    connection = RedisConnection(redis_server.url)
    connection.connect()
    ends, unit = Ends(IDENTITY, Keys(), DeadSetLimits(Keys())), UnitOfWork(1, "default", 7, raw)
    call = steps.save_call(ends, unit, JID, b"{}", len(raw), "charge", parts.done(1), b"{}")
    for _ in range(2):  # sent again after a lost reply: what is remembered stays
        assert connection.script(call.script, call.keys, call.arguments) == 1
    assert (redis.hget(INFLIGHT, f"{IDENTITY}/7"), redis.hlen(KEY)) == (noted, 2)
    late = steps.save_call(ends, unit, JID, b"", 0, "charge", parts.done(2), b"{}")
    assert connection.script(late.script, late.keys, late.arguments) == 1
    assert b'"value":1' in redis.hget(KEY, "charge")  # type: ignore[operator]
    redis.config_set("maxmemory", 1)
    try:  # a full server takes it
        full = steps.save_call(ends, unit, JID, b"", 0, "ship", parts.done(2), b"{}")
        assert connection.script(full.script, full.keys, full.arguments) == 1
    finally:
        redis.config_set("maxmemory", 0)
    connection.close()


def test_a_server_that_takes_no_writes_delays_a_step(
    redis: Redis, run: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has too few replicas: nothing is remembered, and nothing is lost."""
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        assert not redis.exists(KEY)
        if len(pauses) == 3:
            redis.config_set("min-replicas-to-write", 0)

    @forkq.job(name="refused")
    def refused(value: Any) -> None:
        forkq.step("first", redis.config_set, "min-replicas-to-write", 1)
        calls.append(redis.hlen(KEY))

    monkeypatch.setattr("forkq.child.failure.steps.sleep", pause)
    push(redis, name="refused")
    run()
    assert (calls, len(pauses)) == ([2], 3)


def test_an_iterable_job_may_have_steps(redis: Redis, run: Callable[[], Any]) -> None:
    """Its end deletes both."""

    @forkq.job(name="walk", iterable=True)
    def walk(value: Any, cursor: int = 0) -> Any:
        for item in range(cursor, 3):
            forkq.step(f"item:{item}", calls.append, item)
            yield item + 1
        fail_if_told()

    fails.append(ValueError())
    push(redis, name="walk")
    run()
    assert only(redis, "retry")["forkq"]["needs"] == {"steps": True, "cursor": True}
    run()
    assert calls == [0, 1, 2]
    assert not redis.exists(KEY, f"it-{JID}", "retry")


def test_steps_in_threads_and_tasks_of_a_job(redis: Redis, run: Callable[[], Any]) -> None:
    """The key is that of the step, in each."""

    @forkq.job(name="many")
    async def many(value: Any) -> None:
        async def key(number: int) -> str:
            await asyncio.sleep(0.01 * (3 - number))
            return forkq.step.key

        calls.extend(await asyncio.gather(*(forkq.astep(f"s:{n}", key, n) for n in range(3))))
        calls.append(await asyncio.to_thread(forkq.step, "thread", lambda: forkq.step.key))

    push(redis, name="many")
    run()
    assert calls == [f"{JID}:{name}" for name in ("s:0", "s:1", "s:2", "thread")]


def test_where_a_step_cannot_be(redis: Redis, run: Callable[[], Any]) -> None:
    async def coroutine() -> None: ...

    @forkq.job(name="async_odd")
    async def async_odd(value: Any) -> None:
        forkq.step("charge", work, "charge")

    @forkq.job(name="odd")
    def odd(value: Any) -> None:
        made: Any = coroutine
        forkq.step("charge", made)

    for name, text in (("async_odd", "block the event loop"), ("odd", "is `async def`")):
        redis.delete("retry")
        push(redis, name=name)
        run()
        assert text in only(redis, "retry")["error_message"]
    with pytest.raises(forkq.ForkqError, match=r"forkq\.step was called outside of a running job"):
        forkq.step("charge", work, "charge")
    with pytest.raises(forkq.ForkqError, match="outside of the function of a step"):
        _ = forkq.step.key
    with pytest.raises(forkq.ForkqError, match=r"forkq\.astep was called outside"):
        asyncio.run(forkq.astep("charge", work, "charge"))
    called: Any = "the receipt"
    with pytest.raises(forkq.InvalidJob, match=r"the step 'charge' takes a function .* type str"):
        forkq.step("charge", called)
    with pytest.raises(forkq.InvalidJob, match=r"the step 'charge' takes a function .* type str"):
        asyncio.run(forkq.astep("charge", called))
