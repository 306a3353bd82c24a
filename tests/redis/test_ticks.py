"""Periodic jobs: each tick is enqueued once in the cluster, also if clocks die or differ."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from forkq.child.cron.outcome import CronOutcomes, Outcome
from forkq.child.failure.retry import Bury, Decision, Drop, Retry
from forkq.child.job_run import JobRun
from forkq.clock.cron import enqueue, ticks
from forkq.clock.cron.enqueue import CronEnqueuer
from forkq.clock.cron.services import RunningServices
from forkq.cron.entry import Entry
from forkq.cron.schedule import Schedule
from forkq.store import find_job
from forkq.store.connection import ConnectionLost, RedisConnection
from forkq.store.pool import RedisPool
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from tests.redis.proxy import Proxy
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.tree import CHECKOUT
from tests.support.waiting import wait_until

START = 1_750_000_020  # a full minute
MINUTE, DAY, YEAR = 60, 86_400, 365 * 86_400


class Simulation:
    """One leader's enqueuer on a simulated wall clock: ``at``, which the test sets."""

    def __init__(self, url: str, redis: Redis) -> None:
        self.redis = redis
        self.at: float = START
        self.log = RecordedLog()
        self.connection = RedisConnection(url)
        self.connection.connect()
        self.enqueuer = self.new_enqueuer()

    def new_enqueuer(self) -> CronEnqueuer:
        """An enqueuer as another clock would have it, on the same wall clock."""
        return enqueuer(self.connection, self.log, lambda: self.at)

    def define(self, *entries: Entry, last: float | None = START) -> None:
        """Publishes entries whose last tick was ``last``, and loads them."""
        for one in entries:
            self.redis.hset("forkq:cron", one.name, one.encode())
            if last is not None:
                self.redis.hset("forkq:cron:last", one.name, int(last))
        self.enqueuer.load(watch=False)

    def advance_to(self, at: float, *, by: float | None = None) -> None:
        """Advances the wall clock to ``at``, in steps of ``by`` seconds or in one step."""
        while by is not None and self.at + by < at:
            self.at += by
            self.work()
        self.at = at
        self.work()

    def work(self) -> None:
        """Does all that is due."""
        catch_up(self.enqueuer, self.at)

    def jobs(self, queue: str = "q") -> list[dict[str, Any]]:
        """The jobs in a queue, the oldest first."""
        found: Any = self.redis.lrange(f"queue:{queue}", 0, -1)
        return [json.loads(payload) for payload in reversed(found)]

    def enqueued_ticks(self, queue: str = "q") -> list[int]:
        """The ticks that were enqueued, the oldest first."""
        return [job["forkq"]["tick"] for job in self.jobs(queue)]

    def runs(self, name: str = "report") -> list[dict[str, Any]]:
        """The entry's history, the oldest first, without the times of writing."""
        found: Any = self.redis.lrange(f"forkq:cron:runs:{name}", 0, -1)
        lines = [json.loads(line) for line in reversed(found)]
        assert all(abs(line.pop("at") - time.time()) < MINUTE for line in lines)
        return lines

    def last(self, name: str = "report") -> int:
        """The entry's last tick in Redis."""
        found: Any = self.redis.hget("forkq:cron:last", name)
        return int(found)


def enqueuer(
    connection: RedisConnection,
    log: RecordedLog,
    clock: Callable[[], float],
    *,
    service: str = "ours",
    prefix: str = "",
) -> CronEnqueuer:
    """The enqueuer of a leader of that service."""
    keys = Keys(prefix)
    return CronEnqueuer(
        keys, connection, RunningServices(keys, connection, service, log), log, clock=clock
    )


def catch_up(enqueuer: CronEnqueuer, at: float) -> None:
    """As the clock does: as long as something is due."""
    while (due := enqueuer.next_due()) is not None and due <= at:
        enqueuer.work()


@pytest.fixture
def sim(redis: Redis, redis_server: Server) -> Iterator[Simulation]:
    sim = Simulation(redis_server.url, redis)
    yield sim
    sim.connection.close()


def entry(cron: str = "* * * * *", *, name: str = "report", queue: str = "q", **more: Any) -> Entry:
    fields = {"origin": "test", "job": {"class": "Report", "args": [7], "queue": queue}, **more}
    return Entry.make(name=name, cron=cron, **fields)


