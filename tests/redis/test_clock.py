"""The clock's loop: a due job moves at its time, also when clocks are wrong or are set."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis import Redis

from forkq.clock import due_jobs, leader, sweep, task
from forkq.clock.cron import services
from forkq.cron.entry import Entry
from forkq.runtime.exit_codes import CLEAN
from forkq.runtime.pipe import Exiting, LeaseHeld, Quiet, Ready, SuspectsWait
from forkq.wire import times
from tests.redis.in_process_clock import InProcessClock
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.waiting import wait_until

LEASE, SUSPECTED = "forkq:leader", "forkq:suspects"


def job(jid: str = "1", queue: str = "q") -> str:
    return json.dumps({"class": "J", "args": [], "jid": jid, "queue": queue})


def arrived(redis: Redis, queue: str = "q") -> list[str]:
    payloads: Any = redis.lrange(f"queue:{queue}", 0, -1)
    return [json.loads(payload)["jid"] for payload in reversed(payloads)]


def wait_arrived(redis: Redis, *jids: str, deadline: float = 30) -> None:
    wait_until(lambda: arrived(redis) == list(jids), deadline=deadline, what=f"{jids}", every=0.002)


def wait_leads(clock: InProcessClock) -> None:
    wait_until(lambda: clock.leads_until > time.monotonic(), what="the clock to lead", every=0.005)


class WallClock:
    """The server's time as the clock's tasks see it; a test may shift it."""

    def __init__(self) -> None:
        self.shift = 0.0

    def __call__(self) -> float:
        return times.now() + self.shift


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    wall = WallClock()
    monkeypatch.setattr(due_jobs, "now", wall)
    monkeypatch.setattr(task, "now", wall)
    return wall


@pytest.fixture
def short_renewals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest sleep is half a second."""
    monkeypatch.setattr(leader, "RENEW", 0.5)


@pytest.mark.parametrize("name", ["schedule", "retry"])
def test_a_job_moves_at_its_time_and_not_before(
    redis: Redis, redis_server: Server, name: str
) -> None:
    with InProcessClock(redis_server.url) as clock:
        wait_leads(clock)
        at = time.time() + 0.4
        redis.zadd(name, {job(): at})
        wait_arrived(redis, "1")
        assert time.time() >= at
    [payload] = redis.lrange("queue:q", 0, -1)
    assert json.loads(payload)["enqueued_at"] >= at


def test_a_job_that_is_due_earlier_than_the_next_wakes_the_clock(
    redis: Redis, redis_server: Server
) -> None:
    redis.zadd("schedule", {job("late"): time.time() + 60})
    with InProcessClock(redis_server.url) as clock:
        wait_leads(clock)
        for number in range(10):
            redis.zadd("retry", {job(str(number)): time.time() + 0.05})
            wait_arrived(redis, *map(str, range(number + 1)))


