"""The tasks of a heartbeat: the process record, orders, counts, and what follows a gap."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from redis import Redis, exceptions

import forkq
from forkq.child.failure.retry import Retry, decide
from forkq.child.heartbeat.beat import Heartbeat, News
from forkq.child.heartbeat.record import Record, describe
from forkq.child.heartbeat.round_trip import RoundTrip
from forkq.child.heartbeat.stats import Totals
from forkq.child.heartbeat.stats_flush import StatsFlusher
from forkq.child.heartbeat.tasks import (
    FindLostLeases,
    FlushStats,
    HeartbeatTask,
    MeasureServerTime,
    PublishCron,
    Snapshot,
    TakeOrder,
    WriteRecord,
)
from forkq.config.capsule import Capsule
from forkq.config.load import load
from forkq.runtime.liveness import process_ref
from forkq.store.connection import RedisConnection
from forkq.store.outage import Outage
from forkq.wire.keys import Keys
from forkq.wire.lease import Progress, UnitOfWork
from tests.redis.in_process_child import IDENTITY
from tests.redis.proxy import Proxy
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.waiting import wait_until, within

WORK_OF_6 = f"{IDENTITY}:workers"
WORK, SIGNALS, NOTE = f"{IDENTITY}:work", f"{IDENTITY}-signals", f"forkq:flushed:{IDENTITY}"
PAYLOAD = b'{"class":"SlowJob","args":[14,1],"jid":"b1","queue":"default","created_at":1.5}'

# Key by key from the dumps 09 of real Sidekiq 7.2.4 and 8.0.10: the type of each value.
DUMPED_FIELDS = {"info": dict, "busy": int, "beat": float, "rtt_us": int, "quiet": str, "rss": int}
DUMPED_INFO = {
    "hostname": str, "started_at": float, "pid": int, "tag": str, "concurrency": int,
    "capsules": dict, "queues": list, "weights": list, "labels": list, "identity": str,
    "version": str, "embedded": bool,
}  # fmt: skip
REFUSED = exceptions.ConnectionError("Connection refused")
DUMPED_WORK = {"queue": str, "payload": str, "run_at": int, "lease": int}


class FakeChild:
    """A heartbeat, and a child in its place that the test controls."""

    def __init__(self, url: str, timeout: float = 5) -> None:
        config = load(None, {"tag": "mytag"}, {}, Path("/"))
        capsule = Capsule("default", (("default", 2), ("low", 1)), 3)
        self.log = RecordedLog()
        self.units: list[UnitOfWork] = []
        self.totals = Totals()
        self.quiet = False
        self.orders: list[str] = []
        self.called: list[str] = []
        self.failures: dict[str, BaseException] = {}
        self.meanwhile: Callable[[], None] = lambda: None  # after a reply, before the beat goes on
        self.left = False  # whether a publish leaves something to try again
        self.connection = RedisConnection(url, timeout=timeout)
        self.news = News()
        record = Record(IDENTITY, Keys(), describe(IDENTITY, config, capsule))
        self.heartbeat = Heartbeat(
            self.connection,
            self._tasks(record),
            Outage(self.log),
            Outage(self.log, "refused", "taken"),
            self.log,
            snapshot=lambda: Snapshot(self.units, self.totals, self.quiet),
            send_progress=lambda connection, now: record.write_progress(connection, now.units),
            news=self.news,
        )

    def _tasks(self, record: Record) -> list[HeartbeatTask]:
        round_trip = RoundTrip(self.log)
        flush = FlushStats(StatsFlusher(IDENTITY, Keys(), self.log))
        find_lost = FindLostLeases(self._gap, self.log)
        publish = PublishCron(lambda connection: self._call("publish", connection), self.log)
        return [
            MeasureServerTime(),
            WriteRecord(record, round_trip, (find_lost, flush, publish)),
            find_lost,
            TakeOrder(record, round_trip, self.orders.append),
            flush,
            publish,
        ]

    def start(self) -> None:
        self.heartbeat.start()
        self.heartbeat.open()

    def beat(self) -> bool:
        return self.heartbeat.beat()

    def performs(self, *, thread: int = 140_000_000_000_000) -> UnitOfWork:
        """A unit that is being performed from now on."""
        unit = UnitOfWork(1, "default", len(self.units) + 1, PAYLOAD)
        unit.start(thread + len(self.units), time.time())
        self.units.append(unit)
        return unit

    def close(self) -> None:
        self.connection.close()

    def _gap(self, connection: RedisConnection) -> None:
        self._call("gap", connection)

    def _call(self, name: str, connection: RedisConnection) -> bool:
        assert connection.call("PING") == b"PONG"
        self.called.append(name)
        self.meanwhile()
        if name in self.failures:
            raise self.failures[name]
        return self.left


@pytest.fixture
def child(redis: Redis, redis_server: Server) -> Iterator[FakeChild]:
    with closing(FakeChild(redis_server.url)) as found:
        yield found


def record(redis: Redis) -> dict[str, str]:
    found: Any = redis.hgetall(IDENTITY)
    return {name.decode(): value.decode() for name, value in found.items()}


def keys(redis: Redis) -> set[bytes]:
    """All but the counters."""
    found: Any = redis.keys("*")
    return {key for key in found if not key.startswith(b"stat:")}


def work(redis: Redis) -> dict[str, Any]:
    found: Any = redis.hgetall(WORK)
    return {thread.decode(): json.loads(value) for thread, value in found.items()}


# What a record says


def test_a_record_has_every_field_of_sidekiqs_dumps_in_their_types(
    child: FakeChild, redis: Redis
) -> None:
    child.performs()
    child.units.append(UnitOfWork(1, "default", 9, PAYLOAD))  # fetched, not begun
    assert child.beat()
    fields = record(redis)
    assert fields.keys() - DUMPED_FIELDS.keys() == {"concurrency", "cpu", "refused", "blocking"}
    for name, kind in DUMPED_FIELDS.items():
        value = json.loads(fields[name]) if name != "quiet" else fields[name]
        assert type(value) is kind, name
    info = json.loads(fields["info"])
    assert info.keys() - DUMPED_INFO.keys() == {"master", "knows"}
    for name, kind in DUMPED_INFO.items():
        assert type(info[name]) is kind, name
    assert info["capsules"] == {
        "default": {"concurrency": 3, "mode": "weighted", "weights": {"default": 2, "low": 1}}
    }
    assert (info["tag"], info["queues"]) == ("mytag", ["default", "low"])
    assert (fields["busy"], fields["quiet"], fields["concurrency"]) == ("1", "false", "3")
    assert abs(float(fields["beat"]) - time.time()) < 30
    assert int(fields["rss"]) > 1000
    assert redis.smembers("processes") == {IDENTITY.encode()}
    assert all(50 < redis.ttl(key) <= 60 for key in (IDENTITY, WORK, WORK_OF_6))


def test_work_names_each_running_job_and_nothing_else(child: FakeChild, redis: Redis) -> None:
    unit = child.performs()
    child.beat()
    [(thread, entry)] = work(redis).items()
    assert int(thread, 36) == unit.thread
    assert {name: type(value) for name, value in entry.items()} == DUMPED_WORK
    assert json.loads(entry["payload"]) == json.loads(PAYLOAD)
    assert entry["lease"] == unit.sequence
    assert redis.hgetall(WORK_OF_6) == redis.hgetall(WORK)
    child.units.clear()
    child.beat()
    assert not redis.exists(WORK, WORK_OF_6)


def test_each_key_that_the_server_has_lost_is_back_with_the_next_beat(
    child: FakeChild, redis: Redis
) -> None:
    """Key by key, and all at once."""
    child.performs()
    child.totals = Totals(processed=1)
    child.beat()
    written = keys(redis)
    assert len(written) == 7
    for lost in [*([key] for key in sorted(written)), written]:
        redis.delete(*lost)
        child.beat()
        assert written <= keys(redis), f"after the loss of {lost}"
    own, master = process_ref(), process_ref(os.getppid())
    assert redis.get(Keys().process_ref(IDENTITY)) == f"{own} {master}".encode()


def test_a_large_payload_is_shown_without_what_makes_it_large(
    child: FakeChild, redis: Redis
) -> None:
    """It would go to Redis with every beat, and to each web UI that looks."""
    payload = dict(json.loads(PAYLOAD), args=["x" * 1_000_000], note="y" * 2000)
    unit = child.performs()
    unit.payload = json.dumps(payload).encode()
    child.beat()
    [found] = work(redis).values()
    shown = json.loads(found["payload"])
    assert shown.pop("args") == [f"({len(unit.payload):,} bytes: too large to show)"]
    assert shown == {k: v for k, v in payload.items() if k not in ("args", "note")}


def test_progress_stands_beside_what_sidekiq_reads(child: FakeChild, redis: Redis) -> None:
    child.performs().progress = Progress(3, 10, "page é", 1795216082.5)
    child.performs().progress = Progress(0.5, None, "", 1795216083.5)
    child.performs()
    child.beat()
    first, second, third = [entry for _, entry in sorted(work(redis).items())]
    assert first.keys() == second.keys() == DUMPED_WORK.keys() | {"progress"}
    told = {"done": 3, "total": 10, "note": "page é", "at": 1795216082.5}
    assert first["progress"] == {**told, "items": None, "before": 0.0}
    assert second["progress"]["total"] is None
    assert third.keys() == DUMPED_WORK.keys()


def test_the_round_trip_of_a_beat_stands_in_the_next_one(child: FakeChild, redis: Redis) -> None:
    child.beat()
    assert record(redis)["rtt_us"] == "0"
    child.beat()
    assert 0 < int(record(redis)["rtt_us"]) < 5_000_000


def test_quiet_is_recorded_and_an_order_is_passed_on_once(child: FakeChild, redis: Redis) -> None:
    child.quiet = True
    redis.lpush(SIGNALS, "TERM")
    child.beat()
    child.beat()
    assert record(redis)["quiet"] == "true"
    assert child.orders == ["TERM"]


def test_all_orders_are_taken_at_once_the_strongest_first(child: FakeChild, redis: Redis) -> None:
    """An order lives for a minute: one behind eight others would be forgotten. Each kind counts
    once, and what is no order at all is not passed on thousands of times."""
    for order in (*["TTIN"] * 8, "TSTP", *map(str, range(500)), "TERM", "TSTP"):
        redis.lpush(SIGNALS, order)
    child.beat()
    assert child.orders == ["TERM", "TSTP", "TTIN", "0"]
    assert not redis.exists(SIGNALS)
    child.beat()
    assert child.orders == ["TERM", "TSTP", "TTIN", "0"]


def test_a_child_that_was_removed_from_the_list_is_listed_again_with_the_next_beat(
    child: FakeChild, redis: Redis
) -> None:
    child.beat()
    redis.srem("processes", IDENTITY)
    child.beat()
    assert redis.smembers("processes") == {IDENTITY.encode()}


def test_a_record_names_forkq_as_its_software(child: FakeChild, redis: Redis) -> None:
    """Sidekiq's Busy page shows any version but its own."""
    child.beat()
    assert json.loads(record(redis)["info"])["version"] == f"forkq {forkq.__version__}"