def moment(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


# What a tick is


def test_a_tick_is_enqueued_as_a_client_would_push_it(sim: Simulation) -> None:
    template = {"class": "Report", "args": [7], "queue": "q", "retry": 3, "tags": ["a"]}
    sim.define(entry(job=template))
    before = time.time()
    sim.advance_to(START + MINUTE)
    [job] = sim.jobs()
    for stamp in ("created_at", "enqueued_at"):
        assert before <= job.pop(stamp) <= time.time()
    jid = job.pop("jid")
    assert len(jid) == 24
    assert job == {**template, "forkq": {"cron": "report", "tick": START + MINUTE}}
    assert sim.redis.smembers("queues") == {b"q"}
    assert sim.redis.hget("forkq:cron:pending", "report") == jid.encode()
    assert sim.runs() == [{"event": "enqueued", "tick": START + MINUTE, "jid": jid}]


def test_nothing_is_enqueued_before_next_due(sim: Simulation) -> None:
    assert sim.enqueuer.next_due() is None
    sim.define(entry("*/5 * * * *"), entry("*/7 * * * *", name="other"))
    following = [one.schedule.after(START) for one in (entry("*/5 * * * *"), entry("*/7 * * * *"))]
    assert sim.enqueuer.next_due() == min(tick for tick in following if tick is not None)
    sim.at = START + 1
    sim.enqueuer.work()
    assert sim.enqueued_ticks() == []


def test_an_entry_may_tick_every_second(sim: Simulation) -> None:
    sim.define(entry("* * * * * *"))
    sim.advance_to(START + 30, by=0.4)
    assert sim.enqueued_ticks() == list(range(START + 1, START + 31))


def test_the_history_is_bounded_and_expires(sim: Simulation) -> None:
    sim.define(entry("* * * * * *"))
    sim.advance_to(START + 150, by=1)
    assert len(sim.runs()) == 100
    assert sim.runs()[-1]["tick"] == START + 150
    assert 89 * DAY < sim.redis.ttl("forkq:cron:runs:report") <= 90 * DAY


def test_jitter_delays_each_tick_to_its_own_moment_and_keeps_their_order(sim: Simulation) -> None:
    one = entry(jitter=3600.0)
    sim.define(one)
    seen: list[tuple[int, float]] = []
    for at in range(START, START + 20 * MINUTE):
        sim.advance_to(at)
        seen += [(tick, at) for tick in sim.enqueued_ticks()[len(seen) :]]
    assert [tick for tick, _ in seen] == [START + n * MINUTE for n in range(1, len(seen) + 1)]
    assert len(seen) >= 18
    assert all(at - 1 <= max(min(one.due(t), t + MINUTE), t) <= at for t, at in seen)
    assert {run["event"] for run in sim.runs()} == {"enqueued"}


# Exactly once


def test_two_leaders_at_once_enqueue_each_tick_once(sim: Simulation, redis_server: Server) -> None:
    sim.define(entry("* * * * * *", missed=1000), entry("*/2 * * * * *", name="b", missed=1000))
    sim.at = START + 200
    errors: list[BaseException] = []
    start = threading.Barrier(3)

    def lead() -> None:
        connection = RedisConnection(redis_server.url)
        try:
            connection.connect()
            leader = enqueuer(connection, RecordedLog(), lambda: START + 200)
            leader.load(watch=False)
            start.wait(10)
            catch_up(leader, START + 200)
        except BaseException as error:  # noqa: BLE001 - asserted below
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=lead) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    found = Counter((job["forkq"]["cron"], job["forkq"]["tick"]) for job in sim.jobs())
    wanted = [("report", START + n) for n in range(1, 201)]
    wanted += [("b", START + n) for n in range(2, 201, 2)]
    assert found == dict.fromkeys(wanted, 1)


def test_a_lost_reply_neither_repeats_nor_loses_a_tick(redis: Redis, redis_server: Server) -> None:
    with Proxy(redis_server.port) as proxy:
        sim = Simulation(proxy.url, redis)
        sim.define(entry("* * * * * *"))
        cuts = 0
        for at in range(START + 1, START + 101):
            sim.at = at
            if at % 3 == 0:
                proxy.cut(b"EVALSHA")
            try:
                sim.work()
            except ConnectionLost:
                cuts += 1
                sim.connection.connect()
                sim.work()  # without reading the last tick: the script must find the repetition
        sim.connection.close()
    assert cuts >= 30
    assert sim.enqueued_ticks() == list(range(START + 1, START + 101))


def test_hosts_whose_clocks_differ_by_seconds_enqueue_each_tick_once(sim: Simulation) -> None:
    """The clocks lead in turn, and neither reads what the other has done meanwhile."""
    sim.define(entry("* * * * * *"))
    ahead = enqueuer(sim.connection, sim.log, lambda: sim.at + 7)
    behind = enqueuer(sim.connection, sim.log, lambda: sim.at - 7)
    shifts = {ahead: 7, behind: -7}
    for leader in shifts:
        leader.load(watch=False)
    for at in range(START, START + 200):
        sim.at = at
        leader = random.choice([ahead, behind])
        catch_up(leader, at + shifts[leader])
    catch_up(ahead, sim.at + 7)
    assert sim.enqueued_ticks() == list(range(START + 1, int(sim.at) + 8))


_CLOCK = """
import sys, time
from forkq.clock.cron.services import RunningServices
from forkq.clock.cron.enqueue import CronEnqueuer
from forkq.store.connection import ConnectionLost, RedisConnection
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from tests.support.recorded_log import RecordedLog

url, name, start, end, began, speed = *sys.argv[1:3], *map(float, sys.argv[3:])
connection = RedisConnection(url)
services = RunningServices(Keys(), connection, "ours", RecordedLog())
wall = lambda: min(end, start + (time.time() - began) * speed)
enqueuer = CronEnqueuer(Keys(), connection, services, RecordedLog(), clock=wall)
while True:
    try:
        connection.connect()
        enqueuer.load(watch=False)
        connection.call("SET", name, "ticks")
        while True:
            enqueuer.work()
            time.sleep(0.002)
    except ConnectionLost:
        connection.close()
"""


