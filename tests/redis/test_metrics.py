"""Counters and metrics in Redis: Sidekiq's keys to the letter, each job counted exactly once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone
from typing import Any

import pytest
from redis import Redis

from forkq.child.heartbeat import stats_flush as ledger_module
from forkq.child.heartbeat.stats import Figures, Tally, Totals, total
from forkq.child.heartbeat.stats_flush import StatsFlusher
from forkq.store import counters
from forkq.store.connection import ConnectionLost, RedisConnection, ResponseError
from forkq.store.deploys import mark
from forkq.wire.keys import Keys
from tests.redis.in_process_child import IDENTITY
from tests.redis.proxy import Proxy
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server

NOON = datetime(2026, 3, 9, 12, 4, 30, tzinfo=timezone.utc)
MINUTE, TENS, NOTE = "j|260309|12:04", "j|260309|12:0", f"forkq:flushed:{IDENTITY}"
HOURS_8, DAYS_3, YEARS_5 = 8 * 3600, 3 * 86_400, 5 * 365 * 86_400


class CountingChild:
    """The counts of one child, flushed on one connection at a time that the test sets."""

    def __init__(self, url: str, at: datetime = NOON) -> None:
        self.at = at
        self.log = RecordedLog()
        self.tally = Tally()
        self.ran_twice: dict[str, int] = {}
        self.connection = RedisConnection(url, timeout=5)
        self.stats_flusher = StatsFlusher(IDENTITY, Keys(), self.log, clock=self.now)

    def now(self) -> float:
        """Epoch seconds."""
        return self.at.timestamp()

    def flush(self) -> None:
        """As the heartbeat does it."""
        self.connection.connect()
        self.stats_flusher.flush(self.connection, total([self.tally], self.ran_twice))

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def child(redis: Redis, redis_server: Server) -> Iterator[CountingChild]:
    with closing(CountingChild(redis_server.url)) as found:
        yield found


def fields(redis: Redis, key: str) -> dict[str, int]:
    found: Any = redis.hgetall(key)
    return {name.decode(): int(value) for name, value in found.items()}


def number(redis: Redis, key: str) -> int:
    found: Any = redis.get(key)
    return int(found or 0)


def buckets(redis: Redis, key: str) -> list[int]:
    """As Sidekiq's metrics query reads a histogram."""
    reads = [part for n in range(26) for part in ("GET", "u16", f"#{n}")]
    client: Any = redis  # redis-py types each command, not this one
    return list(client.execute_command("BITFIELD_RO", key, *reads))


def test_counters_metrics_and_histograms_stand_as_sidekiq_8_writes_them(
    child: CountingChild, redis: Redis
) -> None:
    for seconds in (0.001, 0.012, 0.028, 14.0):
        child.tally.count_done("Slow::Job", seconds)
    child.tally.count_failed("Slow::Job")
    child.tally.count_failed("Bad")
    child.ran_twice = {"Slow::Job": 1, "Bad": 1}
    child.flush()
    for key in (MINUTE, TENS):
        assert fields(redis, key) == {
            "Slow::Job|p": 5, "Slow::Job|f": 1, "Slow::Job|ms": 14_041, "Bad|p": 1, "Bad|f": 1
        }  # fmt: skip
    expected = [0] * 26
    expected[0], expected[1], expected[17] = 2, 1, 1
    assert buckets(redis, "h|Slow::Job-9-12:4") == expected
    assert number(redis, "stat:processed") == number(redis, "stat:processed:2026-03-09") == 6
    assert number(redis, "stat:failed") == number(redis, "stat:failed:2026-03-09") == 2
    assert number(redis, "forkq:stat:ran_twice") == 2
    assert fields(redis, NOTE) == {"number": 1, "processed": 6, "failed": 2, "beats": 1}
    lives: dict[str, Any] = {key.decode(): redis.ttl(key) for key in redis.scan_iter()}
    wanted = {
        MINUTE: HOURS_8, TENS: DAYS_3, "h|Slow::Job-9-12:4": HOURS_8, NOTE: 86_400,
        "stat:processed:2026-03-09": YEARS_5, "stat:failed:2026-03-09": YEARS_5,
        "stat:processed": -1, "stat:failed": -1, "forkq:stat:ran_twice": -1,
        "forkq:totals:jobs": -1,
    }  # fmt: skip
    assert lives.keys() == wanted.keys()
    assert all(wanted[key] - 5 <= left <= wanted[key] for key, left in lives.items())