@pytest.mark.parametrize("wrong", [3600.0, -3600.0])
def test_after_a_beat_a_childs_stamps_go_by_the_servers_clock(
    child: FakeChild, redis: Redis, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    """And with them what they decide: when a job is retried, whether it has run for too long."""
    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() + wrong)
    child.beat()
    assert float(record(redis)["beat"]) == pytest.approx(true(), abs=60)
    unit = UnitOfWork(1, "default", 1, PAYLOAD)
    decision = decide(unit, None, ValueError("boom"), lambda error, event: None)
    assert isinstance(decision, Retry)
    assert -60 < decision.at - true() < 120
    child.totals = Totals(1, 0)
    child.beat()
    assert redis.get(f"stat:processed:{datetime.fromtimestamp(true(), timezone.utc):%Y-%m-%d}")


def test_news_make_it_beat_at_once(child: FakeChild, redis: Redis) -> None:
    child.start()
    wait_until(lambda: redis.exists(IDENTITY), what="the first beat")
    child.quiet = True
    child.heartbeat.soon()
    wait_until(lambda: record(redis)["quiet"] == "true", what="the news")
    assert child.heartbeat.stop(time.monotonic() + 30, gone=True)


# The end


def test_at_the_end_counts_are_flushed_and_the_record_is_removed(
    child: FakeChild, redis: Redis
) -> None:
    child.performs()
    child.start()
    wait_until(lambda: redis.exists(IDENTITY), what="the first beat")
    child.totals = Totals(5, 1)
    assert child.heartbeat.stop(time.monotonic() + 30, gone=True)
    assert (redis.get("stat:processed"), redis.get("stat:failed")) == (b"5", b"1")
    left = {key for key in redis.keys("*") if IDENTITY.encode() in key}
    assert left <= {NOTE.encode()}
    assert not redis.exists("processes")


