"""A class that kills process after process is held: its jobs run alone until one ends well."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from redis import Redis

from forkq import api
from forkq.child.job_run import JobRun
from forkq.child.observers import ReleaseClasses
from forkq.runtime.pipe import ClassesHeld
from forkq.store.connection import RedisConnection
from forkq.store.crash_record import ProcessDeath
from forkq.store.dead_set import DeadSetLimits
from forkq.store.held_classes import DEADLY_DEATHS, WITHIN, waiting_jobs
from forkq.store.pool import RedisPool
from forkq.store.recovery import Recovered, Recovery
from forkq.store.scripts import ISOLATE
from forkq.store.steps import carry_out
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from tests.redis.in_process_clock import InProcessClock
from tests.redis.shell import Shell
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.waiting import wait_until

KEYS = Keys()
SUSPECTS = KEYS.suspects("q")


def payload(jid: str, name: str = "Boom", **more: Any) -> str:
    return json.dumps({"class": name, "args": [], "jid": jid, **more})


def solo(number: int) -> str:
    return f"vm:{number}:soloaaaaaaaa"


class Deaths:
    """Processes that die of one job each, and are recovered."""

    def __init__(self, redis: Redis, connection: RedisConnection) -> None:
        self._redis = redis
        self._connection = connection
        self._recovery = Recovery(DeadSetLimits(KEYS))
        connection.connect()

    def of(self, owner: str, job: str | None = None, sequence: int = 1, **more: Any) -> Recovered:
        """A process dies while it has that job in progress."""
        crash = more.pop("crash", ProcessDeath(signal=9))
        self._redis.hset(KEYS.inflight("q"), f"{owner}/{sequence}", job or payload(f"{owner}"))
        steps = self._recovery.recover(["q"], owner, crash, **more)
        return carry_out(self._connection, steps)


@pytest.fixture
def deaths(redis: Redis, connection: RedisConnection) -> Deaths:
    return Deaths(redis, connection)


def hold(redis: Redis, name: str = "Boom") -> None:
    redis.hset(KEYS.held_classes, name, "1700000000 5")


def held(redis: Redis) -> set[str]:
    found: Any = redis.hkeys(KEYS.held_classes)
    return {name.decode() for name in found}


# Who is held


def test_the_fifth_death_within_a_minute_holds_a_class(redis: Redis, deaths: Deaths) -> None:
    told = [deaths.of(solo(number)).held for number in range(DEADLY_DEATHS + 2)]
    assert told == [[]] * (DEADLY_DEATHS - 1) + [["Boom"]] + [[], []], "one alert"
    since, count = (redis.hget(KEYS.held_classes, "Boom") or b"").split()
    assert abs(int(since) - time.time()) < 60
    assert int(count) == DEADLY_DEATHS + 2


def test_deaths_of_long_ago_do_not_count(redis: Redis, deaths: Deaths) -> None:
    long_ago = time.time() - WITHIN - 5
    redis.zadd(KEYS.deaths_of_class("Boom"), {solo(n): long_ago for n in range(100)})
    for number in range(200, 200 + DEADLY_DEATHS - 1):
        assert deaths.of(solo(number)).held == []
    assert 0 < redis.ttl(KEYS.deaths_of_class("Boom")) <= WITHIN


def test_other_classes_and_the_deaths_of_trees_do_not_count(redis: Redis, deaths: Deaths) -> None:
    for number in range(2 * DEADLY_DEATHS):
        deaths.of(solo(number), payload("x", f"Other{number}"))
        deaths.of(solo(100 + number), crash=ProcessDeath(reason="host lost", of_tree=True))
    assert held(redis) == set()


def test_a_death_beside_other_jobs_counts_only_if_the_thread_that_crashed_ran_the_job(
    redis: Redis, deaths: Deaths
) -> None:
    for number in range(2 * DEADLY_DEATHS):
        owner = f"vm:{number}:aaaaaaaaaaaa"
        redis.hset(KEYS.inflight("q"), f"{owner}/7", payload("good", "Good"))
        deaths.of(owner, sequence=8, last_begun=8)
        assert held(redis) == set()
    for number in range(DEADLY_DEATHS):
        owner = f"vm:{number}:bbbbbbbbbbbb"
        redis.hset(KEYS.inflight("q"), f"{owner}/7", payload("good", "Good"))
        deaths.of(owner, sequence=8, last_begun=8, crashed=8)
    assert held(redis) == {"Boom"}


def test_a_death_that_is_told_twice_counts_once(redis: Redis, deaths: Deaths) -> None:
    """The reply to the first may have been lost."""
    for _ in range(2 * DEADLY_DEATHS):
        assert deaths.of(solo(1)).held == []
    assert held(redis) == set()


def test_the_class_of_a_large_job_and_of_an_active_job_counts(redis: Redis, deaths: Deaths) -> None:
    text = "x" * 100_000
    for number in range(DEADLY_DEATHS):
        deaths.of(solo(number), payload("1", "Large", text=text))
        deaths.of(solo(100 + number), payload("1", "Wrapper", wrapped="Mail"))
        deaths.of(solo(200 + number), payload("1", "Wrapper", wrapped="Huge", text=text))
    assert held(redis) == {"Large", "Mail", "Huge"}


def test_a_damaged_key_costs_no_job_and_is_told(redis: Redis, deaths: Deaths) -> None:
    redis.set(KEYS.deaths_of_class("Boom"), "x")
    recovered = deaths.of(solo(1))
    assert (recovered.moved, recovered.held) == (1, [])
    assert "WRONGTYPE" in recovered.refusal
    log = RecordedLog()
    recovered.tell(log, "jobs rescued")
    assert "a death is not counted for its class" in log.events()
    assert redis.llen(SUSPECTS) == 1


# What a child does with its jobs


def isolate(connection: RedisConnection, name: str) -> int:
    lists = (KEYS.inflight("q"), SUSPECTS, KEYS.suspected, KEYS.queue("q"))
    keys = (*lists, KEYS.held_classes, KEYS.awaited("q"), KEYS.bucket("q"))
    moved: int = connection.script(ISOLATE, keys, ("vm:1:aaaaaaaaaaaa/1", "q", name))
    return moved


def test_a_job_of_a_held_class_waits_behind_the_suspects_unchanged(
    redis: Redis, connection: RedisConnection
) -> None:
    connection.connect()
    hold(redis)
    redis.rpush(SUSPECTS, payload("suspect", forkq={"suspect": True}))
    for jid in ("1", "2"):
        redis.hset(KEYS.inflight("q"), "vm:1:aaaaaaaaaaaa/1", payload(jid))
        assert isolate(connection, "Boom") == 1
    assert [jid for jid, _ in jobs(redis, SUSPECTS)] == ["suspect", "1", "2"]
    assert redis.smembers(KEYS.suspected) == {b"q"}
    assert redis.lindex(SUSPECTS, 0) == payload("2").encode()


@pytest.mark.parametrize("damaged", [False, True])
def test_a_job_of_a_class_that_was_released_meanwhile_stays_in_its_queue(
    redis: Redis, connection: RedisConnection, damaged: bool
) -> None:
    connection.connect()
    if damaged:
        redis.set(KEYS.held_classes, "x")
    redis.rpush("queue:q", payload("next"))
    redis.hset(KEYS.inflight("q"), "vm:1:aaaaaaaaaaaa/1", payload("1"))
    assert isolate(connection, "Boom") == 2
    assert [jid for jid, _ in jobs(redis, "queue:q")] == ["1", "next"]
    assert not redis.exists(SUSPECTS, KEYS.suspected, KEYS.inflight("q"))
    assert isolate(connection, "Boom") == 0


def jobs(redis: Redis, key: str) -> list[tuple[str, str]]:
    """Jid and class of the jobs there, the next one first."""
    found: Any = redis.lrange(key, 0, -1)
    return [(job["jid"], job["class"]) for job in map(json.loads, reversed(found))]


def test_a_job_that_ended_well_alone_releases_its_class(redis: Redis, redis_server: Server) -> None:
    hold(redis)
    redis.zadd(KEYS.deaths_of_class("Boom"), {solo(1): time.time()})
    pool = RedisPool(redis_server.url, size=1, timeout=5, connect_timeout=2)
    known = {"Boom", "Other"}
    observer = ReleaseClasses(known, KEYS, pool, RecordedLog())
    for name in ("Good", "Boom"):
        assert held(redis) == {"Boom"}
        run = JobRun(UnitOfWork(1, "q", 1, b""))
        run.loaded({"class": name, "jid": "1"})
        observer.done(run)
    pool.close()
    assert held(redis) == set()
    assert redis.smembers(KEYS.released_classes) == {b"Boom"}
    assert not redis.exists(KEYS.deaths_of_class("Boom"))


# The way back


def fill(redis: Redis, count: int, more: str = "") -> None:
    """Suspects, jobs of Boom and jobs of Other in turn, the oldest first."""
    for number in range(count):
        redis.lpush(SUSPECTS, payload(f"s{number}", forkq={"suspect": True, "crashes": []}))
        redis.lpush(SUSPECTS, payload(f"b{number}", text=more))
        redis.lpush(SUSPECTS, payload(f"o{number}", "Other"))
    redis.sadd(KEYS.suspected, "q")


@pytest.mark.parametrize(("count", "more"), [(3, ""), (200, ""), (30, "x" * 100_000)])
def test_the_clock_returns_the_jobs_of_a_released_class_in_order(
    redis: Redis, redis_server: Server, count: int, more: str
) -> None:
    fill(redis, count, more)
    redis.lpush("queue:q", payload("behind"))
    redis.sadd(KEYS.released_classes, "Boom")
    with InProcessClock(redis_server.url):
        wait_until(lambda: not redis.exists(KEYS.released_classes), what="the end of the returns")
    back = [jid for jid, _ in jobs(redis, "queue:q")]
    assert back == [*(f"b{number}" for number in range(count)), "behind"]
    expected = [(f"{kind}{n}", name) for n in range(count) for kind, name in STAYING]
    assert jobs(redis, SUSPECTS) == expected
    assert redis.sismember(KEYS.queues, "q")


STAYING = (("s", "Boom"), ("o", "Other"))


def test_an_empty_list_of_suspects_leaves_the_set(redis: Redis, redis_server: Server) -> None:
    for jid in ("1", "2"):
        redis.lpush(SUSPECTS, payload(jid))
    redis.sadd(KEYS.suspected, "q", "gone")
    with InProcessClock(redis_server.url):
        redis.sadd(KEYS.released_classes, "Boom")
        wait_until(lambda: redis.llen("queue:q") == 2, what="both jobs")
        wait_until(lambda: not redis.exists(KEYS.released_classes), what="the end of the returns")
    assert not redis.exists(SUSPECTS)
    assert not redis.exists(KEYS.suspected)


def test_each_page_is_bounded(redis: Redis, connection: RedisConnection) -> None:
    connection.connect()
    fill(redis, 1000)
    call = waiting_jobs(KEYS, "Boom", "q", 0, returns=True)
    at, found = connection.script(call.script, call.keys, call.arguments)
    assert 100 < found < 400
    assert at == 500 - found, "what stays is passed over"
    at, found = 0, 0
    while at != -1:
        call = waiting_jobs(KEYS, "Boom", "q", at, returns=False)
        at, more = connection.script(call.script, call.keys, call.arguments)
        found += more
    assert found + (redis.llen("queue:q") or 0) == 1000


def test_a_damaged_queue_loses_no_job(redis: Redis, redis_server: Server) -> None:
    redis.lpush(SUSPECTS, payload("1"))
    redis.sadd(KEYS.suspected, "q")
    redis.sadd(KEYS.released_classes, "Boom")
    redis.set("queue:q", "x")
    with InProcessClock(redis_server.url):
        wait_until(lambda: redis.get(KEYS.leader), what="a leader")
        assert redis.llen(SUSPECTS) == 1
        redis.delete("queue:q")
        wait_until(lambda: redis.llen("queue:q") == 1, what="the job, once the key is mended")
    assert not redis.exists(SUSPECTS)


def test_each_clock_tells_its_master_which_classes_are_held(
    redis: Redis, redis_server: Server
) -> None:
    with InProcessClock(redis_server.url) as clock:

        def told() -> list[tuple[str, ...]]:
            _ = clock.leads_until  # reads the facts
            return [fact.names for fact in clock.received if isinstance(fact, ClassesHeld)]

        wait_until(lambda: told() == [()], what="the first fact")
        hold(redis)
        wait_until(lambda: told() == [(), ("Boom",)], what="the second fact")
        redis.delete(KEYS.held_classes)
        wait_until(lambda: told() == [(), ("Boom",), ()], what="the third fact")


# People


@pytest.mark.usefixtures("environment")
def test_a_person_sees_and_releases_held_classes(redis: Redis, shell: Shell) -> None:
    assert shell("classes") == 0
    assert shell.out == "no class is held\n"
    hold(redis)
    fill(redis, 3)
    assert shell("classes") == 0
    titles, row = shell.out.splitlines()
    assert titles.split() == ["CLASS", "DEATHS", "HELD", "WAITING"]
    assert (row.split()[:2], row.split()[-1]) == (["Boom", "5"], "3")
    assert shell("classes list --json") == 0
    assert json.loads(shell.out) == {
        "name": "Boom", "since": 1700000000.0, "deaths": 5, "waiting": 3
    }  # fmt: skip
    assert shell("classes release Boom") == 0
    assert shell.out == "Boom is released; 3 of its jobs go back to their queues\n"
    assert held(redis) == set()
    assert redis.smembers(KEYS.released_classes) == {b"Boom"}


@pytest.mark.usefixtures("environment")
def test_a_class_that_is_not_held_cannot_be_released(redis: Redis, shell: Shell) -> None:
    hold(redis)
    assert shell("classes release Boom Bom") == 1
    remedy = "`forkq classes` lists those that are"
    assert shell.err == f"Error: the class Bom is not held; {remedy}\n"
    assert held(redis) == {"Boom"}, "all or none"


@pytest.mark.usefixtures("environment")
def test_the_api_says_whether_a_class_was_held(redis: Redis) -> None:
    hold(redis)
    redis.hset(KEYS.held_classes, "Odd", "another program's")
    found = [(one.name, one.since, one.deaths) for one in api.held_classes()]
    assert found == [("Boom", 1700000000.0, 5), ("Odd", 0.0, 0)]
    assert api.release_class("Boom")
    assert not api.release_class("Boom")