class Clocks:
    """Two processes that tick on one accelerated wall clock, which stops at ``end``."""

    speed = 100.0
    # All ticks fit into ``missed``: at worst one clock enqueues them all at the end.
    end = START + 300

    def __init__(self, url: str, redis: Redis) -> None:
        self._url = url
        self._redis = redis
        self._began = time.time()
        self._processes = [self._start("clock 0"), self._start("clock 1")]
        self.kills = 0

    @property
    def over(self) -> bool:
        """Whether the wall clock has stopped."""
        return time.time() >= self._began + (self.end - START) / self.speed

    def kill_one(self) -> None:
        """Kills one of them, each in turn, at a random moment while both tick, and starts another.

        What they do between two kills is random; one of them always ticks."""
        names = [f"clock {n}" for n in range(2)]
        wait_until(lambda: self._redis.exists(*names) == 2, deadline=30, what="both clocks to tick")
        wait_until(_moment_passed(random.uniform(0, 0.1)), what="a random moment")
        which = self.kills % 2
        self._processes[which].kill()
        self._processes[which].wait(10)
        self._redis.delete(names[which])
        self._processes[which] = self._start(names[which])
        self.kills += 1

    def close(self) -> None:
        """Ends both."""
        for process in self._processes:
            process.kill()
            process.wait(10)

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        times = (START, self.end, self._began, self.speed)
        arguments = [self._url, name, *(repr(time) for time in times)]
        return subprocess.Popen([sys.executable, "-c", _CLOCK, *arguments], cwd=CHECKOUT)


@pytest.mark.parametrize(
    "cut", [pytest.param(False, marks=pytest.mark.slow), True], ids=["killed", "killed and cut"]
)
def test_two_clocks_killed_in_turn_enqueue_each_tick_once(
    redis: Redis, redis_server: Server, cut: bool
) -> None:
    """400 ticks of accelerated time, with SIGKILL at random moments and lost replies."""
    for name, cron in (("report", "* * * * * *"), ("other", "*/3 * * * * *")):
        one = entry(cron, name=name, missed=1000)
        redis.hset("forkq:cron", name, one.encode())
        redis.hset("forkq:cron:last", name, START)
    with Proxy(redis_server.port) as proxy:
        clocks = Clocks(proxy.url if cut else redis_server.url, redis)
        try:
            while not clocks.over or clocks.kills < 2:
                if cut:
                    proxy.cut(b"EVALSHA", 2)
                clocks.kill_one()
            wait_until(
                lambda: redis.hvals("forkq:cron:last") == [b"%d" % clocks.end] * 2,
                deadline=30,
                what="the last tick of both",
            )
        finally:
            clocks.close()
    payloads: Any = redis.lrange("queue:q", 0, -1)
    jobs = [json.loads(payload)["forkq"] for payload in reversed(payloads)]
    for name, step in (("report", 1), ("other", 3)):
        found = [job["tick"] for job in jobs if job["cron"] == name]
        assert found == list(range(START + step, clocks.end + 1, step))
    sys.stdout.write(f"{clocks.kills} kills\n")


def _moment_passed(seconds: float) -> Any:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


# Late and missed ticks


def test_ticks_that_a_change_of_leader_has_delayed_are_all_enqueued(sim: Simulation) -> None:
    sim.define(entry("* * * * * *", missed=0))
    sim.advance_to(START + 59)
    assert sim.enqueued_ticks() == list(range(START + 1, START + 60))


@pytest.mark.parametrize(("missed", "enqueued_late"), [("skip", 0), ("once", 1), (3, 3), (1000, 9)])
def test_the_latest_missed_ticks_are_enqueued_late(
    sim: Simulation, missed: Any, enqueued_late: int
) -> None:
    sim.define(entry("*/10 * * * *", missed=missed))
    first = entry("*/10 * * * *").schedule.after(START) or 0
    every = [first + n * 600 for n in range(9)]
    sim.advance_to(every[-1] + 300)
    assert sim.enqueued_ticks() == every[9 - enqueued_late :]
    noted = [run for run in sim.runs() if run["event"] == "missed"]
    left_out = every[: 9 - enqueued_late]
    assert noted == (
        [{"event": "missed", "tick": left_out[-1], "since": every[0], "count": len(left_out)}]
        if left_out
        else []
    )
    assert sim.last() == every[-1]
    assert len([event for event in sim.log.events() if "missed" in event]) == len(noted)