def test_changes_that_are_reported_while_the_clock_works_are_not_missed(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may report them among the replies to other commands: here, to renewals."""
    monkeypatch.setattr(leader, "RENEW", 0.0005)
    with InProcessClock(redis_server.url) as clock:
        wait_leads(clock)
        for number in range(200):
            redis.zadd("schedule", {job(str(number)): time.time()})
            wait_arrived(redis, *map(str, range(number + 1)))


@pytest.mark.usefixtures("short_renewals")
def test_a_server_whose_clock_is_set_forward_makes_no_job_wait_for_the_old_time(
    redis: Redis, redis_server: Server, wall: WallClock
) -> None:
    redis.zadd("schedule", {job(): time.time() + 3600})
    with InProcessClock(redis_server.url) as clock:
        wait_leads(clock)
        wall.shift = 3600
        wait_arrived(redis, "1")


@pytest.mark.usefixtures("short_renewals")
def test_a_server_whose_clock_is_set_back_moves_nothing_before_its_time(
    redis: Redis, redis_server: Server, wall: WallClock
) -> None:
    """And soon after it: the clock measures the new time before."""
    at = time.time() + 0.5
    redis.zadd("schedule", {job(): at})
    with InProcessClock(redis_server.url) as clock:
        wait_leads(clock)
        wall.shift = -1.0
        wait_arrived(redis, "1")
    [payload] = redis.lrange("queue:q", 0, -1)
    assert json.loads(payload)["enqueued_at"] >= at


@pytest.mark.parametrize("wrong", [3600.0, -3600.0])
def test_a_host_with_a_wrong_clock_moves_jobs_at_their_time_and_logs_it(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    """As all other hosts see it: no job an hour early, and none an hour late."""
    true = time.time
    log = RecordedLog()
    monkeypatch.setattr("forkq.runtime.log.logger", lambda: log)
    monkeypatch.setattr(time, "time", lambda: true() + wrong)
    at = true() + 0.5
    redis.zadd("schedule", {job("early"): true() + 1800, job("due"): at})
    redis.zadd("retry", {job("failed"): at})
    with InProcessClock(redis_server.url) as clock:
        wait_leads(clock)
        wait_until(lambda: len(arrived(redis)) == 2, what="what is due", every=0.002)
        assert true() >= at
    assert set(arrived(redis)) == {"due", "failed"}
    payloads: Any = redis.lrange("queue:q", 0, -1)
    assert all(abs(json.loads(raw)["enqueued_at"] - true()) < 60 for raw in payloads)
    found = [line for line in log.lines if "clock and redis's" in line[1]]
    [(level, _, values)] = found
    assert level == "warning"
    assert values == {"seconds_ahead": pytest.approx(wrong, abs=60)}  # exact but for a slow answer


@pytest.mark.parametrize("wrong", [3600.0, -3600.0])
def test_a_wrong_clock_leaves_no_last_ticks_of_another_hour(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    """Such a last tick would stop the next leader, whose clock is right, for an hour."""
    true = time.time
    begun = int(true())
    entry = Entry.make(name="e", cron="* * * * * *", job={"class": "E", "args": []}, origin="api")
    redis.hset("forkq:cron", "e", entry.encode())
    monkeypatch.setattr(time, "time", lambda: true() + wrong)
    with InProcessClock(redis_server.url):
        wait_until(lambda: redis.llen("queue:default") >= 2, what="two ticks")
    last: Any = redis.hget("forkq:cron:last", "e")
    assert begun < int(last) <= true()
    payloads: Any = redis.lrange("queue:default", 0, -1)
    assert all(abs(json.loads(raw)["created_at"] - true()) < 60 for raw in payloads)


@pytest.mark.usefixtures("short_renewals")
def test_a_host_clock_that_is_set_while_it_leads_moves_nothing(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = time.time
    redis.zadd("schedule", {job("early"): true() + 1800})
    with InProcessClock(redis_server.url) as clock:
        wait_leads(clock)
        monkeypatch.setattr(time, "time", lambda: true() + 3600)
        redis.zadd("schedule", {job("due"): true() + 1.2})  # two renewals later
        wait_arrived(redis, "due")


def test_a_key_of_another_type_does_not_delay_the_other_tasks(
    redis: Redis, redis_server: Server
) -> None:
    redis.hset("forkq:cron", "odd", "{nope")
    redis.set("forkq:cron:paused", "no set")
    redis.zadd("schedule", {job(): 1})
    with InProcessClock(redis_server.url):
        wait_arrived(redis, "1")


def test_due_jobs_move_where_redis_refuses_the_lease(redis: Redis, redis_server: Server) -> None:
    redis.lpush(LEASE, "no lease")
    redis.zadd("schedule", {job(): 1})
    with InProcessClock(redis_server.url) as clock:
        wait_arrived(redis, "1")
        assert clock.leads_until == 0


def test_without_tracking_it_polls(own_server: Server) -> None:
    own_server.cli("ACL", "SETUSER", "default", "-client|tracking")
    redis = own_server.client()
    with InProcessClock(own_server.url) as clock:
        wait_leads(clock)
        redis.zadd("schedule", {job(): time.time() + 0.1})
        wait_arrived(redis, "1", deadline=4.5)  # a renewal comes after 5 s


@pytest.fixture
def frequent_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep, and an announcement with it, every fifth of a second."""
    monkeypatch.setattr(sweep, "_PERIOD", 0.2)
    monkeypatch.setattr(services, "_SHORTEST_INTERVAL", 0.1)


@pytest.mark.usefixtures("frequent_sweeps")
def test_the_leader_notices_when_an_app_starts_and_stops(
    redis: Redis, redis_server: Server
) -> None:
    """It announces its own app first, so that app's entries tick from the start."""
    for name, service in (("ours", ""), ("theirs", "shop")):
        one = Entry.make(
            name=name, cron="* * * * * *", origin=f"code:{service}",
            job={"class": "J", "args": [], "queue": name},
        )  # fmt: skip
        redis.hset("forkq:cron", name, one.encode())
    with InProcessClock(redis_server.url) as clock:
        wait_until(lambda: redis.llen("queue:ours") >= 2, what="two ticks of ours", deadline=60)
        assert redis.exists("forkq:cron:origin:") == 1
        assert redis.exists("queue:theirs") == 0
        redis.set("forkq:cron:origin:shop", "runs", ex=60)
        wait_until(lambda: redis.llen("queue:theirs") >= 1, what="a tick of theirs", deadline=60)
        redis.delete("forkq:cron:origin:shop")
        wait_until(lambda: _stands_still(redis, "theirs", "ours"), what="the end of theirs",
                   deadline=90, every=1.5)  # fmt: skip
        clock.stop()


def _stands_still(redis: Redis, name: str, other: str) -> bool:
    """Whether the first queue gets no job while the other one gets two."""
    before, length = redis.llen(f"queue:{name}"), redis.llen(f"queue:{other}")
    wait_until(lambda: redis.llen(f"queue:{other}") >= length + 2, what="two ticks", deadline=60)
    return redis.llen(f"queue:{name}") == before


def test_only_the_leader_moves_jobs_and_then_its_successor(
    redis: Redis, redis_server: Server
) -> None:
    with InProcessClock(redis_server.url, nonce="a" * 12) as first:
        wait_leads(first)
        with InProcessClock(redis_server.url, nonce="b" * 12) as second:
            wait_until(lambda: tracking(redis) == 2, what="both clocks to track")
            assert second.leads_until == 0
            first.stop()
            assert first.code == CLEAN
            assert isinstance(first.received[0], Ready)
            assert first.received[-2:] == [LeaseHeld(0.0), Exiting()]
            wait_leads(second)
            redis.zadd("schedule", {job(): time.time()})
            wait_arrived(redis, "1")


def tracking(redis: Redis) -> int:
    """How many clients track keys."""
    return sum("t" in client["flags"] for client in redis.client_list())


def test_a_quiet_clock_lets_another_lead_and_stays(redis: Redis, redis_server: Server) -> None:
    with InProcessClock(redis_server.url, nonce="a" * 12) as first:
        wait_leads(first)
        first.order(Quiet())
        wait_until(lambda: first.leads_until == 0, what="its resignation")
        with InProcessClock(redis_server.url, nonce="b" * 12) as second:
            wait_leads(second)
            assert first.leads_until == 0
            assert first.code is None


def test_a_clock_that_starts_quiet_does_not_lead(redis: Redis, redis_server: Server) -> None:
    with InProcessClock(redis_server.url, quiet=True) as clock:
        wait_until(lambda: tracking(redis) == 1, what="its connection")
        clock.stop()
        assert clock.leads_until == 0
        assert not redis.exists(LEASE)


def test_a_standby_reads_nothing_but_the_lease(redis: Redis, redis_server: Server) -> None:
    """A thousand standbys must cost nothing when jobs are scheduled."""
    redis.set(LEASE, "vm2:7:eeeeeeeeeeee another-boot/pid:[1]/4242/1.00", px=12_000)
    redis.config_resetstat()
    with every_command_logged(redis) as logged, InProcessClock(redis_server.url):
        wait_until(lambda: calls(redis, "pttl") == 1, what="its first claim")
        redis.zadd("schedule", {job(): 1})
        redis.zadd("schedule", {job("2"): time.time() + 0.1})
        redis.incr("forkq:leader:left")
        wait_until(lambda: calls(redis, "pttl") == 2, what="its second claim")
        reads = [line for line in logged() if line.startswith(("ZRANGE", "HGETALL"))]
        assert all("forkq:fetched" in line for line in reads), "that is the sweep's command"


@contextmanager
def every_command_logged(redis: Redis) -> Iterator[Callable[[], list[str]]]:
    """The commands that the server has run within the block."""
    redis.slowlog_reset()
    redis.config_set("slowlog-log-slower-than", 0)
    redis.config_set("slowlog-max-len", 10_000)
    try:
        yield lambda: [line["command"].decode() for line in redis.slowlog_get(10_000)]
    finally:
        redis.config_set("slowlog-log-slower-than", 10_000)
        redis.slowlog_reset()


def calls(redis: Redis, command: str) -> int:
    stats: Any = redis.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


def test_a_clock_notes_the_bounds_of_the_dead_set(redis: Redis, redis_server: Server) -> None:
    with InProcessClock(redis_server.url):
        wait_until(lambda: redis.zrange("forkq:dead:bounds", 0, -1) == [b"10000 180"], what="note")


def test_a_clock_makes_the_secret_of_jobs_names(redis: Redis, redis_server: Server) -> None:
    """So a user of the API who may only read has it."""
    with InProcessClock(redis_server.url):
        first = wait_until(lambda: redis.get("forkq:secret"), what="the secret")
    with InProcessClock(redis_server.url) as clock:
        wait_leads(clock)
    assert redis.get("forkq:secret") == first


def test_a_refused_note_delays_no_due_job(redis: Redis, redis_server: Server) -> None:
    redis.set("forkq:dead:bounds", "damaged")
    redis.zadd("schedule", {job(): time.time()})
    with InProcessClock(redis_server.url):
        wait_arrived(redis, "1")


# Suspects


def told(clock: InProcessClock) -> list[tuple[str, ...]]:
    """For which capsules the clock has told its master that suspects wait."""
    facts = clock.facts()
    return [fact.capsules for fact in facts if isinstance(fact, SuspectsWait)]


def test_every_clock_tells_its_master_for_which_capsules_suspects_wait(
    redis: Redis, redis_server: Server
) -> None:
    """A name without a list is removed; a queue of no capsule is no matter."""
    redis.sadd(SUSPECTED, "default", "of another tree")
    redis.lpush("{queue:of another tree}:suspects", "1")
    with (
        InProcessClock(redis_server.url) as leader,
        InProcessClock(redis_server.url, nonce="ba9876543210") as other,
    ):
        wait_until(lambda: redis.smembers(SUSPECTED) == {b"of another tree"}, what="the stale name")
        redis.lpush("{queue:default}:suspects", "1")
        redis.sadd(SUSPECTED, "default")
        for clock in (leader, other):
            wait_until(lambda c=clock: told(c) == [("default",)], what="the fact")  # type: ignore[misc]
        redis.delete("{queue:default}:suspects")
        redis.srem(SUSPECTED, "default")
        for clock in (leader, other):
            wait_until(lambda c=clock: told(c) == [("default",), ()], what="its end")  # type: ignore[misc]


def test_a_damaged_index_of_suspects_hides_no_queue_of_the_configuration(
    redis: Redis, redis_server: Server
) -> None:
    redis.set(SUSPECTED, "no set")
    redis.lpush("{queue:default}:suspects", "1")
    with InProcessClock(redis_server.url) as clock:
        wait_until(lambda: told(clock) == [("default",)], what="the fact")


def suspect(jid: str) -> str:
    return json.dumps({**json.loads(job(jid, "default")), "forkq": {"suspect": True}})


def test_a_clock_hears_of_the_suspects_that_it_makes_itself(
    redis: Redis, redis_server: Server
) -> None:
    """The server reports no change to the connection that made it, and nothing after that."""
    with InProcessClock(redis_server.url) as clock:
        wait_leads(clock)
        for number in range(2):
            redis.zadd("schedule", {suspect(str(number)): times.now() + 0.1})
            wait_until(lambda: told(clock)[-1:] == [("default",)], what="the due suspect")
            redis.delete("{queue:default}:suspects")
            redis.srem(SUSPECTED, "default")
            wait_until(lambda: told(clock)[-1:] == [()], what="its end")


def test_a_clock_hears_of_the_suspects_that_its_sweep_makes(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that was in progress in the deaths of two whole trees."""
    monkeypatch.setattr(sweep, "_PERIOD", 0.2)
    monkeypatch.setattr(sweep, "liveness_of", lambda found: "dead")
    record = {"at": times.now(), "tree": True}
    payload = json.dumps({**json.loads(job("1", "default")), "forkq": {"crashes": [record]}})
    with InProcessClock(redis_server.url) as clock:
        wait_leads(clock)
        redis.sadd("queues", "default")
        redis.hset("{queue:default}:inflight", "vm:1:aaaaaaaaaaaa/1", payload)
        wait_until(lambda: told(clock)[-1:] == [("default",)], what="the suspect")
    assert redis.llen("{queue:default}:suspects") == 1