def test_a_child_with_leases_left_flushes_and_leaves_its_record(
    child: FakeChild, redis: Redis
) -> None:
    child.start()
    wait_until(lambda: redis.exists(IDENTITY), what="the first beat")
    child.totals = Totals(5, 1)
    assert child.heartbeat.stop(time.monotonic() + 30, gone=False)
    assert redis.get("stat:processed") == b"5"
    assert redis.exists(IDENTITY)


@pytest.mark.parametrize("lost", [b"EVALSHA", b"SREM"])
def test_a_lost_reply_at_the_end_costs_nothing_and_counts_nothing_twice(
    redis: Redis, redis_server: Server, lost: bytes
) -> None:
    with Proxy(redis_server.port) as proxy, closing(FakeChild(proxy.url)) as child:
        child.beat()
        child.start()
        wait_until(lambda: redis.scard("processes"), what="the first beat")
        child.totals = Totals(5, 1)
        proxy.cut(lost)
        assert child.heartbeat.stop(time.monotonic() + 30, gone=True)
        assert proxy.cuts == 1
    assert redis.get("stat:processed") == b"5"
    assert not redis.exists(IDENTITY)


def test_without_redis_it_ends_in_time_and_says_that_something_is_left(own_server: Server) -> None:
    with closing(FakeChild(own_server.url)) as child:
        child.beat()
        own_server.stop()
        child.start()
        wait_until(child.log.events, what="the loss")
        started = time.monotonic()
        assert not child.heartbeat.stop(time.monotonic() + 1, gone=True)
        assert time.monotonic() - started < within(5)