def test_years_of_missed_ticks_take_no_longer_than_hours(
    sim: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    after = Schedule.after

    def count(schedule: Schedule, moment: float) -> int | None:
        nonlocal asked
        asked += 1
        return after(schedule, moment)

    monkeypatch.setattr(Schedule, "after", count)
    one = entry("* * * * * *", missed=5)
    for away in (DAY, 10 * YEAR):
        asked = 0
        sim.redis.delete("queue:q", "forkq:cron:runs:report")
        sim.at = START + away
        sim.define(one)
        sim.work()
        assert sim.enqueued_ticks() == list(range(sim.last() - 65, sim.last() + 1))
        [noted] = [run for run in sim.runs() if run["event"] == "missed"]
        assert noted == {"event": "missed", "since": START + 1, "tick": sim.last() - 66}
        assert asked < 3000


@pytest.mark.parametrize("cron", ["* * * * * *", "*/7 * * * *", "0 0 1 * *", "* * 3 2 *"])
@pytest.mark.parametrize("most", [1, 3, 50])
def test_the_latest_ticks_are_the_last_of_all_ticks(cron: str, most: int) -> None:
    schedule = Schedule.parse(cron, "Europe/Berlin")
    for stretch in (0, 1, 59, 3601, 90_000, 40 * DAY):
        until = START + stretch + 0.5
        if cron == "* * * * * *" and stretch > DAY:
            continue  # computing all of them, for the comparison, takes too long
        every = schedule.ticks(START, until, 10**9)
        assert ticks.latest(schedule, START, until, most) == every[-most:]


SPRING = "2026-03-29T01:00+00:00"  # 02:00 in Berlin becomes 03:00
AUTUMN = "2026-10-25T01:00+00:00"  # 03:00 in Berlin becomes 02:00
SPRING_DAYS = ["2026-03-28T02:30+01:00", "2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]
AUTUMN_DAYS = ["2026-10-24T02:30+02:00", "2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]


@pytest.mark.parametrize(("missed", "enqueued_late"), [("skip", 0), ("once", 1), (2, 2)])
@pytest.mark.parametrize("days", [SPRING_DAYS, AUTUMN_DAYS], ids=["spring", "autumn"])
@pytest.mark.parametrize("back_on", [1, 2], ids=["same day", "next day"])
def test_missed_times_of_day_across_a_change_of_clocks(
    sim: Simulation, missed: Any, enqueued_late: int, days: list[str], back_on: int
) -> None:
    """Every day has one tick, also the day without 02:30 and the day with two of it."""
    every = [moment(day) for day in days[: back_on + 1]]
    sim.at = every[0] - 3600
    sim.define(entry("30 2 * * *", tz="Europe/Berlin", missed=missed), last=every[0] - 3600)
    sim.advance_to(every[-1] + 8 * 3600)
    assert sim.enqueued_ticks() == every[len(every) - enqueued_late :]


@pytest.mark.parametrize(("missed", "enqueued_late"), [("skip", 0), ("once", 1), (4, 4)])
@pytest.mark.parametrize("change", [SPRING, AUTUMN], ids=["spring", "autumn"])
def test_missed_ticks_in_real_time_across_a_change_of_clocks(
    sim: Simulation, missed: Any, enqueued_late: int, change: str
) -> None:
    """Half hours are counted in real time, also when local clocks change."""
    every = [moment(change) + n * 1800 for n in range(-2, 4)]
    sim.at = every[0] - 900
    sim.define(entry("*/30 * * * *", tz="Europe/Berlin", missed=missed), last=every[0] - 900)
    sim.advance_to(every[-1] + 900)
    assert sim.enqueued_ticks() == every[len(every) - enqueued_late :]


@pytest.mark.parametrize("days", [SPRING_DAYS, AUTUMN_DAYS], ids=["spring", "autumn"])
def test_one_tick_a_day_is_enqueued_across_a_change_of_clocks(
    sim: Simulation, days: list[str]
) -> None:
    sim.at = moment(days[0]) - 3600
    sim.define(entry("30 2 * * *", tz="Europe/Berlin"), last=sim.at)
    sim.advance_to(moment(days[-1]) + 3600, by=30)
    assert sim.enqueued_ticks() == [moment(day) for day in days]


# Pauses, changed definitions, wrong clocks


def test_ticks_of_a_paused_entry_are_left_out(sim: Simulation) -> None:
    sim.define(entry(missed=1000), entry(name="other", queue="other"))
    sim.redis.sadd("forkq:cron:paused", "report")
    sim.enqueuer.load(watch=False)
    sim.advance_to(START + 30 * MINUTE, by=30)
    assert sim.enqueued_ticks() == []
    assert len(sim.enqueued_ticks("other")) == 30
    sim.redis.srem("forkq:cron:paused", "report")
    sim.enqueuer.load(watch=False)
    sim.advance_to(START + 32 * MINUTE, by=30)
    assert sim.enqueued_ticks() == [START + 31 * MINUTE, START + 32 * MINUTE]
    assert [run["event"] for run in sim.runs()] == ["enqueued", "enqueued"]


def test_ticks_of_a_disabled_entry_are_left_out(sim: Simulation) -> None:
    sim.define(entry(enabled=False, missed=1000))
    assert sim.enqueuer.next_due() is None
    sim.at = START + 30 * MINUTE
    sim.define(entry(missed=1000), last=None)
    sim.advance_to(START + 31 * MINUTE)
    assert sim.enqueued_ticks() == [START + 31 * MINUTE]


@pytest.mark.parametrize("change", ["definition", "pause", "removal"])
def test_a_change_is_reported_to_a_tracking_connection(sim: Simulation, change: str) -> None:
    sim.define(entry())
    sim.connection.track()
    sim.enqueuer.load(watch=True)
    assert sim.connection.wait(0) is False
    sim.advance_to(START + MINUTE)  # the server does not report our own changes
    assert sim.connection.wait(0) is False
    if change == "definition":
        sim.redis.hset("forkq:cron", "report", entry("0 0 * * *").encode())
    elif change == "pause":
        sim.redis.sadd("forkq:cron:paused", "report")
    else:
        sim.redis.hdel("forkq:cron", "report")
    assert sim.connection.wait(5) is True
    before = sim.enqueuer.next_due()
    sim.enqueuer.load(watch=True)
    assert sim.enqueuer.next_due() != before


def test_a_changed_entry_ticks_by_its_new_expression(sim: Simulation) -> None:
    sim.define(entry())
    sim.advance_to(START + MINUTE)
    sim.define(entry("*/30 * * * * *"), last=None)
    sim.advance_to(START + 2 * MINUTE, by=10)
    assert sim.enqueued_ticks() == [START + n for n in (60, 90, 120)]


def test_an_entry_without_a_last_tick_starts_from_now(sim: Simulation) -> None:
    sim.at = START + 30
    sim.define(entry(missed=1000), last=None)
    assert sim.last() == START + 30
    sim.advance_to(START + MINUTE)
    assert sim.enqueued_ticks() == [START + MINUTE]


def test_an_entry_whose_definition_is_removed_no_longer_ticks(sim: Simulation) -> None:
    """Also before the clock reads the definitions again."""
    sim.define(entry())
    sim.redis.delete("forkq:cron", "forkq:cron:last")
    sim.advance_to(START + MINUTE)
    assert sim.enqueued_ticks() == []
    assert not sim.redis.exists("forkq:cron:last")
    assert sim.enqueuer.next_due() is None


def test_a_clock_that_was_days_ahead_does_not_silence_an_entry(sim: Simulation) -> None:
    sim.define(entry(missed=0))
    sim.advance_to(START + 10 * DAY)  # the clock of its host is wrong
    sim.advance_to(START + 10 * DAY + MINUTE)
    assert sim.last() == START + 10 * DAY + MINUTE
    enqueued = len(sim.enqueued_ticks())
    sim.at = START + 90
    sim.work()
    assert sim.log.events()[-1].startswith("a clock was wrong")
    sim.advance_to(START + 3 * MINUTE, by=10)
    assert sim.enqueued_ticks()[enqueued:] == [START + 2 * MINUTE, START + 3 * MINUTE]


def test_a_clock_that_was_hours_ahead_repeats_no_tick(sim: Simulation) -> None:
    sim.define(entry(missed=0))
    sim.advance_to(START + 3 * 3600)
    sim.at = START
    sim.advance_to(START + 3 * 3600 + 5 * MINUTE, by=30)
    found = sim.enqueued_ticks()
    assert len(found) == len(set(found)) == 7  # two of the minute's grace, and five
    sim.at = START + 2 * 3600
    sim.enqueuer.load(watch=False)
    sim.enqueuer.load(watch=False)
    silent = [event for event in sim.log.events() if "a clock was wrong" in event]
    assert len(silent) == 1, "the entry is silent for hours, which is logged once"


# Services that run


def announced(sim: Simulation, service: str) -> None:
    sim.redis.set(f"forkq:cron:origin:{service}", "runs", ex=MINUTE)


def test_an_entry_whose_app_does_not_run_sleeps_and_keeps_its_last_tick(sim: Simulation) -> None:
    """It is not paused: its last tick stays, and counts when its app runs again."""
    sim.define(
        entry(name="theirs", origin="code:theirs", queue="theirs"),
        entry(name="filed", origin="file:theirs", queue="theirs"),
        entry(name="ours", origin="code:ours"),
        entry(name="added", origin="api", queue="added"),
    )
    sim.advance_to(START + 30 * MINUTE, by=30)
    assert sim.jobs("theirs") == []
    assert sim.runs("theirs") == sim.runs("filed") == []
    assert sim.last("theirs") == sim.last("filed") == START
    assert len(sim.enqueued_ticks()) == len(sim.enqueued_ticks("added")) == 30


@pytest.mark.parametrize(("missed", "enqueued_late"), [("skip", 0), ("once", 1), (3, 3)])
def test_ticks_while_the_app_does_not_run_are_missed_ticks(
    sim: Simulation, missed: Any, enqueued_late: int
) -> None:
    sim.define(entry("*/10 * * * *", origin="code:theirs", missed=missed))
    first = entry("*/10 * * * *").schedule.after(START) or 0
    every = [first + n * 600 for n in range(9)]
    sim.advance_to(every[-1] + 300, by=30)
    assert sim.enqueuer.outdated() is False
    announced(sim, "theirs")
    assert sim.enqueuer.outdated() is True
    sim.enqueuer.load(watch=False)
    assert sim.enqueuer.outdated() is False
    sim.work()
    assert sim.enqueued_ticks() == every[9 - enqueued_late :]
    noted = [run["count"] for run in sim.runs() if run["event"] == "missed"]
    assert noted == [9 - enqueued_late]


def test_a_restart_of_an_app_misses_no_tick(sim: Simulation) -> None:
    """All ticks of the last minute are enqueued, under every policy."""
    sim.define(entry("* * * * * *", origin="code:theirs", missed="skip"))
    sim.advance_to(START + 40, by=1)
    announced(sim, "theirs")
    sim.enqueuer.load(watch=False)
    sim.work()
    assert sim.enqueued_ticks() == list(range(START + 1, START + 41))


def test_the_entries_of_an_app_that_stops_tick_no_longer(sim: Simulation) -> None:
    announced(sim, "theirs")
    sim.define(entry(origin="code:theirs"))
    sim.advance_to(START + MINUTE)
    sim.redis.delete("forkq:cron:origin:theirs")
    assert sim.enqueuer.outdated() is True
    sim.enqueuer.load(watch=False)
    assert sim.enqueuer.next_due() is None
    sim.advance_to(START + 5 * MINUTE)
    assert sim.enqueued_ticks() == [START + MINUTE]
    assert sim.log.lines == []


def test_an_entry_that_is_paused_and_asleep_has_no_missed_ticks(sim: Simulation) -> None:
    announced(sim, "theirs")
    sim.define(entry(origin="code:theirs", missed=1000))
    sim.redis.sadd("forkq:cron:paused", "report")
    sim.enqueuer.load(watch=False)
    sim.redis.delete("forkq:cron:origin:theirs")
    sim.enqueuer.load(watch=False)
    announced(sim, "theirs")
    sim.enqueuer.load(watch=False)
    sim.at = START + 30 * MINUTE
    sim.redis.srem("forkq:cron:paused", "report")
    sim.enqueuer.load(watch=False)
    sim.advance_to(START + 31 * MINUTE)
    assert sim.enqueued_ticks() == [START + 31 * MINUTE]


def test_an_announcement_lasts_a_minute_and_is_renewed_with_one_command(
    sim: Simulation, redis_server: Server
) -> None:
    at = 100.0
    services = RunningServices(Keys(), sim.connection, "ours", sim.log, lambda: at)
    assert services.announce() is True
    assert 55 <= sim.redis.ttl("forkq:cron:origin:ours") <= 60
    sim.redis.expire("forkq:cron:origin:ours", 5)
    sim.redis.config_resetstat()
    assert services.announce() is False
    assert sim.redis.ttl("forkq:cron:origin:ours") <= 5
    at += 15
    assert services.announce() is True
    assert sim.redis.ttl("forkq:cron:origin:ours") >= 55
    stats: Any = sim.redis.info("commandstats")
    assert stats.pop("cmdstat_getex")["calls"] == 1
    assert not {"cmdstat_set", "cmdstat_evalsha", "cmdstat_mget"} & set(stats)
    sim.redis.delete("forkq:cron:origin:ours")
    services.announce_again()  # as on a new connection: the server may have lost the announcement
    assert services.announce() is True
    assert sim.redis.exists("forkq:cron:origin:ours")


def test_entries_of_our_own_service_cost_no_command(sim: Simulation) -> None:
    sim.define(entry(origin="code:ours"), entry(name="b", origin="api"))
    sim.redis.config_resetstat()
    sim.enqueuer.load(watch=False)
    assert sim.enqueuer.outdated() is False
    stats: Any = sim.redis.info("commandstats")
    assert "cmdstat_mget" not in stats


def test_a_full_server_accepts_an_announcement(own_server: Server) -> None:
    own_server.cli("CONFIG", "SET", "maxmemory", 1)
    log, connection = RecordedLog(), RedisConnection(own_server.url)
    connection.connect()
    RunningServices(Keys(), connection, "ours", log).announce()
    connection.close()
    assert 55 <= own_server.client().ttl("forkq:cron:origin:ours") <= 60
    assert log.lines == []


def test_a_refused_announcement_or_read_stops_nothing_and_is_logged_once(
    own_server: Server,
) -> None:
    """A service about which Redis gives no answer counts as running, and our own does, too."""
    sim = Simulation(own_server.url, own_server.client())
    own_server.cli("ACL", "SETUSER", "default", "-getex", "-mget")
    at = 100.0
    services = RunningServices(Keys(), sim.connection, "ours", sim.log, lambda: at)
    for _ in range(3):
        assert services.announce() is True
        at += 15
    sim.define(entry(origin="code:theirs"), entry(name="b", origin="code:ours", queue="b"))
    sim.advance_to(START + 2 * MINUTE, by=MINUTE)
    assert len(sim.enqueued_ticks()) == len(sim.enqueued_ticks("b")) == 2
    assert sim.enqueuer.outdated() is False
    sim.connection.close()
    assert [level for level, _, _ in sim.log.lines] == ["error", "error"]


# Overlap


def end(observer: CronOutcomes, outcome: Outcome, job: dict[str, Any]) -> None:
    """Has ``job`` end after 1.5 s."""
    run = JobRun(UnitOfWork(1, "q", 1, b""))
    run.loaded({"class": "J", **job})
    run.elapsed = 1.5
    decisions: dict[Outcome, Decision] = {
        "retry": Retry(0.0, b""),
        "dead": Bury(b"", None),
        "dropped": Drop(None),
    }
    if outcome == "done":
        observer.done(run)
    else:
        observer.failed(run, ValueError(), decisions[outcome])


def ended(sim: Simulation, redis_server: Server, outcome: Outcome, job: dict[str, Any]) -> None:
    pool = RedisPool(redis_server.url, size=1, timeout=5, connect_timeout=2)
    end(CronOutcomes(Keys(), pool, sim.log), outcome, job)
    pool.close()


def test_allowed_ticks_are_enqueued_beside_each_other(sim: Simulation) -> None:
    sim.define(entry(overlap="allow"))
    sim.advance_to(START + 5 * MINUTE, by=30)
    assert len(sim.enqueued_ticks()) == 5


@pytest.mark.parametrize("location", ["queued", "running", "queued elsewhere"])
def test_a_tick_is_skipped_while_the_latest_job_is_queued_or_runs(
    sim: Simulation, location: str
) -> None:
    sim.define(entry(overlap="skip"))
    sim.advance_to(START + MINUTE)
    [job] = sim.jobs()
    payload: Any = sim.redis.lindex("queue:q", 0)
    if location == "running":
        sim.redis.delete("queue:q")
        sim.redis.hset("{queue:q}:inflight", "vm:1:abc/7", payload)
    elif location == "queued elsewhere":  # its definition has changed since then
        sim.define(entry(overlap="skip", queue="other"), last=None)
    sim.advance_to(START + 3 * MINUTE, by=30)
    assert len(sim.jobs()) == (0 if location == "running" else 1)
    assert not sim.redis.exists("queue:other")
    assert sim.runs()[1:] == [
        {"event": "skipped", "tick": START + n * MINUTE, "running": job["jid"]} for n in (2, 3)
    ]


@pytest.mark.parametrize("outcome", ["done", "retry", "dead", "dropped"])
def test_the_next_tick_is_enqueued_after_the_latest_job_has_ended(
    sim: Simulation, redis_server: Server, outcome: Outcome
) -> None:
    sim.define(entry(overlap="skip"))
    sim.advance_to(START + MINUTE)
    [job] = sim.jobs()
    ended(sim, redis_server, outcome, job)
    assert not sim.redis.exists("forkq:cron:pending")
    sim.advance_to(START + 2 * MINUTE)
    assert len(sim.enqueued_ticks()) == 2
    assert sim.runs()[1] == {"event": outcome, "jid": job["jid"], "elapsed": 1.5}


def test_a_note_that_a_crash_left_behind_does_not_stop_the_entry(sim: Simulation) -> None:
    sim.define(entry("* * * * * *", overlap="skip"))
    sim.redis.hset("forkq:cron:pending", "report", "0" * 24)
    sim.advance_to(START + 1)
    assert sim.enqueued_ticks() == [START + 1]


def test_a_job_that_waits_for_its_retry_does_not_stop_the_entry(sim: Simulation) -> None:
    sim.define(entry(overlap="skip"))
    sim.advance_to(START + MINUTE)
    payload: Any = sim.redis.rpop("queue:q")
    sim.redis.zadd("retry", {payload: START})
    sim.advance_to(START + 2 * MINUTE)
    assert sim.enqueued_ticks() == [START + 2 * MINUTE]


def test_a_deep_queue_is_not_searched_at_every_tick(
    sim: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = []
    find = find_job.find

    def count(*arguments: Any, **more: Any) -> Any:
        searched.append(arguments)
        return find(*arguments, **more)

    monkeypatch.setattr(enqueue, "find", count)
    sim.define(entry("* * * * * *", overlap="skip"))
    sim.advance_to(START + 30, by=1)
    assert len(searched) == 1
    assert [run["event"] for run in sim.runs()] == ["enqueued"] + ["skipped"] * 29
    sim.redis.delete("queue:q")  # after a minute the clock searches again
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    sim.at = START + 31
    sim.enqueuer.work()
    assert sim.enqueued_ticks() == [START + 31]


# Jobs that ended


def test_the_end_of_a_job_that_is_not_periodic_costs_no_command() -> None:
    pool = RedisPool("redis://127.0.0.1:1/0", size=1, timeout=1, connect_timeout=1)
    log = RecordedLog()
    others: list[dict[str, Any]] = [
        {},
        {"forkq": {"crashes": []}},
        {"forkq": 7},
        {"forkq": {"cron": 7}},
    ]
    for marks in others:
        end(CronOutcomes(Keys(), pool, log), "done", {"jid": "1", **marks})
    assert log.lines == []


def test_without_redis_the_end_of_a_job_is_not_noted_and_raises_nothing() -> None:
    pool = RedisPool("redis://127.0.0.1:1/0", size=1, timeout=1, connect_timeout=1)
    log = RecordedLog()
    job = {"class": "J", "jid": "1", "forkq": {"cron": "report", "tick": START}}
    end(CronOutcomes(Keys(), pool, log), "done", job)
    assert [level for level, _, _ in log.lines] == ["debug"]


def test_an_older_job_that_ends_keeps_the_note_of_the_latest_job(
    sim: Simulation, redis_server: Server
) -> None:
    sim.define(entry())
    sim.advance_to(START + 2 * MINUTE, by=30)
    older, latest = sim.jobs()
    ended(sim, redis_server, "done", older)
    assert sim.redis.hget("forkq:cron:pending", "report") == latest["jid"].encode()


# Full servers, damaged keys, other programs


def test_a_full_server_accepts_ticks_and_ends(own_server: Server) -> None:
    sim = Simulation(own_server.url, own_server.client())
    sim.define(entry(overlap="skip", missed=0), last=START - 30 * MINUTE)
    own_server.cli("CONFIG", "SET", "maxmemory", 1)
    sim.advance_to(START + MINUTE, by=MINUTE / 2)
    older, latest = sim.jobs()[0], sim.jobs()[-1]
    assert older == latest
    ended(sim, own_server, "done", older)
    sim.advance_to(START + 2 * MINUTE)
    assert sim.enqueued_ticks() == [START, START + 2 * MINUTE]
    events = [run["event"] for run in sim.runs()]
    assert events == ["missed", "enqueued", "skipped", "done", "enqueued"]
    sim.connection.close()


def test_ticks_for_a_damaged_queue_are_noted_as_missed(sim: Simulation) -> None:
    sim.redis.set("queue:broken", "a string")
    sim.define(entry("* * * * * *", queue="broken"), entry("* * * * * *", name="other"))
    sim.advance_to(START + 3, by=1)
    assert sim.enqueued_ticks() == [START + 1, START + 2, START + 3]
    runs = sim.runs()
    assert [(run["event"], run["tick"]) for run in runs] == [
        ("missed", START + n) for n in (1, 2, 3)
    ]
    assert "broken" in runs[0]["why"]
    assert len(sim.log.lines) == 1
    sim.redis.delete("queue:broken")
    sim.advance_to(START + 4)
    assert sim.enqueued_ticks("broken") == [START + 4]


@pytest.mark.parametrize("key", ["cron", "cron:paused", "cron:last", "cron:pending", "cron:runs:a"])
def test_a_key_of_another_type_does_not_end_the_clock(sim: Simulation, key: str) -> None:
    sim.define(entry(name="a", overlap="skip"))
    sim.redis.delete(f"forkq:{key}")
    sim.redis.set(f"forkq:{key}", "a string")
    sim.at = START + MINUTE
    if key in ("cron:pending", "cron:runs:a"):
        sim.enqueuer.load(watch=False)
        sim.enqueuer.work()
        assert sim.enqueued_ticks() == [START + MINUTE]
        return
    with pytest.raises(ResponseError):  # the clock's task logs it and tries again (task.py)
        sim.enqueuer.load(watch=False)
    sim.redis.delete(f"forkq:{key}")
    sim.define(entry(name="a"))
    sim.enqueuer.load(watch=False)
    sim.at += MINUTE
    sim.enqueuer.work()
    assert sim.enqueued_ticks()[-1] == START + 2 * MINUTE


def test_an_unreadable_definition_is_logged_once_and_the_others_tick(
    sim: Simulation,
) -> None:
    unreadable = {
        "json": b"{nope",
        "list": b"[1]",
        "cron": entry(name="cron").encode().replace(b"* * * * *", b"* * nope * *"),
        "name": entry(name="another").encode(),
        b"\xff": b"\xff",
    }
    sim.redis.hset("forkq:cron", mapping=unreadable)  # type: ignore[arg-type]
    sim.define(entry())
    for n in range(1, 4):
        sim.advance_to(START + n * MINUTE)
        sim.enqueuer.load(watch=False)
    assert len(sim.enqueued_ticks()) == 3
    assert len(sim.log.lines) == len(unreadable)
    sim.redis.hset("forkq:cron", "json", "{other")
    sim.enqueuer.load(watch=False)
    assert len(sim.log.lines) == len(unreadable) + 1


def test_a_template_keeps_its_marks_and_loses_its_time(sim: Simulation) -> None:
    job = {"class": "R", "args": [], "queue": "q", "at": 2e9, "jid": "x", "forkq": {"crashes": []}}
    sim.define(entry(job=job))
    sim.advance_to(START + MINUTE)
    [found] = sim.jobs()
    assert "at" not in found
    assert found["jid"] != "x"
    assert found["forkq"] == {"crashes": [], "cron": "report", "tick": START + MINUTE}


def test_under_a_prefix_only_its_own_entries_tick(sim: Simulation, redis_server: Server) -> None:
    sim.redis.hset("forkq:cron", "theirs", entry(name="theirs", queue="theirs").encode())
    sim.redis.hset("app:forkq:cron", "ours", entry(name="ours").encode())
    sim.redis.hset("app:forkq:cron:last", "ours", START)
    leader = enqueuer(sim.connection, sim.log, lambda: START + MINUTE, prefix="app:")
    leader.load(watch=False)
    leader.work()
    assert sim.redis.llen("app:queue:q") == 1
    assert not sim.redis.exists("queue:theirs")
