"""No second job with the same arguments is pushed while a unique one waits or runs."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

import forkq
import forkq.testing
from forkq import api, middleware, registry
from forkq.child.heartbeat.stats import Totals
from forkq.child.heartbeat.tasks import HoldLocks, Snapshot
from forkq.child.job_run import JobRun
from forkq.client import transactions
from forkq.config.shards import Shard
from forkq.errors import InvalidJob
from forkq.sharded_client import ShardedClient
from forkq.store.connection import RedisConnection
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from forkq.wire.payload import dumps, loads
from forkq.wire.times import now
from tests.redis.in_process_child import InProcessChild
from tests.redis.in_process_clock import InProcessClock
from tests.support.documents import ROOT
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.waiting import wait_until

QUEUE, ENDS = "queue:default", "forkq:totals:ends"
INFLIGHT = "{queue:default}:inflight"
KEYS = Keys()
ran: list[Any] = []
gate = threading.Event()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    monkeypatch.setattr(middleware, "pushes", middleware.Chain())
    ran.clear()
    gate.clear()
    yield
    gate.set()


def index(**options: Any) -> Any:
    def perform(doc: int, version: int = 1) -> None:
        ran.append((doc, version))
        if doc < 0:
            gate.wait(30)
        if version < 0:
            raise ValueError(version)

    registry._jobs.pop("Index", None)
    return forkq.job(name="Index", **{"unique_for": 60, **options})(perform)


def locks(redis: Redis) -> list[str]:
    found: Any = redis.keys("forkq:unique:*")
    return sorted(key.decode() for key in found)


def holder(redis: Redis) -> str:
    [lock] = locks(redis)
    found: Any = redis.hget(lock, "jid")
    return found.decode() if found else ""


# The push


def test_a_second_push_is_a_duplicate_until_the_first_has_ended(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = index()
    jid = job.perform_async(7)
    assert (job.perform_async(7), job.perform_async(doc=7), job.perform_async(7, 1)) == ("", "", "")
    assert job.perform_async(8)
    assert redis.llen(QUEUE) == 2
    assert jid in {redis.hget(lock, "jid").decode() for lock in locks(redis)}  # type: ignore[union-attr]
    assert redis.hget(ENDS, "Index|duplicate") == b"3"
    assert api.stats().ended == {"duplicate": 3}
    with InProcessChild(redis_server.url):
        wait_until(lambda: len(ran) == 2 and not locks(redis), what="both ends")
    assert job.perform_async(7)


def test_on_duplicate_says_what_the_push_does(client: forkq.Client, redis: Redis) -> None:
    jid = index().perform_async(7)
    assert index(on_duplicate="return").perform_async(7) == jid
    with pytest.raises(forkq.Duplicate, match=f"{jid} has the lock of its arguments") as raised:
        index(on_duplicate="raise").perform_async(7)
    assert raised.value.jid == jid
    assert redis.llen(QUEUE) == 1


def test_a_bulk_push_has_nothing_in_the_place_of_a_duplicate(
    client: forkq.Client, redis: Redis
) -> None:
    job = index()
    first = job.perform_async(1)
    found = job.perform_bulk([(1,), (2,), (2, 1), (3,)])
    assert [bool(jid) for jid in found] == [False, True, False, True]
    assert index(on_duplicate="return").perform_bulk([(1,), (4,)])[0] == first


def test_a_duplicate_of_a_bulk_push_leaves_the_jids_of_the_others(
    client: forkq.Client, redis: Redis
) -> None:
    job = index(on_duplicate="raise")
    first, other = job.perform_async(1), job.perform_async(2)
    with pytest.raises(forkq.Duplicate, match=rf"{first} has.*; 2 other jobs were pushed") as bulk:
        job.perform_bulk([(1,), (4,), (2,), (5,)])
    jids = bulk.value.jids
    assert [bool(jid) for jid in jids] == [False, True, False, True]
    waiting: Any = redis.lrange(QUEUE, 0, -1)
    assert {first, other, *filter(None, jids)} == {loads(each)["jid"] for each in waiting}
    with pytest.raises(forkq.Duplicate, match=r"runs\)$") as single:
        job.perform_async(1)
    assert (single.value.jid, single.value.jids) == (first, [""])


def some(doc: int, version: int = 0) -> None: ...


def some_more(doc: int, *others: int) -> None: ...


@pytest.mark.parametrize(
    ("perform", "by", "text"),
    [
        (
            some,
            ["dok"],
            r"names 'dok', which is none of its parameters \(doc, version\); is 'doc' m",
        ),
        (some, ["account"], r"names 'account', which is none of its parameters \(doc, version\)$"),
        (some, lambda doc: doc, "takes 1 to 2 arguments, and .*<lambda> does not take 2 "),
        (some, lambda doc, version: doc, "takes 1 to 2 arguments, and .*<lambda> does not take 1 "),
        (some_more, lambda doc, other=0: doc, "at least 1 argument, and .* does not take 3 "),
    ],
)
def test_a_unique_by_that_does_not_fit_is_refused_where_it_is_written(
    perform: Any, by: Any, text: str
) -> None:
    """Else the first push would fail, in the middle of an app's request."""
    registry._jobs.pop("Index", None)
    with pytest.raises(InvalidJob, match=text):
        forkq.job(name="Index", unique_for=60, unique_by=by)(perform)
    assert registry.find("Index") is None
    plain = forkq.job(name="Index")(perform)
    with pytest.raises(InvalidJob, match=text):
        plain.set(unique_for=60, unique_by=by)