def test_a_job_that_takes_no_time_has_its_field_all_the_same(
    child: CountingChild, redis: Redis
) -> None:
    child.tally.count_done("Noop", 0.0)
    child.flush()
    assert fields(redis, MINUTE) == {"Noop|p": 1, "Noop|ms": 0}


def test_each_flush_adds_what_is_new_and_an_idle_one_sends_nothing(
    child: CountingChild, redis: Redis
) -> None:
    child.tally.count_done("A", 0.01)
    child.flush()
    child.tally.count_done("A", 0.01)
    child.tally.count_done("B", 0.01)
    child.flush()
    assert fields(redis, MINUTE) == {"A|p": 2, "A|ms": 20, "B|p": 1, "B|ms": 10}
    redis.config_resetstat()
    child.flush()
    calls: Any = redis.info("commandstats")
    assert not [name for name in calls if "evalsha" in name]
    assert number(redis, "stat:processed") == 3


def test_what_is_counted_after_midnight_belongs_to_the_new_day(
    child: CountingChild, redis: Redis
) -> None:
    child.at = datetime(2026, 12, 31, 23, 59, 59, tzinfo=timezone.utc)
    child.tally.count_done("A", 0.01)
    child.flush()
    child.at = datetime(2027, 1, 1, 0, 0, 1, tzinfo=timezone.utc)
    child.tally.count_done("A", 0.01)
    child.tally.count_done("A", 0.01)
    child.flush()
    assert number(redis, "stat:processed:2026-12-31") == 1
    assert number(redis, "stat:processed:2027-01-01") == 2
    assert number(redis, "stat:processed") == 3
    assert fields(redis, "j|261231|23:59")["A|p"] == fields(redis, "j|261231|23:5")["A|p"] == 1
    assert fields(redis, "j|270101|0:00")["A|p"] == fields(redis, "j|270101|0:0")["A|p"] == 2
    assert buckets(redis, "h|A-31-23:59")[0] == 1
    assert buckets(redis, "h|A-1-0:0")[0] == 2


def test_a_bucket_that_is_full_stays_full(child: CountingChild, redis: Redis) -> None:
    """u16 saturates; it must not start from zero again."""
    figures = child.tally.classes["A"] = Figures()
    for _ in range(3):
        figures.longer[2] += 70_000
        child.flush()
    assert buckets(redis, "h|A-9-12:4")[3] == 65_535
    assert fields(redis, MINUTE)["A|p"] == 210_000


def test_many_classes_go_in_several_short_scripts_and_all_arrive(
    child: CountingChild, redis: Redis
) -> None:
    """No script of a flush may keep the server from others for long."""
    names = [f"Module{number}::Job" for number in range(1050)]
    for name in names:
        child.tally.count_done(name, 0.01)
        child.tally.count_failed(name)
    redis.config_resetstat()
    child.flush()
    calls: Any = redis.info("commandstats")
    assert calls["cmdstat_evalsha"]["calls"] >= 10
    found = fields(redis, MINUTE)
    assert all((found[f"{name}|p"], found[f"{name}|f"]) == (2, 1) for name in names)
    assert number(redis, "stat:processed") == 2100
    assert all(redis.exists(f"h|{name}-9-12:4") for name in names)
    assert fields(redis, NOTE)["processed"] == 2100


def test_a_flush_whose_reply_is_lost_counts_once(redis: Redis, redis_server: Server) -> None:
    """It is sent again as it was, and what was counted meanwhile comes with the next one."""
    with Proxy(redis_server.port) as proxy, closing(CountingChild(proxy.url)) as child:
        child.flush()  # the script is known from here on
        for turn in range(1, 21):
            child.tally.count_done("A", 0.01)
            child.tally.count_failed("B")
            proxy.cut(b"EVALSHA", times=turn % 3)
            for _ in range(proxy_cuts := turn % 3):
                with pytest.raises(ConnectionLost):
                    child.flush()
                child.tally.count_done("A", 0.01)
            assert proxy.cuts == proxy_cuts
            child.flush()
    assert (number(redis, "stat:processed"), number(redis, "stat:failed")) == (
        child.tally.processed,
        child.tally.failed,
    )
    figures = child.tally.classes["A"]
    assert fields(redis, MINUTE) == {
        "A|p": figures.short, "A|ms": int(figures.seconds * 1000), "B|p": 20, "B|f": 20
    }  # fmt: skip
    assert buckets(redis, "h|A-9-12:4")[0] == figures.short


