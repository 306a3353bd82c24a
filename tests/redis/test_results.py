"""Results: what a job has returned, or why it has not, reaches each thread and coroutine that waits
for it, over one connection."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import api, default_client, middleware, process_state, registry
from forkq.client import transactions
from forkq.features.results.parts import MOST, placeholder, waits_for
from forkq.wire.keys import Keys
from forkq.wire.payload import loads
from tests.redis.in_process_child import InProcessChild
from tests.redis.in_process_clock import InProcessClock
from tests.redis.proxy import Proxy
from tests.support.server import Server
from tests.support.waiting import wait_until, within

KEYS = Keys()
SOON = 20.0  # seconds; a wake-up takes far less


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    monkeypatch.setattr(middleware, "pushes", middleware.Chain())


@pytest.fixture
def child(client: Any, redis_server: Server) -> Iterator[InProcessChild]:
    with InProcessChild(redis_server.url) as child:
        yield child


def job(perform: Callable[..., Any] | None = None, **options: Any) -> Any:
    options = {"result_ttl": 60, **options}
    name = f"Calculated{len(registry._jobs)}"
    return forkq.job(name=name, **options)(perform or (lambda value: value))


def watches(redis: Redis) -> int:
    """How many connections wait for results."""
    return sum("t" in one["flags"] for one in redis.client_list())


def call(wait: str, jid: str, timeout: float | None = SOON) -> Any:
    if wait == "thread":
        return forkq.result(jid, timeout)
    return asyncio.run(forkq.aresult(jid, timeout))


WAITS = pytest.mark.parametrize("wait", ["thread", "loop"])


@WAITS
@pytest.mark.parametrize(
    "value", [None, 0, False, "", [], {}, 'é\0"\\ \u2028', 2**70, 1.5, {"a": [1, {"b": None}]}]
)
def test_a_value_comes_as_json_has_it(child: InProcessChild, wait: str, value: Any) -> None:
    found = call(wait, job().perform_async(value))
    assert (type(found), found) == (type(value), value)


def test_a_value_that_cannot_even_be_shown_repeats_no_work(
    child: InProcessChild, redis: Redis
) -> None:
    class Key:
        def __repr__(self) -> str:
            raise RuntimeError("no repr")

    ran: list[int] = []

    def perform() -> dict[Any, int]:
        ran.append(1)
        return {Key(): 1}

    with pytest.raises(forkq.ResultNotKept, match="no repr"):
        forkq.result(job(perform, retry=0).perform_async(), SOON)
    assert (ran, redis.zcard("dead")) == ([1], 0)


def test_each_kind_of_job_has_a_result(child: InProcessChild) -> None:
    @forkq.job(name="Awaited", result_ttl=60)
    async def awaited(number: int) -> list[int]:
        await asyncio.sleep(0)
        return [number]

    class Doubled(forkq.Job, name="Doubled", result_ttl=timedelta(minutes=1)):
        def perform(self, number: int) -> int:
            return 2 * number

    assert awaited.result(awaited.perform_async(3), timeout=SOON) == [3]
    assert Doubled.result(Doubled.perform_async(3), timeout=SOON) == 6
    jid = Doubled.perform_async(4)
    assert asyncio.run(Doubled.aresult(jid, timeout=SOON)) == 8
    tuples = job(lambda _: (1, ("a", None)))
    assert tuples.result(tuples.perform_async(0), SOON) == [1, ["a", None]]


@pytest.mark.parametrize("push", ["single", "bulk", "scheduled", "awaited", "on commit"])
def test_each_push_writes_a_placeholder(
    client: Any, redis: Redis, push: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, late = job(), 0.0
    if push == "single":
        jid = made.perform_async(1)
    elif push == "bulk":
        jid = made.perform_bulk([[number] for number in range(1500)])[-1]
    elif push == "scheduled":
        jid, late = made.perform_in(86_400, 1), 86_400.0
    elif push == "awaited":
        jid = asyncio.run(made.aperform_async(1))
    else:
        monkeypatch.setattr(transactions, "on_commit", lambda send: send())
        jid = made.perform_async_on_commit(1)
    assert redis.get(KEYS.result(jid)) == placeholder("Calculated0", "default", 60.0).encode()
    assert waits_for(late) - 60_000 < redis.pttl(KEYS.result(jid)) <= waits_for(late) + 1000
    with pytest.raises(TimeoutError, match=r"has not ended within 0 s"):
        forkq.result(jid, timeout=0)


def test_a_duplicate_has_no_placeholder(client: Any, redis: Redis) -> None:
    unique = job(unique_for=60, on_duplicate="return")
    jids = unique.perform_bulk([[1], [1], [2]])
    assert jids[0] == jids[1] != jids[2]
    keys: Any = redis.keys(KEYS.result("*"))
    assert {key.decode() for key in keys} == {
        KEYS.result(jids[0]),
        KEYS.result(jids[2]),
    }


def test_a_key_of_another_type_refuses_no_push(client: Any, redis: Redis) -> None:
    redis.rpush(KEYS.result("f" * 24), "x")
    assert job().set({"jid": "f" * 24}).perform_async(1) == "f" * 24
    assert redis.llen("queue:default") == redis.llen(KEYS.result("f" * 24)) == 1
    assert redis.hget(KEYS.totals("ends"), "(feature)|damaged") == b"1"


def test_a_job_without_the_option_is_a_plain_job(client: Any, redis: Redis) -> None:
    jid = job(result_ttl=0).perform_async(1)
    raw: Any = redis.lindex("queue:default", 0)
    assert ("forkq" in loads(raw), redis.exists(KEYS.result(jid))) == (False, 0)
    began = time.monotonic()
    for wait in ("thread", "loop"):
        with pytest.raises(forkq.ResultUnknown, match=rf"{jid} is unknown, or has expired"):
            call(wait, jid)
    assert time.monotonic() - began < SOON


@pytest.mark.parametrize("odd", [-1, "60", True, 1e10, float("nan")])
def test_a_wrong_ttl_is_refused_where_it_is_written(client: Any, redis: Redis, odd: Any) -> None:
    with pytest.raises(forkq.InvalidJob, match="`result_ttl`"):
        job(result_ttl=odd)
    with pytest.raises(forkq.InvalidJob, match="`result_ttl`"):
        job().set(result_ttl=odd)
    raw = {"class": "Raw", "args": [], "forkq": {"needs": {"result_ttl": odd}}}
    with pytest.raises(forkq.InvalidJob, match="`result_ttl`"):
        client.push(raw)
    assert not redis.exists("queue:default")


@pytest.mark.parametrize("odd", ["", None, 7, b"x"])
def test_what_is_no_jid_is_refused(client: Any, odd: Any) -> None:
    with pytest.raises(forkq.InvalidJob, match="is no jid"):
        forkq.result(odd)


@pytest.mark.parametrize("odd", [-1, "5", True, float("nan"), 1e10])
def test_what_is_no_time_is_refused(client: Any, odd: Any) -> None:
    with pytest.raises(forkq.ForkqError, match="timeout is"):
        forkq.result("a", odd)


# Ends without a value


def boom(value: Any) -> Any:
    raise ValueError(f"no {value}")


@WAITS
def test_a_dead_job_says_why(child: InProcessChild, wait: str) -> None:
    jid = job(boom, retry=0).perform_async("way")
    with pytest.raises(forkq.JobFailed, match="ValueError: no way") as caught:
        call(wait, jid)
    error = copy.copy(caught.value)  # by the way of a pickle
    assert (error.jid, error.outcome) == (jid, "dead")
    assert (error.error_class, error.error_message) == ("ValueError", "no way")


def test_each_outcome_says_which_it_is(
    child: InProcessChild, redis: Redis, redis_server: Server
) -> None:
    def discard(value: Any) -> Any:
        raise forkq.Discard("not today")

    dropped = job(boom, retry=False).perform_async(1)
    discarded = job(discard).perform_async(1)
    expired = job(expires_in=0.001).perform_in(0.01, 1)
    deleted = job().perform_in(600, 1)
    cancelled = job().perform_in(600, 1)
    with InProcessClock(redis_server.url):
        next(one for one in api.ScheduledSet() if one.jid == deleted).delete()
        forkq.cancel(cancelled)
        found = {}
        for jid in (dropped, discarded, expired, deleted, cancelled):
            with pytest.raises(forkq.JobFailed) as caught:
                forkq.result(jid, SOON)
            found[jid] = (type(caught.value), caught.value.outcome, caught.value.error_message)
    assert found == {
        dropped: (forkq.JobFailed, "dropped", "no 1"),
        discarded: (forkq.JobFailed, "discarded", "not today"),
        expired: (forkq.JobExpired, "expired", ""),
        deleted: (forkq.JobFailed, "deleted", ""),
        cancelled: (forkq.JobCancelled, "cancelled", ""),
    }


def test_a_dead_job_that_is_retried_has_no_result_again(
    child: InProcessChild, redis: Redis
) -> None:
    fails = threading.Event()
    fails.set()

    def flaky(value: Any) -> Any:
        if fails.is_set():
            raise ValueError(value)
        return value

    jid = job(flaky, retry=0).perform_async(7)
    with pytest.raises(forkq.JobFailed):
        forkq.result(jid, SOON)
    fails.clear()
    assert api.DeadSet().retry_all().done == 1
    assert forkq.result(jid, SOON) == 7


def test_a_job_waits_through_a_retry(child: InProcessChild, redis: Redis) -> None:
    runs = []

    def flaky(value: Any) -> Any:
        runs.append(value)
        if len(runs) == 1:
            raise ValueError(value)
        return runs

    jid = job(flaky).perform_async(7)
    wait_until(lambda: redis.zcard("retry"), what="the first failure")
    with pytest.raises(TimeoutError):
        forkq.result(jid, 0)
    api.RetrySet().retry_all()
    assert forkq.result(jid, SOON) == [7, 7]


# Values that cannot be kept


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        (
            "x" * (MOST + 1),
            forkq.ResultTooLarge,
            "262,144; keep such a value elsewhere, and return wh",
        ),
        ("é" * 150_000, forkq.ResultTooLarge, "300,002 bytes"),
        (datetime.now(timezone.utc), forkq.ResultNotKept, "return .isoformat()"),
        ({1: 2}, forkq.ResultNotKept, "key 1"),
        (float("nan"), forkq.ResultNotKept, "no such number"),
        ("\ud800", forkq.ResultNotKept, "cannot be written as JSON"),
        ([[{"a": {3}}]], forkq.ResultNotKept, r"the value\[0\]\[0\]\['a'\] is a set"),
    ],
)
def test_finished_work_is_not_repeated_for_a_value_that_cannot_be_kept(
    child: InProcessChild, redis: Redis, value: Any, kind: Any, said: str
) -> None:
    runs: list[int] = []

    def perform(_: int) -> Any:
        runs.append(1)
        return value

    jid = job(perform).perform_async(0)
    with pytest.raises(kind, match=said):
        forkq.result(jid, SOON)
    wait_until(lambda: child.processors and not child.leases.count().ended, what="the end")
    assert (runs, redis.exists("retry", "dead", "{queue:default}:inflight")) == ([1], 0)


def test_a_value_of_300_kb_is_kept_up_to_the_bound(child: InProcessChild, redis: Redis) -> None:
    at_bound = job(lambda size: "x" * size)
    jid = at_bound.perform_async(MOST - 2)  # with its quotes
    assert forkq.result(jid, SOON) == "x" * (MOST - 2)
    assert 0 < redis.pttl(KEYS.result(jid)) <= 60_000


def test_a_value_that_contains_itself_is_not_kept(child: InProcessChild) -> None:
    def perform(_: int) -> Any:
        value: list[Any] = []
        value.append(value)
        return value

    with pytest.raises(forkq.ResultNotKept, match="too deeply"):
        forkq.result(job(perform).perform_async(0), SOON)


# Waiting


def test_a_thousand_waiters_share_one_connection(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    """500 threads and 500 coroutines wait for 1,000 jobs, and are all woken."""
    waited = job()
    jids = waited.perform_bulk([[number] for number in range(1000)])

    async def all_in_one_loop() -> list[Any]:
        return list(await asyncio.gather(*(waited.aresult(jid, 60) for jid in jids[500:])))

    with ThreadPoolExecutor(501) as pool:
        threads = [pool.submit(waited.result, jid, 60) for jid in jids[:500]]
        loop = pool.submit(asyncio.run, all_in_one_loop())
        channel = client.routes[0].channel()
        wait_until(lambda: watched(channel) == 1000, what="1,000 waiters")
        assert watches(redis) == 1
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("forkq results") == 1
        with InProcessChild(redis_server.url):
            found = [one.result() for one in threads] + loop.result()
    assert found == list(range(1000))
    assert watched(channel) == 0


def watched(channel: Any) -> int:
    """How many wait for keys at this server."""
    reader = channel._watch._reader
    return 0 if reader is None else sum(map(len, list(reader._waiters.values())))


def has_heard(channel: Any) -> bool:
    """Whether all that wait know what stood in their keys."""
    reader = channel._watch._reader
    waiters = [] if reader is None else [*reader._waiters.values()]
    return bool(waiters) and all(one._was_told for each in waiters for one in each)


def test_no_command_is_sent_while_waiting(client: Any, redis: Redis) -> None:
    """Woken, never polling: 100 waiters cost what one costs, a sign of life now and then."""
    jid = job().perform_async(1)
    with ThreadPoolExecutor(100) as pool:
        waiting = [pool.submit(forkq.result, jid, 60) for _ in range(100)]
        wait_until(lambda: watched(client.routes[0].channel()) == 100, what="the waiters")
        before = reads(redis)
        time.sleep(0.5)
        assert reads(redis) == before
        redis.set(KEYS.result(jid), json.dumps({"outcome": "done", "value": 5}).replace(" ", ""))
        assert {one.result() for one in waiting} == {5}


def reads(redis: Redis) -> int:
    found: Any = redis.info("commandstats")
    return int(found["cmdstat_mget"]["calls"])


def test_a_waiter_without_an_answer_in_time_leaves_nothing(client: Any, redis: Redis) -> None:
    jid = job().perform_async(1)
    for wait in ("thread", "loop"):
        with pytest.raises(TimeoutError, match=r"has not ended within 0.05 s: it waits or runs"):
            call(wait, jid, 0.05)
    wait_until(lambda: watched(client.routes[0].channel()) == 0, what="no waiter")


def test_a_cancelled_coroutine_leaves_nothing(client: Any, redis: Redis) -> None:
    jid = job().perform_async(1)
    channel = client.routes[0].channel()

    async def cancelled() -> None:
        task = asyncio.create_task(forkq.aresult(jid))
        await asyncio.to_thread(wait_until, lambda: watched(channel) == 1, what="the waiter")
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(cancelled())
    wait_until(lambda: watched(channel) == 0, what="no waiter")


def test_a_dead_loop_leaves_nothing(client: Any, redis: Redis) -> None:
    """The garbage collector closes its coroutine, in any thread: that takes no lock."""
    jid = job().perform_async(1)
    channel = client.routes[0].channel()
    loop = asyncio.new_event_loop()
    task = loop.create_task(forkq.aresult(jid))
    while watched(channel) < 1:
        loop.run_until_complete(asyncio.sleep(0))
    loop._ready.clear()  # type: ignore[attr-defined]
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    with channel._watch._lock:  # held, as by a thread in which the collector strikes
        del task, loop
        gc.collect()
    redis.set(KEYS.result(jid), '{"outcome":"done"}')
    wait_until(lambda: watched(channel) == 0, what="no waiter")


def test_the_thread_ends_when_no_one_waits(
    client: Any, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkq.store.watch.key_watch._IDLE", 0.05)
    for _ in range(3):  # and begins again
        with pytest.raises(forkq.ResultUnknown):
            forkq.result("nothing")
        wait_until(lambda: watches(redis) == 0, what="the end of the connection")
        wait_until(
            lambda: "forkq results" not in {one.name for one in threading.enumerate()}, what="end"
        )


def test_a_result_that_expires_is_unknown_and_no_longer_waited_for(
    client: Any, redis: Redis
) -> None:
    jid = job().perform_async(1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(forkq.result, jid, SOON)
        wait_until(lambda: watched(client.routes[0].channel()) == 1, what="the waiter")
        redis.delete(KEYS.result(jid))
        with pytest.raises(forkq.ResultUnknown):
            waiting.result()


def test_what_another_program_has_written_is_no_result(client: Any, redis: Redis) -> None:
    redis.set(KEYS.result("odd"), '{"outcome":"done",')
    with pytest.raises(forkq.ResultUnknown):
        forkq.result("odd", SOON)


# Outages


def test_a_wait_goes_on_over_an_outage(redis: Redis, redis_server: Server, proxy: Proxy) -> None:
    client = forkq.Client(f"redis://127.0.0.1:{proxy.port}/0", timeout=2)
    before = default_client.swap(client)
    try:
        jid = job().perform_async(1)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(forkq.result, jid, 60)
            wait_until(lambda: watched(client.routes[0].channel()) == 1, what="the waiter")
            for one in redis.client_list():
                if "t" in one["flags"]:
                    redis.client_kill(one["addr"])
            redis.set(KEYS.result(jid), '{"outcome":"done","value":9}')
            assert waiting.result() == 9
    finally:
        default_client.swap(before)
        client.close()


@WAITS
def test_a_server_that_is_not_there_is_told_at_once(wait: str) -> None:
    client = forkq.Client("redis://127.0.0.1:1/0", timeout=2)
    before = default_client.swap(client)
    try:
        with pytest.raises(forkq.ServerUnavailable, match="Redis at"):
            call(wait, "x", None)
    finally:
        default_client.swap(before)
        client.close()


@WAITS
def test_a_wait_ends_in_time_though_the_server_does_not_answer(
    own_server: Server, wait: str
) -> None:
    """Whether the job is known to wait by then or not."""
    client = forkq.Client(own_server.url, timeout=60)
    before = default_client.swap(client)
    try:
        jid = job().perform_async(1)
        with pytest.raises(TimeoutError):
            call(wait, jid, 0)
        wait_until(lambda: watched(client.routes[0].channel()) == 0, what="no waiter")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(call, wait, jid, 2)
            wait_until(lambda: has_heard(client.routes[0].channel()), what="the waiter")
            own_server.pause()
            began = time.monotonic()
            with pytest.raises(TimeoutError, match="it waits or runs"):
                waiting.result()
            with pytest.raises(forkq.ServerUnavailable, match=r"has not answered within 0.3 s"):
                call(wait, "other", 0.3)
            assert time.monotonic() - began < within(5)
    finally:
        own_server.resume()
        default_client.swap(before)
        client.close()


def test_a_server_that_reports_no_changes_is_asked(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """As behind some proxies: slower, and said once."""
    own_server.cli("ACL", "SETUSER", "default", "-client|tracking")
    client = forkq.Client(own_server.url)
    before = default_client.swap(client)
    try:
        jids = [job().perform_async(number) for number in range(2)]
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(forkq.result, jid, SOON) for jid in jids]
            wait_until(lambda: watched(client.routes[0].channel()) == 2, what="the waiters")
            with InProcessChild(own_server.url):
                assert [one.result() for one in waiting] == [0, 1]
    finally:
        default_client.swap(before)
        client.close()
    said = [one for one in caplog.messages if "does not report changes" in one]
    assert len(said) == 1


# Forks


def test_a_forked_child_waits_over_a_connection_of_its_own(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    waiting = job()
    with InProcessChild(redis_server.url):
        assert forkq.result(waiting.perform_async(1), SOON) == 1
    jids = [waiting.perform_async(number) for number in (2, 3)]
    read, write = os.pipe()
    with ThreadPoolExecutor(1) as pool:
        parents = pool.submit(forkq.result, jids[0], 60)
        wait_until(lambda: watched(client.routes[0].channel()) == 1, what="the waiter")
        pid = os.fork()
        if pid == 0:
            try:
                os.write(write, str(forkq.result(jids[1], 60)).encode())
            finally:
                os._exit(0)
        wait_until(lambda: watches(redis) == 2, what="a second connection")
        for number, jid in enumerate(jids):
            done = {"outcome": "done", "value": number}
            redis.set(KEYS.result(jid), json.dumps(done, separators=(",", ":")))
        assert parents.result() == 0
        assert os.read(read, 10) == b"1"
        os.waitpid(pid, 0)
    os.close(read)
    os.close(write)


# Waiting inside of a job


def test_a_job_waits_for_no_job_of_its_capsule(
    child: InProcessChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_state, "_served", ("other", "else*"))
    inner = job()

    @forkq.job(name="Outer", result_ttl=60, retry=0)
    def outer(queue: str) -> Any:
        return inner.result(inner.set(queue=queue).perform_async(1), 0.2)

    with pytest.raises(forkq.JobFailed, match=r"would wait for job .* for the same capsule"):
        outer.result(outer.perform_async("elsewhere"), SOON)
    with pytest.raises(forkq.JobFailed, match="TimeoutError"):  # another capsule has that queue
        outer.result(outer.perform_async("apart"), SOON)


def test_a_job_may_read_a_result_that_is_there(
    child: InProcessChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_state, "_served", ("default",))
    jid = job().perform_async(5)
    assert forkq.result(jid, SOON) == 5

    @forkq.job(name="Outer", result_ttl=60, retry=0)
    def outer(jid: str) -> Any:
        return forkq.result(jid)

    assert outer.result(outer.perform_async(jid), SOON) == 5


def test_a_job_that_waits_can_be_interrupted(child: InProcessChild, redis: Redis) -> None:
    """A thread that waits for a lock hears of nothing: so a job looks up now and then."""
    jid = job().set(queue="elsewhere").perform_async(1)

    @forkq.job(name="Outer", timeout=0.2, retry=0, result_ttl=60)
    def outer(jid: str) -> Any:
        return forkq.result(jid)

    waits = outer.perform_async(jid)

    def is_over() -> int:
        child.limits.enforce()
        return redis.zcard("dead")

    wait_until(is_over, what="its end")
    with pytest.raises(forkq.JobFailed, match="TimeLimit"):
        outer.result(waits, SOON)


def test_no_result_is_left_without_a_ttl(
    child: InProcessChild, redis: Redis, redis_server: Server
) -> None:
    made = job(lambda number: 1 / number, retry=0)
    jids = made.perform_bulk([[number % 3] for number in range(300)])
    jids += made.perform_bulk([[1]] * 10, at=[time.time() + 0.01] * 10)
    with InProcessClock(redis_server.url):
        for jid in jids:
            with suppress(forkq.JobFailed):
                forkq.result(jid, SOON)
    keys: Any = redis.keys(KEYS.result("*"))
    assert len(keys) == 310
    assert all(0 < redis.pttl(key) <= 60_000 for key in keys)