# Gaps


def test_the_first_beat_publishes_and_a_gap_looks_for_losses_and_publishes_again(
    child: FakeChild, redis: Redis
) -> None:
    child.beat()
    child.beat()
    assert child.called == ["publish"]
    redis.delete(IDENTITY, NOTE, "processes")
    child.beat()
    child.beat()
    assert child.called == ["publish", "gap", "publish"]
    assert redis.smembers("processes") == {IDENTITY.encode()}
    assert redis.exists(NOTE)


def test_it_publishes_again_within_a_minute(
    child: FakeChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds and repairs what another program has made of the definitions."""
    child.beat()
    later = time.monotonic() + 40
    monkeypatch.setattr(time, "monotonic", lambda: later)
    child.beat()
    child.beat()
    assert child.called == ["publish", "publish"]


def test_a_record_that_was_written_but_whose_reply_was_lost_counts_as_a_gap(
    redis: Redis, redis_server: Server
) -> None:
    """The beat that wrote the record got no reply. The next one cannot know, so it looks."""
    with Proxy(redis_server.port) as proxy, closing(FakeChild(proxy.url)) as child:
        assert child.beat()
        redis.delete(IDENTITY)
        proxy.cut(b"HSET")
        assert not child.beat()
        assert redis.exists(IDENTITY)
        assert child.beat()
        assert child.called == ["publish", "gap", "publish"]


def test_a_first_beat_whose_reply_was_lost_is_made_up_for(
    redis: Redis, redis_server: Server
) -> None:
    with Proxy(redis_server.port) as proxy, closing(FakeChild(proxy.url)) as child:
        proxy.cut(b"HSET")
        assert not child.beat()
        assert child.beat()
        assert child.called == ["publish"]
        assert redis.smembers("processes") == {IDENTITY.encode()}


@pytest.mark.parametrize("name", ["gap", "publish"])
def test_a_task_that_fails_is_logged_and_changes_nothing_else(
    child: FakeChild, redis: Redis, name: str
) -> None:
    child.beat()
    child.failures[name] = RuntimeError("mine")
    redis.delete(IDENTITY)
    child.totals = Totals(3, 0)
    redis.lpush(SIGNALS, "TSTP")
    assert child.beat()
    assert redis.exists(IDENTITY)
    assert redis.get("stat:processed") == b"3"
    assert child.orders == ["TSTP"]
    [(level, _, values)] = child.log.lines
    assert (level, str(values["exc_info"])) == ("error", "mine")


def test_a_failed_publish_is_tried_again_until_it_succeeds(child: FakeChild) -> None:
    child.failures["publish"] = RuntimeError("mine")
    child.beat()
    child.beat()
    assert len(child.log.lines) == 1  # the same failure is logged once
    del child.failures["publish"]
    child.beat()
    child.beat()
    assert child.called == ["publish"] * 3


def test_a_publish_that_leaves_something_is_repeated_with_every_beat(child: FakeChild) -> None:
    """But only as long as it does."""
    child.left = True
    child.beat()
    child.beat()
    child.left = False
    child.beat()
    child.beat()
    assert child.called == ["publish"] * 3
    assert child.log.lines == []


# Redis that is away, slow, full or full of other things


def test_an_outage_is_logged_once_and_ends_with_the_next_beat(own_server: Server) -> None:
    redis = own_server.client()
    with closing(FakeChild(own_server.url)) as child:
        child.totals = Totals(1, 0)
        assert child.beat()
        own_server.stop()
        child.totals = Totals(2, 0)
        assert not child.beat()
        assert not child.beat()
        own_server.start()
        assert child.beat()
        assert child.log.events() == ["redis lost", "redis is back"]
    assert redis.get("stat:processed") == b"2"
    assert redis.exists(IDENTITY)


def test_a_beat_that_was_answered_before_another_part_lost_redis_ends_no_outage(
    child: FakeChild,
) -> None:
    """The reply came; then the fetcher failed; only then the heartbeat's thread goes on."""
    child.meanwhile = lambda: child.heartbeat._outage.begin(REFUSED)
    assert child.beat()
    assert child.log.events() == ["redis lost"]
    child.meanwhile = lambda: None
    assert child.beat()
    assert child.log.events() == ["redis lost", "redis is back"]


def test_progress_that_is_not_sent_says_nothing_of_redis(child: FakeChild) -> None:
    """No job has reported anything new: so Redis is not asked, and has not answered."""
    assert child.beat()
    child.heartbeat._outage.begin(REFUSED)
    answered = child.heartbeat.redis_at
    child.news.note_progress()
    child.news.progress_at = 0.0
    child.heartbeat._send_progress_if_due()
    assert not child.news.has_progress
    assert child.log.events() == ["redis lost"]
    assert child.heartbeat.redis_at == answered


def test_a_full_server_takes_the_record_and_the_counts_and_that_is_told_once(
    own_server: Server,
) -> None:
    """What it refuses is :work, which only a web UI reads."""
    redis = own_server.client()
    with closing(FakeChild(own_server.url)) as child:
        child.performs()
        assert child.beat()
        redis.delete(IDENTITY, "processes")
        redis.config_set("maxmemory", 1)
        child.totals = Totals(4, 0)
        assert not child.beat()
        assert not child.beat()
        assert redis.exists(IDENTITY)
        assert redis.smembers("processes") == {IDENTITY.encode()}
        assert redis.get("stat:processed") == b"4"
        assert child.called == ["publish", "gap", "publish"]
        assert child.log.events() == ["refused"]
        redis.config_set("maxmemory", 0)
        assert child.beat()
        assert child.log.events() == ["refused", "taken"]
        assert redis.exists(WORK)


@pytest.mark.parametrize("key", [SIGNALS, WORK, NOTE, "processes", f"forkq:place:{IDENTITY}"])
def test_a_key_that_holds_something_else_does_not_keep_the_record_from_being_written(
    child: FakeChild, redis: Redis, key: str
) -> None:
    redis.zadd(key, {"mine": 1})
    child.performs()
    child.beat()
    before = record(redis)["beat"]
    child.beat()
    assert record(redis)["beat"] > before
    assert child.called[0] == "publish"


def test_a_slow_redis_is_told_once_after_five_beats(
    child: FakeChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the figures, and how busy the processors were."""
    take = Record.take_orders

    def slowly(self: Record, connection: RedisConnection) -> list[str]:
        connection.call("BLPOP", "nothing", 0.06)  # the server takes its time to answer
        return take(self, connection)

    child.performs()
    assert child.beat()
    monkeypatch.setattr(Record, "take_orders", slowly)
    assert all(child.beat() for _ in range(7))
    [(level, event, values)] = child.log.lines
    assert (level, values["busy"]) == ("warning", 1)
    assert event.startswith("slow round trips")
    assert len(values["ms"]) == 5
    assert min(values["ms"]) > 50


# Progress


def work_in(redis: Redis) -> list[dict[str, Any]]:
    found: Any = redis.hvals(WORK)
    return [json.loads(raw) for raw in found]


def test_progress_is_sent_within_a_second_and_without_a_beat(
    redis: Redis, child: FakeChild
) -> None:
    """Then at most once a second, however often a job reports."""
    unit = child.performs()
    child.start()
    wait_until(lambda: len(work_in(redis)) == 1, what="the first beat")
    begun = redis.hget(IDENTITY, "beat")
    commands: Any = redis.info("commandstats")
    before = commands["cmdstat_hset"]["calls"]
    started = time.monotonic()
    while time.monotonic() < started + 2.2:
        done = time.monotonic() - started
        unit.progress = Progress(done, 10, "", time.time())
        child.news.note_progress()
    wait_until(
        lambda: work_in(redis)[0].get("progress", {}).get("done") == done,
        deadline=within(3),
        what="the last report",
    )
    assert redis.hget(IDENTITY, "beat") == begun
    assert redis.ttl(WORK) > 0
    commands = redis.info("commandstats")
    writes = (commands["cmdstat_hset"]["calls"] - before) / 2  # both of its hashes
    assert 1 <= writes <= time.monotonic() - started + 1
    assert child.heartbeat.stop(time.monotonic() + 30, gone=True)


def test_progress_that_is_written_costs_nothing_more(redis: Redis, child: FakeChild) -> None:
    unit = child.performs()
    child.start()
    wait_until(lambda: len(work_in(redis)) == 1, what="the first beat")
    unit.progress = Progress(1, 10, "", time.time())
    child.news.note_progress()
    wait_until(lambda: "progress" in work_in(redis)[0], what="the progress")
    commands: Any = redis.info("commandstats")
    before = commands["cmdstat_hset"]["calls"]
    child.news.progress_at = 0.0
    child.news.note_progress()
    wait_until(lambda: not child.news.has_progress, what="the look at what is new")
    commands = redis.info("commandstats")
    assert commands["cmdstat_hset"]["calls"] == before
    assert child.heartbeat.stop(time.monotonic() + 30, gone=True)