def test_counts_of_an_outage_arrive_when_it_is_over(own_server: Server) -> None:
    redis = own_server.client()
    with closing(CountingChild(own_server.url)) as child:
        child.tally.count_done("A", 0.01)
        child.flush()
        own_server.stop()
        for _ in range(5):
            child.tally.count_done("A", 0.01)
            with pytest.raises(ConnectionLost):
                child.flush()
        own_server.start()
        child.flush()
    assert number(redis, "stat:processed") == 6
    assert fields(redis, MINUTE) == {"A|p": 6, "A|ms": 60}


def test_a_full_server_takes_every_count(own_server: Server) -> None:
    redis = own_server.client()
    with closing(CountingChild(own_server.url)) as child:
        redis.config_set("maxmemory", 1)
        with pytest.raises(ResponseError):
            redis.incr("stat:processed")
        child.tally.count_done("A", 0.01)
        child.tally.count_failed("B")
        child.flush()
        child.flush()
    assert number(redis, "stat:processed") == 2
    assert fields(redis, MINUTE) == {"A|p": 1, "A|ms": 10, "B|p": 1, "B|f": 1}
    assert buckets(redis, "h|A-9-12:4")[0] == 1


@pytest.mark.parametrize(
    ("key", "left"),
    [
        ("stat:processed", 4),
        ("stat:processed:2026-03-09", 4),
        (MINUTE, 4),
        (TENS, 4),
        ("h|A-9-12:4", 4),
    ],
)
def test_a_key_of_another_type_costs_its_own_counts_and_makes_no_other_count_twice(
    child: CountingChild, redis: Redis, key: str, left: int
) -> None:
    redis.rpush(key, "mine")
    for _ in range(2):
        child.tally.count_done("A", 0.01)
        child.tally.count_failed("A")
        child.flush()
        child.flush()
    assert redis.lrange(key, 0, -1) == [b"mine"]
    assert redis.ttl(key) == -1
    if key != "stat:processed":
        assert number(redis, "stat:processed") == left
    if key != MINUTE:
        assert fields(redis, MINUTE) == {"A|p": left, "A|f": 2, "A|ms": 20}
    assert number(redis, "stat:failed") == 2
    logged = [values for _, event, values in child.log.lines if event.startswith("counts dropped")]
    assert logged == [{"key": key}]


def test_a_note_that_was_lost_is_renewed_and_nothing_counts_twice(
    child: CountingChild, redis: Redis
) -> None:
    """As after a sweep that took this child for dead, or a server that came back empty."""
    child.tally.count_done("A", 0.01)
    child.flush()
    redis.delete(NOTE)
    child.stats_flusher.renew()
    child.flush()
    assert fields(redis, NOTE) == {"number": 2, "processed": 1, "failed": 0, "beats": 1}
    assert number(redis, "stat:processed") == 1


def settle(child: CountingChild, processed: int, failed: int) -> int:
    """What the master's rescue does for a killed child."""
    child.connection.connect()
    [missing] = child.connection.exchange(
        [counters.add_missing(Keys(), IDENTITY, processed, failed, NOON)]
    )
    return int(missing)


def test_a_killed_childs_last_beat_is_added_once(child: CountingChild, redis: Redis) -> None:
    child.tally.count_done("A", 0.01)
    child.tally.count_failed("A")
    child.flush()
    assert settle(child, 10, 4) == 8
    assert settle(child, 10, 4) == 0  # the reply to the first may have been lost
    for name, count in (("processed", 10), ("failed", 4)):
        assert number(redis, f"stat:{name}") == number(redis, f"stat:{name}:2026-03-09") == count


def test_the_end_of_a_child_is_counted_once(child: CountingChild, redis: Redis) -> None:
    """Also before it has flushed anything, and beyond the names that the hash may have."""
    child.connection.connect()
    for identity, how in ((IDENTITY, "crash|SIGSEGV"), ("vm:1:2", "crash|SIGSEGV")):
        call = counters.child_ended(Keys(), identity, how)
        assert child.connection.exchange([call, call]) == [1, 0]
    totals = Keys().totals("children")
    assert redis.hgetall(totals) == {b"|names": b"1", b"crash|SIGSEGV|n": b"2"}
    redis.hset(totals, "|names", counters.MOST_REASONS)
    child.connection.exchange([counters.child_ended(Keys(), "vm:1:3", "crash|other")])
    assert redis.hget(totals, "(other)|n") == b"1"
    assert 0 < redis.ttl(Keys().flushed("vm:1:3")) <= 3600


def test_a_last_beat_that_is_older_than_the_last_flush_adds_nothing(
    child: CountingChild, redis: Redis
) -> None:
    for _ in range(5):
        child.tally.count_done("A", 0.01)
    child.flush()
    assert settle(child, 3, 0) == 0
    assert number(redis, "stat:processed") == 5


