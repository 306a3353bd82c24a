"""A throttled job is pushed so often at most in any such time; what is more is left out."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from redis import Redis

import forkq
import forkq.testing
from forkq import api, middleware, registry
from forkq.client import Client, transactions
from forkq.config.shards import Shard
from forkq.errors import InvalidJob, ServerRefused
from forkq.sharded_client import ShardedClient
from forkq.wire import times
from forkq.wire.times import now
from tests.redis.in_process_clock import InProcessClock
from tests.support.documents import ROOT
from tests.support.server import Server
from tests.support.spread import QUEUE as SPREAD
from tests.support.spread import three_parts
from tests.support.waiting import wait_until

QUEUE, ENDS = "queue:default", "forkq:totals:ends"
Way: TypeAlias = "Callable[[Client, Any, int], str | None]"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())


def sync(throttle: str | None = "3/hour", **options: Any) -> Any:
    def perform(account: int, page: int = 1) -> None: ...

    registry._jobs.pop("Sync", None)
    return forkq.job(name="Sync", throttle=throttle, **options)(perform)


def windows(redis: Redis) -> list[str]:
    return sorted(key.decode() for key in redis.scan_iter("forkq:throttle:*"))


def waiting(redis: Redis) -> int:
    """How many jobs wait, now or for later."""
    return redis.llen(QUEUE) + redis.zcard("schedule")


def later(client: Client, job: Any, account: int) -> str | None:
    return job.perform_in(3600, account)  # type: ignore[no-any-return]


def bulk(client: Client, job: Any, account: int) -> str | None:
    return job.perform_bulk([(account,)])[0]  # type: ignore[no-any-return]


def awaited(client: Client, job: Any, account: int) -> str | None:
    async def push() -> Any:
        found = await client.apush(job.payload(account))
        await client.aclose()
        return found

    return asyncio.run(push())  # type: ignore[no-any-return]


WAYS: Final[dict[str, Way]] = {
    "single": lambda client, job, account: job.perform_async(account),
    "by set": lambda client, job, account: job.set(throttle="3/hour").perform_async(account),
    "by name": lambda client, job, account: client.push(job.payload(account)),
    "later": later,
    "bulk": bulk,
    "awaited": awaited,
}


@pytest.mark.parametrize("way", WAYS)
def test_more_pushes_than_the_rate_has_are_left_out(client: Client, redis: Redis, way: str) -> None:
    job, push = sync(), WAYS[way]
    assert [bool(push(client, job, 7)) for _ in range(5)] == [True, True, True, False, False]
    assert push(client, job, 8)
    assert push(client, job, 7) == ""
    assert waiting(redis) == 4
    assert redis.hget(ENDS, "Sync|throttled") == b"3"
    assert api.stats().ended == {"throttled": 3}


def test_rows_of_one_bulk_push_count_one_after_the_other(client: Client, redis: Redis) -> None:
    rows = [(number % 2,) for number in range(2500)]
    found = sync("600/hour").perform_bulk(rows)
    assert [bool(jid) for jid in found] == [number < 1200 for number in range(2500)]
    assert waiting(redis) == 1200
    assert [redis.llen(window) for window in windows(redis)] == [600, 600]


def test_the_window_slides(client: Client, redis: Redis) -> None:
    """Not more than three in any second, however they lie: each push is noted with its time."""
    job = sync("3/second")
    moments: list[float] = []

    def push() -> bool:
        before = now()
        if job.perform_async(7):
            moments.append(before)
        return len(moments) >= 9

    wait_until(push, what="nine pushes")
    spans = [last - first for first, last in zip(moments, moments[3:], strict=False)]
    assert min(spans) > 0.95
    assert waiting(redis) == len(moments)


def test_many_threads_push_no_more_than_the_rate(
    client: Client, redis: Redis, redis_server: Server
) -> None:
    payload = sync("100/hour").payload(7)

    def push() -> None:
        with closing(Client(redis_server.url)) as own:
            for _ in range(30):
                own.push(payload)

    threads = [threading.Thread(target=push) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert waiting(redis) == 100
    assert redis.hget(ENDS, "Sync|throttled") == b"140"


def test_what_redis_keeps_is_bounded_and_ends(client: Client, redis: Redis) -> None:
    job = sync("50/minute")
    job.perform_bulk([(7,)] * 500)
    [window] = windows(redis)
    assert redis.llen(window) == 50
    assert 59_000 < redis.pttl(window) <= 60_000
    job.set(throttle="10/minute").perform_async(7)
    assert redis.llen(window) == 50  # nothing was pushed
    job.set(throttle="51/hour").perform_async(7)
    assert (redis.llen(window), redis.pttl(window) > 3_000_000) == (51, True)
    job.set(throttle=None).perform_async(7)
    assert waiting(redis) == 52


def test_the_payload_is_that_of_a_plain_job(client: Client, redis: Redis) -> None:
    sync().perform_async(7)
    found: Any = redis.lrange(QUEUE, 0, -1)
    assert "forkq" not in json.loads(found[0])
    assert not redis.exists("forkq:marked")


@pytest.mark.parametrize(
    ("by", "same", "other"),
    [
        (None, (7,), (7, 2)),
        (["account"], (7, 2), (8,)),
        (lambda account, page=1: page, (9,), (7, 3)),
    ],
)
def test_unique_by_says_which_arguments_are_the_same(
    client: Client, by: Any, same: Any, other: Any
) -> None:
    job = sync("1/hour", **({} if by is None else {"unique_by": by}))
    assert job.perform_async(7)
    assert job.perform_async(*same) == ""
    assert job.perform_async(*other)


# Beside other options


def test_a_duplicate_takes_no_place_in_the_window(client: Client, redis: Redis) -> None:
    job = sync("2/hour", unique_for=60)
    first = job.perform_async(7)
    again = job.set(on_duplicate="return")
    assert [again.perform_async(7) for _ in range(5)] == [first] * 5
    for expected in (True, False):
        redis.delete(*redis.keys("forkq:unique:*"))
        assert bool(again.perform_async(7)) is expected
    assert redis.keys("forkq:unique:*") == []  # what is left out takes no lock
    assert job.set(on_duplicate="raise").perform_async(7) == ""


def test_a_repeated_push_takes_no_place_in_the_window(client: Client, redis: Redis) -> None:
    job = sync("2/hour", once=True)
    jids = [f"{number:024x}" for number in range(3)]
    pushes = [job.set({"jid": jid}).perform_async(7) for jid in (jids[0], *jids, *jids)]
    assert pushes == [jids[0], jids[0], jids[1], "", jids[0], jids[1], ""]
    assert waiting(redis) == 2


@pytest.mark.parametrize(
    ("options", "other"),
    [({"debounce": 5}, "`debounce`"), ({"unique_for": 5, "on_duplicate": "latest"}, "'latest'"),
     ({"unique_for": 5, "on_duplicate": "replace"}, "'replace'")],
)  # fmt: skip
@pytest.mark.parametrize("way", ["definition", "set", "push", "bulk", "later", "cron"])
def test_what_runs_the_last_push_cannot_be_throttled(
    client: Client, redis: Redis, way: str, options: Any, other: str
) -> None:
    raw = {"class": "Sync", "args": [7], "throttle": "3/hour", **options}
    below = {"class": "Sync", "args": [7], "forkq": {"needs": {"throttle": "3/hour", **options}}}
    ways: dict[str, Callable[[], object]] = {
        "definition": lambda: sync(**options),
        "set": lambda: sync().set(**options),
        "push": lambda: client.push(below),
        "bulk": lambda: client.push_bulk({**raw, "args": [[7]]}),
        "later": lambda: client.push_later(raw, lambda send: send()),
        "cron": lambda: api.cron.add("odd", "* * * * *", sync(), args=[7], **options),
    }
    with pytest.raises(InvalidJob, match=f"has `throttle` and .*{other}.*leave one of them out"):
        ways[way]()
    assert waiting(redis) == 0


@pytest.mark.parametrize(
    "value", ["3", "3/fortnight", "0/minute", "1001/minute", "-1/second", "", 3, ["3/minute"], 0]
)
@pytest.mark.parametrize("way", ["definition", "set", "push", "below"])
def test_another_text_is_refused_where_it_is_written(
    client: Client, redis: Redis, value: Any, way: str
) -> None:
    ways: dict[str, Callable[[], object]] = {
        "definition": lambda: sync(value),
        "set": lambda: sync().set(throttle=value),
        "push": lambda: client.push({"class": "Sync", "args": [7], "throttle": value}),
        "below": lambda: client.push(
            {"class": "Sync", "args": [7], "forkq": {"needs": {"throttle": value}}}
        ),
    }
    with pytest.raises(InvalidJob, match=r"`throttle` is .*; pass a rate like \"3/minute\""):
        ways[way]()
    assert waiting(redis) == 0


def test_unique_by_needs_something_that_it_is_about() -> None:
    with pytest.raises(InvalidJob, match="without `unique_for` or `debounce` or `throttle`"):
        forkq.job(name="Sync", unique_by=["account"])(lambda account: None)


def test_a_name_that_is_no_parameter_is_named(client: Client) -> None:
    with pytest.raises(InvalidJob, match=r"`unique_by` names 'acount'.*account, page"):
        sync(unique_by=["acount"]).perform_async(7)


# A transaction, a periodic job, faults


def test_what_waits_for_a_commit_is_told_when_it_is_left_out(
    client: Client, redis: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held: list[Callable[[], None]] = []
    told: list[tuple[Any, str]] = []
    monkeypatch.setattr(transactions, "on_commit", held.append)
    monkeypatch.setattr(transactions, "all_wait", True)
    monkeypatch.setattr(registry, "duplicate_handlers", [])
    forkq.on_duplicate(lambda job, holder: told.append((job["jid"], holder)))
    job = sync("1/hour")
    jids = [job.perform_async(7), job.perform_async(7)]
    assert all(jids)
    for send in held:
        send()
    assert waiting(redis) == 1
    assert told == [(jids[1], "")]
    assert f"job {jids[1]} was not pushed: its throttle" in caplog.text


@pytest.mark.parametrize("unique", [{}, {"unique_for": 0.001}])
def test_a_tick_beyond_the_rate_is_skipped(
    client: Client, redis: Redis, redis_server: Server, unique: Any
) -> None:
    """By the digest that the definition says: the clock does not know that."""
    job = sync("2/hour", unique_by=lambda account, page=1: account, **unique)
    job.perform_async(7, 5)
    api.cron.add("often", "* * * * * *", job, args=[7])
    with InProcessClock(redis_server.url):
        wait_until(lambda: (redis.llen("forkq:cron:runs:often") or 0) > 1, what="two ticks")
    lines: Any = redis.lrange("forkq:cron:runs:often", 0, -1)
    runs = [json.loads(line) for line in lines][::-1]
    assert [run["event"] for run in runs[:2]] == ["enqueued", "skipped"]
    assert runs[1]["running"] == ""
    assert (waiting(redis), redis.hget(ENDS, "Sync|duplicate")) == (2, None)
    assert job.perform_async(7) == ""


def test_what_redis_refuses_takes_no_place(client: Client, redis: Redis) -> None:
    job = sync("1/hour")
    redis.set("queue:odd", "x")
    with pytest.raises(ServerRefused, match="queue:odd"):
        job.set(queue="odd").perform_async(7)
    redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(ServerRefused):
            job.perform_async(7)
    finally:
        redis.config_set("maxmemory", 0)
    assert windows(redis) == []
    assert job.perform_async(7)


def test_a_window_of_another_type_keeps_no_job_from_its_queue(client: Client, redis: Redis) -> None:
    job = sync("1/hour")
    job.perform_async(7)
    [window] = windows(redis)
    redis.delete(window)
    redis.set(window, "x")
    assert job.perform_async(7)
    assert (waiting(redis), redis.hget(ENDS, "(feature)|damaged")) == (2, b"1")


# Several servers


def test_over_shards_a_window_is_where_its_class_is(redis: Redis, redis_server: Server) -> None:
    shards = [
        Shard("default", redis_server.url),
        Shard("b", redis_server.url, ("mail", "more"), prefix="b:"),
    ]
    with closing(ShardedClient(shards, "default", redis_server.url)) as sharded:
        job = sync("2/hour", queue="mail")
        pushes = [sharded.push({**job.payload(7), "queue": name}) for name in ("mail", "more") * 2]
        assert [bool(jid) for jid in pushes] == [True, True, False, False]
        with pytest.raises(InvalidJob, match=r"is throttled, and its queue 'mail' is on the sha"):
            sharded.push({**job.payload(7), "queue": "default"})
    assert len(list(redis.scan_iter("b:forkq:throttle:*"))) == 1


def test_over_the_parts_of_a_queue_there_is_one_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arguments choose the part."""
    monkeypatch.chdir(tmp_path)
    with three_parts(tmp_path) as spread:
        job = sync("2/hour", queue=SPREAD)
        found = [job.perform_async(account) for account in (1, 2, 3, 4, 5, 6) for _ in range(4)]
        assert [bool(jid) for jid in found] == [True, True, False, False] * 6
        assert sum(spread.sizes().values()) == 12
        assert sum(size > 0 for size in spread.sizes().values()) > 1


# Tests of apps, and what it costs


@pytest.fixture
def later_by() -> Iterator[Callable[[float], None]]:
    yield lambda seconds: times.follow(now() + seconds, times.steady())
    times.follow_host()


def test_a_test_without_redis_has_the_same_windows(later_by: Callable[[float], None]) -> None:
    for mode in (forkq.testing.fake, forkq.testing.inline):
        with mode():
            job = sync("2/minute")
            assert [bool(job.perform_async(7)) for _ in range(3)] == [True, True, False]
            assert job.perform_async(8)
            later_by(61)
            assert [bool(job.perform_async(7)) for _ in range(3)] == [True, True, False]


def test_what_it_costs_is_what_the_page_says(client: Client, redis: Redis) -> None:
    page = (ROOT / "docs" / "unique.md").read_text()
    [fixed, each] = re.findall(r"window takes about (\d+) bytes, and (\d+) for each push", page)[0]
    sync("1000/hour").perform_bulk([(7,)] * 1000 + [(8,)])
    found = sorted(redis.memory_usage(window) or 0 for window in windows(redis))
    assert found[0] == pytest.approx(int(fixed), rel=0.3)
    assert found[1] == pytest.approx(int(fixed) + 1000 * int(each), rel=0.3)