@pytest.mark.parametrize("by", [["others"], str, lambda doc, *others: doc, lambda *given: given])
def test_a_unique_by_that_fits_is_taken(by: Any) -> None:
    registry._jobs.pop("Index", None)
    names = ["*others"] if by == ["others"] else by
    job = forkq.job(name="Index", unique_for=60, unique_by=names)(some_more)
    assert job.set(unique_by=names).name == "Index"


def test_a_bulk_of_many_batches_is_unique_in_each(client: forkq.Client, redis: Redis) -> None:
    found = index().perform_bulk([(number // 2,) for number in range(3000)])
    assert [bool(jid) for jid in found] == [True, False] * 1500
    assert redis.llen(QUEUE) == len(locks(redis)) == 1500


def test_a_scheduled_job_has_its_lock_until_its_time_after_it_is_due(
    client: forkq.Client, redis: Redis
) -> None:
    job = index()
    assert job.perform_in(1000, 7)
    [lock] = locks(redis)
    assert 1_055_000 < redis.pttl(lock) <= 1_060_000
    assert job.perform_async(7) == job.perform_in(5, 7) == ""


def test_the_same_jid_never_conflicts_with_itself(client: forkq.Client, redis: Redis) -> None:
    """A push whose reply was lost may be sent again."""
    index()
    payload = {"class": "Index", "args": [7], "jid": "a" * 24, "unique_for": 60}
    assert client.push(payload) == client.push(payload) == "a" * 24
    assert redis.llen(QUEUE) == 2


def test_a_payload_that_is_pushed_again_keeps_its_lock(client: forkq.Client, redis: Redis) -> None:
    index().perform_async(7)
    [raw] = redis.lrange(QUEUE, 0, -1)
    again = {**json.loads(raw), "jid": "b" * 24}
    assert client.push(again) == ""


def test_what_waits_for_a_commit_may_turn_out_to_be_a_duplicate(
    client: forkq.Client, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    waiting: list[Any] = []
    later = client.push_later(index().payload(7), waiting.append)
    holder = index().perform_async(7)
    waiting[0]()
    assert redis.llen(QUEUE) == 1
    assert f"job {later} is a duplicate, and was not pushed: job {holder} waits" in caplog.text


def test_a_duplicate_that_has_waited_for_a_commit_is_told_to_the_app(
    client: forkq.Client,
    redis: Redis,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A handler that fails keeps the next one from nothing, and the commit neither."""
    monkeypatch.setattr(registry, "duplicate_handlers", [])
    told: list[tuple[Any, ...]] = []

    @forkq.on_duplicate
    def fail(job: forkq.Payload, holder: str) -> None:
        raise ValueError("no")

    @forkq.on_duplicate
    def note(job: forkq.Payload, holder: str) -> None:
        told.append((job["jid"], job["args"], holder))

    waiting: list[Any] = []
    job = index(expires_in=50)
    other = client.push_later(job.payload(8), waiting.append)
    later = client.push_later(job.payload(7), waiting.append)
    first = job.perform_async(7)
    for send in waiting:
        send()
    assert told == [(later, [7], first)]
    assert "the handler of a duplicate has failed" in caplog.text
    assert redis.llen(QUEUE) == 2
    assert other != first
    with pytest.raises(forkq.ForkqError, match="the duplicate handler"):
        forkq.on_duplicate(lambda: None)


def test_all_pushes_of_a_transaction_are_unique_at_its_commit(
    client: forkq.Client, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[Any] = []
    monkeypatch.setattr(transactions, "on_commit", waiting.append)
    monkeypatch.setattr(transactions, "all_wait", True)
    job = index()
    assert all([job.perform_async(7), job.perform_async(7)])
    for send in waiting:
        send()
    assert redis.llen(QUEUE) == 1


def test_a_refused_push_takes_no_lock(client: forkq.Client, redis: Redis) -> None:
    redis.set("queue:odd", "x")
    with pytest.raises(forkq.ServerRefused, match="queue:odd"):
        index(queue="odd").perform_async(7)
    redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(forkq.ServerRefused):
            index().perform_async(7)
    finally:
        redis.config_set("maxmemory", 0)
    assert locks(redis) == []
    assert index().perform_async(7)


@pytest.mark.parametrize(
    "options",
    [{}, {"on_duplicate": "latest"}, {"once": True}, {"unique_for": 0, "throttle": "1/hour"}],
    ids=["skip", "latest", "once", "throttle"],
)
def test_a_single_push_is_no_less_unique_where_redis_has_lost_the_script(
    client: forkq.Client, redis: Redis, options: Any
) -> None:
    """A restart, or SCRIPT FLUSH: the push sends the text, and is not dropped. Nor is one that
    meets a duplicate then."""
    job = index(**options)
    redis.script_flush()
    jid = job.perform_async(7)
    assert [json.loads(raw)["jid"] for raw in redis.lrange(QUEUE, 0, -1)] == [jid]
    redis.script_flush()
    assert bool(job.perform_async(7)) == ("on_duplicate" in options)
    assert redis.llen(QUEUE) == 1
    redis.script_flush()
    assert job.perform_async(8)
    assert redis.llen(QUEUE) == 2


def test_a_lock_of_another_type_keeps_no_job_from_its_queue(
    client: forkq.Client, redis: Redis
) -> None:
    job = index()
    job.perform_async(7)
    [lock] = locks(redis)
    redis.set(lock, "x")
    assert job.perform_async(7)
    assert (redis.llen(QUEUE), redis.hget(ENDS, "(feature)|damaged")) == (2, b"1")


def test_a_plain_job_is_pushed_by_the_commands_that_it_was(
    client: forkq.Client, redis: Redis
) -> None:
    registry._jobs.pop("Index", None)
    plain = index(unique_for=0)
    plain.perform_async(1)
    [raw] = redis.lrange(QUEUE, 0, -1)
    assert "forkq" not in json.loads(raw)
    assert not redis.exists("forkq:marked")


def test_a_queue_on_another_shard_than_that_of_its_class_is_refused(
    redis: Redis, redis_server: Server
) -> None:
    """A lock there knows nothing of the locks here. A job that is not unique may go there."""
    url = redis_server.url
    shards = [Shard("default", url), Shard("b", url, ("mail", "more"), prefix="b:")]
    sharded = ShardedClient(shards, "default", url)
    job = index(queue="mail")
    try:
        jid = sharded.push(job.payload(7))
        assert jid
        assert not sharded.push({**job.payload(7), "queue": "more"})
        with pytest.raises(forkq.InvalidJob, match=r"'mail' is on the shard b.*'default' on the s"):
            sharded.push({**job.payload(7), "queue": "default"})
        assert sharded.push({**index(unique_for=0).payload(7), "queue": "default"})
    finally:
        sharded.close()
    assert locks(redis) == []
    assert len(list(redis.scan_iter("b:forkq:unique:*"))) == 1


# What is the same


@pytest.mark.parametrize(
    ("by", "same", "other"),
    [
        (["doc"], (7, 2), (8, 1)),
        (["version"], (8, 1), (7, 2)),
        (lambda doc, version=1: doc % 10, (17, 5), (8, 1)),
        (("doc", "version"), (7,), (7, 2)),
    ],
)
def test_unique_by_says_which_arguments_count(
    client: forkq.Client, by: Any, same: Any, other: Any
) -> None:
    job = index(unique_by=by)
    assert job.perform_async(7, 1)
    assert job.perform_async(*same) == ""
    assert job.perform_async(*other)


def test_keys_of_objects_have_no_order_and_another_class_is_another_job(
    client: forkq.Client,
) -> None:
    def perform(*found: Any) -> None: ...

    one = forkq.job(name="One", unique_for=60)(perform)
    two = forkq.job(name="Two", unique_for=60)(perform)
    assert one.perform_async({"a": 1, "b": 2}, 3)
    assert one.perform_async({"b": 2, "a": 1}, 3) == ""
    assert one.perform_async({"b": 2, "a": 1}, 3, 4)
    assert two.perform_async({"a": 1, "b": 2}, 3)


@pytest.mark.parametrize("option", ["unique_until", "unique_by", "on_duplicate"])
def test_an_option_of_unique_jobs_alone_is_refused(option: str) -> None:
    value = {"unique_until": "end", "unique_by": ["doc"], "on_duplicate": "skip"}[option]
    options: Any = {option: value}
    with pytest.raises(forkq.InvalidJob, match=f"`{option}` means nothing without `unique_for`"):
        forkq.job(name="Odd", **options)(lambda doc: None)


@pytest.mark.parametrize(
    ("option", "value"),
    [("unique_for", -1), ("unique_for", "x"), ("unique_until", "success"), ("unique_by", []),
     ("unique_by", "doc"), ("on_duplicate", "newest")],
)  # fmt: skip
def test_another_value_is_refused_where_it_is_written(option: str, value: Any) -> None:
    with pytest.raises(forkq.InvalidJob, match=f"`{option}` is"):
        index(**{option: value})


def test_a_name_that_is_no_parameter_is_named(client: forkq.Client, redis: Redis) -> None:
    with pytest.raises(forkq.InvalidJob, match=r"`unique_by` names 'dok'.*doc, version"):
        index(unique_by=["dok"]).perform_async(7)
    with pytest.raises(forkq.InvalidJob, match="has no definition of the job"):
        client.push({"class": "Far", "args": [1], "unique_for": 5, "unique_by": ["a"]})
    assert not redis.exists(QUEUE)


@pytest.mark.parametrize("how", [{"unique_for": 5}, {"debounce": 5}, {"throttle": "1/minute"}])
def test_a_function_that_does_not_take_the_arguments_of_a_raw_push_is_named(
    client: forkq.Client, redis: Redis, how: dict[str, Any]
) -> None:
    """No definition was there to be checked. An error of its own lines is the cause."""
    far = {"class": "Far", "args": [1, 2], **how}
    with pytest.raises(forkq.InvalidJob, match=r"'Far'.*does not take those.*takes 1 posit.*but 2"):
        client.push({**far, "unique_by": lambda doc: doc})
    with pytest.raises(forkq.InvalidJob, match=r"len\(\) takes exactly one argument \(2 given\)"):
        client.push({**far, "unique_by": len})
    failed = r"'Far': the function in its `unique_by` has failed .*KeyError: 1\); mend it"
    with pytest.raises(forkq.InvalidJob, match=failed) as raised:
        client.push({**far, "unique_by": lambda doc, version: {}[doc]})
    assert isinstance(raised.value.__cause__, KeyError)
    assert not redis.exists(QUEUE, "schedule")


# The run


def test_unique_until_start_lets_the_next_one_wait_while_it_runs(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = index(unique_until="start")
    job.perform_async(-7)
    assert job.perform_async(-7) == ""
    with InProcessChild(redis_server.url, concurrency=1):
        wait_until(lambda: ran, what="the start")
        wait_until(lambda: not locks(redis), what="the lock is free")
        assert job.perform_async(-7)
        assert job.perform_async(-7) == ""
        gate.set()
        wait_until(lambda: len(ran) == 2 and not locks(redis), what="both ends")


def test_unique_until_expiry_keeps_others_out_for_all_its_time(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = index(unique_until="expiry")
    job.perform_async(7)
    with InProcessChild(redis_server.url):
        wait_until(lambda: ran and not redis.exists("{queue:default}:inflight"), what="the end")
    assert job.perform_async(7) == ""


def test_a_job_that_runs_holds_its_lock_though_its_time_is_over(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    """It takes the lock again at its start, and each beat holds it."""
    job = index(unique_for=0.2)
    jid = job.perform_async(-7)
    wait_until(lambda: not locks(redis), what="the time is over")
    with InProcessChild(redis_server.url):
        wait_until(lambda: ran, what="the start")
        assert job.perform_async(-7) == ""
        assert holder(redis) == jid
        gate.set()
        wait_until(lambda: not locks(redis), what="the end")


def test_each_beat_holds_the_locks_of_the_jobs_that_run(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    """Not those of jobs that only wait in the child, nor a lock that another job has."""
    job = index(unique_for=0.5)
    units = []
    for number in range(3):
        job.perform_async(number)
        found: Any = redis.lrange(QUEUE, 0, 0)
        raw: bytes = found[0]
        unit = UnitOfWork(1, "default", number, raw)
        JobRun(unit).loaded(json.loads(raw))
        unit.thread = int(number != 1)
        units.append(unit)
    assert units[0].marked is not None
    names = [KEYS.unique(each.marked["forkq"]["needs"]["unique"]["lock"]) for each in units]  # type: ignore[index]
    redis.hset(names[2], "jid", "other")
    connection = RedisConnection(redis_server.url)
    connection.connect()
    HoldLocks(KEYS, RecordedLog()).attend(connection, Snapshot(units, Totals(), quiet=False))
    connection.close()
    assert [redis.pttl(name) > 20_000 for name in names] == [True, False, False]


@pytest.mark.parametrize("how", ["skip", "latest"])
def test_a_beat_takes_no_lock_for_a_job_that_has_ended_meanwhile(
    client: forkq.Client, redis: Redis, redis_server: Server, how: str
) -> None:
    """The beat has looked before the end, and its script comes after it."""
    index(on_duplicate=how).perform_async(7)
    found: Any = redis.lrange(QUEUE, 0, 0)
    raw: bytes = found[0]
    unit = UnitOfWork(1, "default", 1, raw, thread=1)
    JobRun(unit).loaded(json.loads(raw))
    redis.delete(*locks(redis))
    connection = RedisConnection(redis_server.url)
    connection.connect()
    HoldLocks(KEYS, RecordedLog()).attend(connection, Snapshot([unit], Totals(), quiet=False))
    connection.close()
    assert locks(redis) == []


def test_ticks_of_a_periodic_job_share_the_lock_of_its_pushes(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    """A tick that is a duplicate is noted in the history of the periodic job."""
    job = index(unique_by=lambda doc, version=1: doc, unique_for=600)
    held = job.perform_async(7, 5)
    api.cron.add("often", "* * * * * *", job, args=[7])
    with InProcessClock(redis_server.url):
        wait_until(lambda: redis.llen("forkq:cron:runs:often"), what="a tick")
    lines: Any = redis.lrange("forkq:cron:runs:often", 0, -1)
    run = json.loads(lines[-1])
    assert (run["event"], run["running"], redis.llen(QUEUE)) == ("skipped", held, 1)


def test_a_job_whose_lock_another_one_has_runs_and_leaves_it(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = index(unique_for=0.2, queue="late")
    job.perform_async(7)
    wait_until(lambda: not locks(redis), what="the time is over")
    second = index(unique_for=900, queue="other").perform_async(7)
    with InProcessChild(redis_server.url, queue="late"):
        wait_until(lambda: ran and not redis.exists("{queue:late}:inflight"), what="the end")
    assert holder(redis) == second


def test_a_failed_job_keeps_its_lock_while_it_waits_for_its_retry(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = index(unique_for=5, backoff=300)
    jid = job.perform_async(7, -1)
    with InProcessChild(redis_server.url):
        wait_until(lambda: redis.zcard("retry"), what="the retry")
    assert (job.perform_async(7, -1), holder(redis)) == ("", jid)
    [lock] = locks(redis)
    assert 290_000 < redis.pttl(lock) <= 305_000
    api.RetrySet().delete_all()
    assert job.perform_async(7, -1)


# Tests of apps


def test_a_test_without_redis_has_the_same_locks() -> None:
    with forkq.testing.fake() as jobs:
        job = index(retry=0)
        assert job.perform_async(7)
        assert job.perform_async(7) == ""
        assert len(list(jobs)) == 1
        forkq.testing.drain()
        assert job.perform_async(7)
        once = index(unique_until="expiry")
        assert once.perform_async(9)
        forkq.testing.drain()
        assert once.perform_async(9) == ""
    assert [doc for doc, _ in ran] == [7, 7, 9]


def test_an_inline_test_frees_the_lock_at_the_end() -> None:
    with forkq.testing.inline():
        job = index()
        assert job.perform_async(7)
        assert job.perform_async(7)
    assert len(ran) == 2


def test_what_ruby_wrote_is_left_alone(client: forkq.Client, redis: Redis) -> None:
    raw = dumps({"class": "R", "args": [], "unique_for": 5, "jid": "r", "unlocks_at": now()})
    redis.lpush(QUEUE, raw)
    [entry] = api.Queue("default")
    assert entry.delete()
    assert locks(redis) == []


# What a plain job costs


def test_the_commands_of_a_plain_job_are_these_alone(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    """Its push, and all that its lease and its end touch: no key of any feature."""
    with redis.monitor() as monitor:  # type: ignore[no-untyped-call]
        jid = index(unique_for=0).perform_async(1)
        with InProcessChild(redis_server.url, concurrency=1):
            wait_until(lambda: ran and not redis.exists(INFLIGHT), what="the end")
        redis.echo("over")
        seen = list(iter(lambda: monitor.next_command()["command"], "ECHO over"))
    pushed = [each.split(" ")[:2] for each in seen if each.startswith(("SADD", "LPUSH"))]
    assert pushed == [["SADD", "queues"], ["LPUSH", QUEUE]]
    assert [each.split(" ")[:2] for each in seen if jid in each] == [
        ["LPUSH", QUEUE],
        ["HSET", INFLIGHT],
    ]
    assert [each.split(" ")[:2] for each in seen if each.startswith("HDEL")] == [["HDEL", INFLIGHT]]
    features = ("forkq:unique", "forkq:marked", "forkq:totals:ends")
    assert [each for each in seen if any(key in each for key in features)] == []


def test_what_a_unique_job_costs_is_what_the_page_says(client: forkq.Client, redis: Redis) -> None:
    index(unique_for=0).perform_async(7)
    index().perform_async(7)
    found: Any = redis.lrange(QUEUE, 0, -1)
    page = (ROOT / "docs" / "unique.md").read_text()
    [longer] = re.findall(r"payload is about (\d+) bytes longer", page)
    [held] = re.findall(r"lock takes about (\d+) bytes", page)
    assert len(found[0]) - len(found[1]) == pytest.approx(int(longer), abs=6)
    [lock] = locks(redis)
    assert redis.memory_usage(lock) == pytest.approx(int(held), rel=0.3)