def test_without_a_note_nothing_is_known_to_be_missing(child: CountingChild, redis: Redis) -> None:
    """Another clock has forgotten that child already: its jobs must not count again."""
    assert settle(child, 1000, 1000) == 0
    assert redis.keys("*") == []


def test_a_full_server_takes_the_last_beat(own_server: Server) -> None:
    redis = own_server.client()
    with closing(CountingChild(own_server.url)) as child:
        child.flush()
        redis.config_set("maxmemory", 1)
        assert settle(child, 2, 1) == 2
    assert (number(redis, "stat:processed"), number(redis, "stat:failed")) == (2, 1)


def test_after_lost_replies_and_a_kill_every_job_counts_exactly_once(
    redis: Redis, redis_server: Server
) -> None:
    """A random life: jobs, lost replies, a note that expires, and at the end a kill."""
    chance = random.Random(7)
    with Proxy(redis_server.port) as proxy, closing(CountingChild(proxy.url)) as child:
        for _ in range(150):
            for _ in range(chance.randrange(4)):
                child.tally.count_done(chance.choice("ABC"), chance.random())
            proxy.cut(b"EVALSHA", times=chance.randrange(3))
            try:
                child.flush()
            except ConnectionLost:
                continue
        proxy.cut(b"EVALSHA", times=0)
        counted = child.tally.processed
        assert settle(child, counted, 0) <= counted
    assert number(redis, "stat:processed") == counted


def test_batches_go_on_where_a_lost_reply_stopped_them(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "_CLASSES_AT_ONCE", 2)
    with Proxy(redis_server.port) as proxy, closing(CountingChild(proxy.url)) as child:
        for name in "ABCDEFG":
            child.tally.count_done(name, 0.01)
        proxy.cut(b"EVALSHA", times=1)
        with pytest.raises(ConnectionLost):
            child.flush()
        child.flush()
    found = fields(redis, MINUTE)
    assert found == {
        f"{name}|{field}": n for name in "ABCDEFG" for field, n in (("p", 1), ("ms", 10))
    }
    assert number(redis, "stat:processed") == 7


def test_nothing_done_is_nothing_flushed_but_the_note(child: CountingChild, redis: Redis) -> None:
    child.stats_flusher.flush(_connected(child), Totals())
    assert [key.decode() for key in redis.scan_iter()] == [NOTE]


def _connected(child: CountingChild) -> RedisConnection:
    child.connection.connect()
    return child.connection


# Deploy marks


def test_a_mark_stands_as_sidekiqs_deploy_reads_it(child: CountingChild, redis: Redis) -> None:
    connection = _connected(child)
    assert mark(connection, Keys(), "v1.2.3 deploy", at=NOON.timestamp())
    assert redis.hgetall("20260309-marks") == {b"2026-03-09T12:04:00Z": b"v1.2.3 deploy"}
    assert 90 * 86_400 - 5 <= redis.ttl("20260309-marks") <= 90 * 86_400
    assert 55 <= redis.ttl("deploylock-v1.2.3 deploy") <= 60


def test_ten_hosts_that_deploy_the_same_make_one_mark(child: CountingChild, redis: Redis) -> None:
    """Even if a minute ends between them."""
    connection = _connected(child)
    made = [mark(connection, Keys(), "v2", at=NOON.timestamp() + 10 * host) for host in range(10)]
    assert made == ["v2"] + [None] * 9
    assert redis.hlen("20260309-marks") == 1


def test_two_deploys_in_one_minute_are_both_shown(child: CountingChild, redis: Redis) -> None:
    connection = _connected(child)
    assert mark(connection, Keys(), "first", at=NOON.timestamp()) == "first"
    assert mark(connection, Keys(), "second", at=NOON.timestamp()) == "first, second"
    assert redis.hvals("20260309-marks") == [b"first, second"]


def test_a_full_server_takes_a_mark(own_server: Server) -> None:
    own_server.cli("CONFIG", "SET", "maxmemory", 1)
    connection = RedisConnection(own_server.url)
    connection.connect()
    assert mark(connection, Keys(), "v4", at=NOON.timestamp()) == "v4"
    connection.close()
    assert own_server.cli("EXISTS", "deploylock-v4") == 1


def test_a_mark_that_the_server_refused_may_be_set_again(
    child: CountingChild, redis: Redis
) -> None:
    redis.set("20260309-marks", "no hash")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        mark(_connected(child), Keys(), "v3", at=NOON.timestamp())
    redis.delete("20260309-marks")
    child.connection.close()
    assert mark(_connected(child), Keys(), "v3", at=NOON.timestamp()) == "v3"
