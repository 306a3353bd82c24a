"""Periodic jobs: each tick is enqueued once in the cluster, whatever happens to its clocks."""

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
from forkq.clock.cron import overlap, ticks
from forkq.clock.cron.enqueue import CronEnqueuer
from forkq.clock.cron.services import RunningServices
from forkq.cron.entry import Entry
from forkq.cron.schedule import Schedule
from forkq.store import find_job
from forkq.store.connection import ConnectionLost, RedisConnection, RedisPool
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from tests.redis.proxy import Proxy
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.tree import CHECKOUT
from tests.support.waiting import wait_until

START = 1_750_000_020  # a full minute
MINUTE, DAY, YEAR = 60, 86_400, 365 * 86_400


class Scene:
    """One leader's ticker on a wall clock that the test sets: ``at``."""

    def __init__(self, url: str, redis: Redis) -> None:
        self.redis = redis
        self.at: float = START
        self.log = RecordedLog()
        self.connection = RedisConnection(url)
        self.connection.connect()
        self.enqueuer = self.successor()

    def successor(self) -> CronEnqueuer:
        """The ticker of another clock, on the same wall clock."""
        return enqueuer(self.connection, self.log, lambda: self.at)

    def define(self, *entries: Entry, last: float | None = START) -> None:
        """Publishes entries whose last tick was ``last``, and loads them."""
        for one in entries:
            self.redis.hset("forkq:cron", one.name, one.encode())
            if last is not None:
                self.redis.hset("forkq:cron:last", one.name, int(last))
        self.enqueuer.load(watch=False)

    def pass_to(self, at: float, *, by: float | None = None) -> None:
        """Lets the wall clock reach ``at``, in steps of ``by`` seconds or in one leap."""
        while by is not None and self.at + by < at:
            self.at += by
            self.work()
        self.at = at
        self.work()

    def work(self) -> None:
        """All that is due."""
        catch_up(self.enqueuer, self.at)

    def jobs(self, queue: str = "q") -> list[dict[str, Any]]:
        """What is in a queue, the oldest first."""
        found: Any = self.redis.lrange(f"queue:{queue}", 0, -1)
        return [json.loads(payload) for payload in reversed(found)]

    def ticked(self, queue: str = "q") -> list[int]:
        """The ticks that were enqueued, the oldest first."""
        return [job["forkq"]["tick"] for job in self.jobs(queue)]

    def runs(self, name: str = "report") -> list[dict[str, Any]]:
        """The entry's history, the oldest first, without the times of writing."""
        found: Any = self.redis.lrange(f"forkq:cron:runs:{name}", 0, -1)
        lines = [json.loads(line) for line in reversed(found)]
        assert all(abs(line.pop("at") - time.time()) < MINUTE for line in lines)
        return lines

    def last(self, name: str = "report") -> int:
        """The last tick that was dealt with."""
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
    """The ticker of a leader of that service."""
    keys = Keys(prefix)
    return CronEnqueuer(
        keys, connection, RunningServices(keys, connection, service, log), log, clock=clock
    )


def catch_up(enqueuer: CronEnqueuer, at: float) -> None:
    """As the clock does: as long as something is due."""
    while (due := enqueuer.next_due()) is not None and due <= at:
        enqueuer.work()


@pytest.fixture
def scene(redis: Redis, redis_server: Server) -> Iterator[Scene]:
    scene = Scene(redis_server.url, redis)
    yield scene
    scene.connection.close()


def entry(cron: str = "* * * * *", *, name: str = "report", queue: str = "q", **more: Any) -> Entry:
    fields = {"origin": "test", "job": {"class": "Report", "args": [7], "queue": queue}, **more}
    return Entry.make(name=name, cron=cron, **fields)


def moment(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


# What a tick is


def test_a_tick_is_enqueued_as_a_client_would_push_it(scene: Scene) -> None:
    template = {"class": "Report", "args": [7], "queue": "q", "retry": 3, "tags": ["a"]}
    scene.define(entry(job=template))
    before = time.time()
    scene.pass_to(START + MINUTE)
    [job] = scene.jobs()
    for stamp in ("created_at", "enqueued_at"):
        assert before <= job.pop(stamp) <= time.time()
    jid = job.pop("jid")
    assert len(jid) == 24
    assert job == {**template, "forkq": {"cron": "report", "tick": START + MINUTE}}
    assert scene.redis.smembers("queues") == {b"q"}
    assert scene.redis.hget("forkq:cron:pending", "report") == jid.encode()
    assert scene.runs() == [{"event": "enqueued", "tick": START + MINUTE, "jid": jid}]


def test_nothing_happens_before_the_tick_and_next_due_says_when(scene: Scene) -> None:
    assert scene.enqueuer.next_due() is None
    scene.define(entry("*/5 * * * *"), entry("*/7 * * * *", name="other"))
    following = [one.schedule.after(START) for one in (entry("*/5 * * * *"), entry("*/7 * * * *"))]
    assert scene.enqueuer.next_due() == min(tick for tick in following if tick is not None)
    scene.at = START + 1
    scene.enqueuer.work()
    assert scene.ticked() == []


def test_every_second_may_tick(scene: Scene) -> None:
    scene.define(entry("* * * * * *"))
    scene.pass_to(START + 30, by=0.4)
    assert scene.ticked() == list(range(START + 1, START + 31))


def test_the_history_is_bounded_and_expires(scene: Scene) -> None:
    scene.define(entry("* * * * * *"))
    scene.pass_to(START + 150, by=1)
    assert len(scene.runs()) == 100
    assert scene.runs()[-1]["tick"] == START + 150
    assert 89 * DAY < scene.redis.ttl("forkq:cron:runs:report") <= 90 * DAY


def test_jitter_delays_each_tick_to_its_own_moment_and_keeps_their_order(scene: Scene) -> None:
    one = entry(jitter=3600.0)
    scene.define(one)
    seen: list[tuple[int, float]] = []
    for at in range(START, START + 20 * MINUTE):
        scene.pass_to(at)
        seen += [(tick, at) for tick in scene.ticked()[len(seen) :]]
    assert [tick for tick, _ in seen] == [START + n * MINUTE for n in range(1, len(seen) + 1)]
    assert len(seen) >= 18
    assert all(at - 1 <= max(min(one.due(t), t + MINUTE), t) <= at for t, at in seen)
    assert {run["event"] for run in scene.runs()} == {"enqueued"}


# Exactly once


def test_two_leaders_at_once_enqueue_each_tick_once(scene: Scene, redis_server: Server) -> None:
    scene.define(entry("* * * * * *", missed=1000), entry("*/2 * * * * *", name="b", missed=1000))
    scene.at = START + 1000
    errors: list[BaseException] = []
    start = threading.Barrier(3)

    def lead() -> None:
        connection = RedisConnection(redis_server.url)
        try:
            connection.connect()
            leader = enqueuer(connection, RecordedLog(), lambda: START + 1000)
            leader.load(watch=False)
            start.wait(10)
            catch_up(leader, START + 1000)
        except BaseException as error:  # noqa: BLE001 - told below
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=lead) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    found = Counter((job["forkq"]["cron"], job["forkq"]["tick"]) for job in scene.jobs())
    wanted = [("report", START + n) for n in range(1, 1001)]
    wanted += [("b", START + n) for n in range(2, 1001, 2)]
    assert found == dict.fromkeys(wanted, 1)


def test_lost_replies_enqueue_no_tick_twice_and_leave_none_out(
    redis: Redis, redis_server: Server
) -> None:
    with Proxy(redis_server.port) as proxy:
        scene = Scene(proxy.url, redis)
        scene.define(entry("* * * * * *"))
        cuts = 0
        for at in range(START + 1, START + 101):
            scene.at = at
            if at % 3 == 0:
                proxy.cut(b"EVALSHA")
            try:
                scene.work()
            except ConnectionLost:
                cuts += 1
                scene.connection.connect()
                scene.work()  # without a look at what has become of it: the script must know
        scene.connection.close()
    assert cuts >= 30
    assert scene.ticked() == list(range(START + 1, START + 101))


def test_hosts_whose_clocks_differ_by_seconds_enqueue_each_tick_once(scene: Scene) -> None:
    """The lead goes to and fro, and neither looks again at what the other has done meanwhile."""
    scene.define(entry("* * * * * *"))
    ahead = enqueuer(scene.connection, scene.log, lambda: scene.at + 7)
    behind = enqueuer(scene.connection, scene.log, lambda: scene.at - 7)
    shifts = {ahead: 7, behind: -7}
    for leader in shifts:
        leader.load(watch=False)
    for at in range(START, START + 200):
        scene.at = at
        leader = random.choice([ahead, behind])
        catch_up(leader, at + shifts[leader])
    catch_up(ahead, scene.at + 7)
    assert scene.ticked() == list(range(START + 1, int(scene.at) + 8))


_CLOCK = """
import sys, time
from forkq.clock.cron.services import RunningServices
from forkq.clock.cron.enqueue import CronEnqueuer
from forkq.store.connection import ConnectionLost, RedisConnection
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from tests.support.recorded_log import RecordedLog

url, name, start, end, began, speed = *sys.argv[1:3], *map(float, sys.argv[3:])
wire = RedisConnection(url)
origins = RunningServices(Keys(), wire, "ours", RecordedLog())
wall = lambda: min(end, start + (time.time() - began) * speed)
ticker = CronEnqueuer(Keys(), wire, origins, RecordedLog(), clock=wall)
while True:
    try:
        wire.connect()
        ticker.load(watch=False)
        wire.call("SET", name, "ticks")
        while True:
            ticker.work()
            time.sleep(0.002)
    except ConnectionLost:
        wire.close()
"""


class Clocks:
    """Two processes that tick on one accelerated wall clock, which stops at ``end``."""

    speed = 200.0
    end = START + 900  # all of it can be made up for: at the worst one clock does it all at the end

    def __init__(self, url: str, redis: Redis) -> None:
        self._url = url
        self._redis = redis
        self._began = time.time()
        self._processes = [self._start("clock 0"), self._start("clock 1")]
        self.kills = 0

    @property
    def over(self) -> bool:
        """Whether time has come to its end."""
        return time.time() >= self._began + (self.end - START) / self.speed

    def kill_one(self) -> None:
        """SIGKILL, each in turn, at a random moment at which both tick; and another in its place.

        What happens between two kills is up to chance, but there is always one that ticks."""
        names = [f"clock {n}" for n in range(2)]
        wait_until(lambda: self._redis.exists(*names) == 2, deadline=30, what="two that tick")
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


@pytest.mark.parametrize("cut", [False, True], ids=["killed", "killed and cut"])
def test_two_clocks_killed_in_turn_leave_no_tick_out_and_enqueue_none_twice(
    redis: Redis, redis_server: Server, cut: bool
) -> None:
    """1,200 ticks of accelerated time; SIGKILL at random moments, and replies get lost."""
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


def test_ticks_that_a_change_of_leader_has_delayed_are_all_enqueued(scene: Scene) -> None:
    scene.define(entry("* * * * * *", missed=0))
    scene.pass_to(START + 59)
    assert scene.ticked() == list(range(START + 1, START + 60))


@pytest.mark.parametrize(("missed", "made_up"), [("skip", 0), ("once", 1), (3, 3), (1000, 9)])
def test_of_missed_ticks_the_latest_are_made_up_for(
    scene: Scene, missed: Any, made_up: int
) -> None:
    scene.define(entry("*/10 * * * *", missed=missed))
    first = entry("*/10 * * * *").schedule.after(START) or 0
    every = [first + n * 600 for n in range(9)]
    scene.pass_to(every[-1] + 300)
    assert scene.ticked() == every[9 - made_up :]
    noted = [run for run in scene.runs() if run["event"] == "missed"]
    left_out = every[: 9 - made_up]
    assert noted == (
        [{"event": "missed", "tick": left_out[-1], "since": every[0], "count": len(left_out)}]
        if left_out
        else []
    )
    assert scene.last() == every[-1]
    assert len([event for event in scene.log.events() if "missed" in event]) == len(noted)


def test_years_of_missed_ticks_take_no_longer_than_hours(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
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
        scene.redis.delete("queue:q", "forkq:cron:runs:report")
        scene.at = START + away
        scene.define(one)
        scene.work()
        assert scene.ticked() == list(range(scene.last() - 65, scene.last() + 1))
        [noted] = [run for run in scene.runs() if run["event"] == "missed"]
        assert noted == {"event": "missed", "since": START + 1, "tick": scene.last() - 66}
        assert asked < 3000


@pytest.mark.parametrize("cron", ["* * * * * *", "*/7 * * * *", "0 0 1 * *", "* * 3 2 *"])
@pytest.mark.parametrize("most", [1, 3, 50])
def test_the_latest_ticks_are_those_at_the_end_of_all(cron: str, most: int) -> None:
    schedule = Schedule.parse(cron, "Europe/Berlin")
    for stretch in (0, 1, 59, 3601, 90_000, 40 * DAY):
        until = START + stretch + 0.5
        if cron == "* * * * * *" and stretch > DAY:
            continue  # every one of them, to compare with, takes too long
        every = schedule.ticks(START, until, 10**9)
        assert ticks.latest(schedule, START, until, most) == every[-most:]


SPRING = "2026-03-29T01:00+00:00"  # 02:00 in Berlin becomes 03:00
AUTUMN = "2026-10-25T01:00+00:00"  # 03:00 in Berlin becomes 02:00
SPRING_DAYS = ["2026-03-28T02:30+01:00", "2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]
AUTUMN_DAYS = ["2026-10-24T02:30+02:00", "2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]


@pytest.mark.parametrize(("missed", "made_up"), [("skip", 0), ("once", 1), (2, 2)])
@pytest.mark.parametrize("days", [SPRING_DAYS, AUTUMN_DAYS], ids=["spring", "autumn"])
@pytest.mark.parametrize("back_on", [1, 2], ids=["same day", "next day"])
def test_missed_times_of_day_across_a_change_of_clocks(
    scene: Scene, missed: Any, made_up: int, days: list[str], back_on: int
) -> None:
    """Every day has its one tick, also the day without and the day with two 02:30."""
    every = [moment(day) for day in days[: back_on + 1]]
    scene.at = every[0] - 3600
    scene.define(entry("30 2 * * *", tz="Europe/Berlin", missed=missed), last=every[0] - 3600)
    scene.pass_to(every[-1] + 8 * 3600)
    assert scene.ticked() == every[len(every) - made_up :]


@pytest.mark.parametrize(("missed", "made_up"), [("skip", 0), ("once", 1), (4, 4)])
@pytest.mark.parametrize("change", [SPRING, AUTUMN], ids=["spring", "autumn"])
def test_missed_ticks_in_real_time_across_a_change_of_clocks(
    scene: Scene, missed: Any, made_up: int, change: str
) -> None:
    """Every half hour is every half hour, whatever the clocks on the wall do."""
    every = [moment(change) + n * 1800 for n in range(-2, 4)]
    scene.at = every[0] - 900
    scene.define(entry("*/30 * * * *", tz="Europe/Berlin", missed=missed), last=every[0] - 900)
    scene.pass_to(every[-1] + 900)
    assert scene.ticked() == every[len(every) - made_up :]


@pytest.mark.parametrize("days", [SPRING_DAYS, AUTUMN_DAYS], ids=["spring", "autumn"])
def test_a_clock_that_is_there_enqueues_one_a_day_across_a_change(
    scene: Scene, days: list[str]
) -> None:
    scene.at = moment(days[0]) - 3600
    scene.define(entry("30 2 * * *", tz="Europe/Berlin"), last=scene.at)
    scene.pass_to(moment(days[-1]) + 3600, by=30)
    assert scene.ticked() == [moment(day) for day in days]


# Pauses, changes, jumps of the clock


def test_ticks_of_a_paused_entry_pass_by_and_are_not_made_up_for(scene: Scene) -> None:
    scene.define(entry(missed=1000), entry(name="other", queue="other"))
    scene.redis.sadd("forkq:cron:paused", "report")
    scene.enqueuer.load(watch=False)
    scene.pass_to(START + 30 * MINUTE, by=30)
    assert scene.ticked() == []
    assert len(scene.ticked("other")) == 30
    scene.redis.srem("forkq:cron:paused", "report")
    scene.enqueuer.load(watch=False)
    scene.pass_to(START + 32 * MINUTE, by=30)
    assert scene.ticked() == [START + 31 * MINUTE, START + 32 * MINUTE]
    assert [run["event"] for run in scene.runs()] == ["enqueued", "enqueued"]


def test_ticks_of_a_disabled_entry_pass_by_and_are_not_made_up_for(scene: Scene) -> None:
    scene.define(entry(enabled=False, missed=1000))
    assert scene.enqueuer.next_due() is None
    scene.at = START + 30 * MINUTE
    scene.define(entry(missed=1000), last=None)
    scene.pass_to(START + 31 * MINUTE)
    assert scene.ticked() == [START + 31 * MINUTE]


@pytest.mark.parametrize("change", ["definition", "pause", "removal"])
def test_a_change_wakes_whoever_watches(scene: Scene, change: str) -> None:
    scene.define(entry())
    scene.connection.track()
    scene.enqueuer.load(watch=True)
    assert scene.connection.wait(0) is False
    scene.pass_to(START + MINUTE)  # our own doing is no news
    assert scene.connection.wait(0) is False
    if change == "definition":
        scene.redis.hset("forkq:cron", "report", entry("0 0 * * *").encode())
    elif change == "pause":
        scene.redis.sadd("forkq:cron:paused", "report")
    else:
        scene.redis.hdel("forkq:cron", "report")
    assert scene.connection.wait(5) is True
    before = scene.enqueuer.next_due()
    scene.enqueuer.load(watch=True)
    assert scene.enqueuer.next_due() != before


def test_a_changed_expression_ticks_by_the_new_one(scene: Scene) -> None:
    scene.define(entry())
    scene.pass_to(START + MINUTE)
    scene.define(entry("*/30 * * * * *"), last=None)
    scene.pass_to(START + 2 * MINUTE, by=10)
    assert scene.ticked() == [START + n for n in (60, 90, 120)]


def test_an_entry_without_a_last_tick_begins_now(scene: Scene) -> None:
    scene.at = START + 30
    scene.define(entry(missed=1000), last=None)
    assert scene.last() == START + 30
    scene.pass_to(START + MINUTE)
    assert scene.ticked() == [START + MINUTE]


def test_a_definition_that_has_gone_ticks_no_more(scene: Scene) -> None:
    """Also between its removal and the next look at the definitions."""
    scene.define(entry())
    scene.redis.delete("forkq:cron", "forkq:cron:last")
    scene.pass_to(START + MINUTE)
    assert scene.ticked() == []
    assert not scene.redis.exists("forkq:cron:last")
    assert scene.enqueuer.next_due() is None


def test_a_clock_that_was_days_ahead_does_not_silence_an_entry(scene: Scene) -> None:
    scene.define(entry(missed=0))
    scene.pass_to(START + 10 * DAY)  # somebody has set it so
    scene.pass_to(START + 10 * DAY + MINUTE)
    assert scene.last() == START + 10 * DAY + MINUTE
    enqueued = len(scene.ticked())
    scene.at = START + 90
    scene.work()
    assert scene.log.events()[-1].startswith("a clock was wrong")
    scene.pass_to(START + 3 * MINUTE, by=10)
    assert scene.ticked()[enqueued:] == [START + 2 * MINUTE, START + 3 * MINUTE]


def test_a_clock_that_was_hours_ahead_repeats_no_tick(scene: Scene) -> None:
    scene.define(entry(missed=0))
    scene.pass_to(START + 3 * 3600)
    scene.at = START
    scene.pass_to(START + 3 * 3600 + 5 * MINUTE, by=30)
    found = scene.ticked()
    assert len(found) == len(set(found)) == 7  # two of the minute's grace, and five
    scene.at = START + 2 * 3600
    scene.enqueuer.load(watch=False)
    scene.enqueuer.load(watch=False)
    silent = [event for event in scene.log.events() if "a clock was wrong" in event]
    assert len(silent) == 1, "it is silent for hours, and says so once"


# Whose trees run


def announced(scene: Scene, service: str) -> None:
    scene.redis.set(f"forkq:cron:origin:{service}", "runs", ex=MINUTE)


def test_an_entry_whose_app_nobody_runs_sleeps_and_nothing_is_noted(scene: Scene) -> None:
    """It is not paused either: its last tick stays for the day on which its app comes back."""
    scene.define(
        entry(name="theirs", origin="code:theirs", queue="theirs"),
        entry(name="filed", origin="file:theirs", queue="theirs"),
        entry(name="ours", origin="code:ours"),
        entry(name="added", origin="api", queue="added"),
    )
    scene.pass_to(START + 30 * MINUTE, by=30)
    assert scene.jobs("theirs") == []
    assert scene.runs("theirs") == scene.runs("filed") == []
    assert scene.last("theirs") == scene.last("filed") == START
    assert len(scene.ticked()) == len(scene.ticked("added")) == 30


@pytest.mark.parametrize(("missed", "made_up"), [("skip", 0), ("once", 1), (3, 3)])
def test_ticks_that_passed_while_nobody_ran_the_app_are_missed_ones(
    scene: Scene, missed: Any, made_up: int
) -> None:
    scene.define(entry("*/10 * * * *", origin="code:theirs", missed=missed))
    first = entry("*/10 * * * *").schedule.after(START) or 0
    every = [first + n * 600 for n in range(9)]
    scene.pass_to(every[-1] + 300, by=30)
    assert scene.enqueuer.outdated() is False
    announced(scene, "theirs")
    assert scene.enqueuer.outdated() is True
    scene.enqueuer.load(watch=False)
    assert scene.enqueuer.outdated() is False
    scene.work()
    assert scene.ticked() == every[9 - made_up :]
    noted = [run["count"] for run in scene.runs() if run["event"] == "missed"]
    assert noted == [9 - made_up]


def test_a_short_gap_of_an_app_changes_nothing(scene: Scene) -> None:
    """A restart: the ticks of the last minute are all enqueued, whatever the policy says."""
    scene.define(entry("* * * * * *", origin="code:theirs", missed="skip"))
    scene.pass_to(START + 40, by=1)
    announced(scene, "theirs")
    scene.enqueuer.load(watch=False)
    scene.work()
    assert scene.ticked() == list(range(START + 1, START + 41))


def test_an_app_that_ends_takes_its_ticks_along(scene: Scene) -> None:
    announced(scene, "theirs")
    scene.define(entry(origin="code:theirs"))
    scene.pass_to(START + MINUTE)
    scene.redis.delete("forkq:cron:origin:theirs")
    assert scene.enqueuer.outdated() is True
    scene.enqueuer.load(watch=False)
    assert scene.enqueuer.next_due() is None
    scene.pass_to(START + 5 * MINUTE)
    assert scene.ticked() == [START + MINUTE]
    assert scene.log.lines == []


def test_a_paused_entry_that_sleeps_too_still_makes_up_for_nothing(scene: Scene) -> None:
    announced(scene, "theirs")
    scene.define(entry(origin="code:theirs", missed=1000))
    scene.redis.sadd("forkq:cron:paused", "report")
    scene.enqueuer.load(watch=False)
    scene.redis.delete("forkq:cron:origin:theirs")
    scene.enqueuer.load(watch=False)
    announced(scene, "theirs")
    scene.enqueuer.load(watch=False)
    scene.at = START + 30 * MINUTE
    scene.redis.srem("forkq:cron:paused", "report")
    scene.enqueuer.load(watch=False)
    scene.pass_to(START + 31 * MINUTE)
    assert scene.ticked() == [START + 31 * MINUTE]


def test_an_announcement_lasts_a_minute_and_is_renewed_with_one_command(
    scene: Scene, redis_server: Server
) -> None:
    at = 100.0
    origins = RunningServices(Keys(), scene.connection, "ours", scene.log, lambda: at)
    assert origins.announce() is True
    assert 55 <= scene.redis.ttl("forkq:cron:origin:ours") <= 60
    scene.redis.expire("forkq:cron:origin:ours", 5)
    scene.redis.config_resetstat()
    assert origins.announce() is False
    assert scene.redis.ttl("forkq:cron:origin:ours") <= 5
    at += 15
    assert origins.announce() is True
    assert scene.redis.ttl("forkq:cron:origin:ours") >= 55
    stats: Any = scene.redis.info("commandstats")
    assert stats.pop("cmdstat_getex")["calls"] == 1
    assert not {"cmdstat_set", "cmdstat_evalsha", "cmdstat_mget"} & set(stats)
    scene.redis.delete("forkq:cron:origin:ours")
    origins.forget()  # a new connection: the server may have lost it
    assert origins.announce() is True
    assert scene.redis.exists("forkq:cron:origin:ours")


def test_our_own_entries_cost_no_question(scene: Scene) -> None:
    scene.define(entry(origin="code:ours"), entry(name="b", origin="api"))
    scene.redis.config_resetstat()
    scene.enqueuer.load(watch=False)
    assert scene.enqueuer.outdated() is False
    stats: Any = scene.redis.info("commandstats")
    assert "cmdstat_mget" not in stats


def test_a_full_server_takes_an_announcement(own_server: Server) -> None:
    own_server.cli("CONFIG", "SET", "maxmemory", 1)
    log, connection = RecordedLog(), RedisConnection(own_server.url)
    connection.connect()
    RunningServices(Keys(), connection, "ours", log).announce()
    connection.close()
    assert 55 <= own_server.client().ttl("forkq:cron:origin:ours") <= 60
    assert log.lines == []


def test_a_refused_announcement_or_question_stops_nothing_and_is_told_once(
    own_server: Server,
) -> None:
    """Who cannot be asked about is taken to run, as is our own service."""
    scene = Scene(own_server.url, own_server.client())
    own_server.cli("ACL", "SETUSER", "default", "-getex", "-mget")
    at = 100.0
    origins = RunningServices(Keys(), scene.connection, "ours", scene.log, lambda: at)
    for _ in range(3):
        assert origins.announce() is True
        at += 15
    scene.define(entry(origin="code:theirs"), entry(name="b", origin="code:ours", queue="b"))
    scene.pass_to(START + 2 * MINUTE, by=MINUTE)
    assert len(scene.ticked()) == len(scene.ticked("b")) == 2
    assert scene.enqueuer.outdated() is False
    scene.connection.close()
    assert [level for level, _, _ in scene.log.lines] == ["error", "error"]


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


def ended(scene: Scene, redis_server: Server, outcome: Outcome, job: dict[str, Any]) -> None:
    pool = RedisPool(redis_server.url, size=1, timeout=5, connect_timeout=2)
    end(CronOutcomes(Keys(), pool, scene.log), outcome, job)
    pool.close()


def test_allowed_ticks_are_enqueued_beside_each_other(scene: Scene) -> None:
    scene.define(entry(overlap="allow"))
    scene.pass_to(START + 5 * MINUTE, by=30)
    assert len(scene.ticked()) == 5


@pytest.mark.parametrize("place", ["queued", "running", "queued elsewhere"])
def test_a_tick_is_skipped_while_the_last_job_is_there(scene: Scene, place: str) -> None:
    scene.define(entry(overlap="skip"))
    scene.pass_to(START + MINUTE)
    [job] = scene.jobs()
    payload: Any = scene.redis.lindex("queue:q", 0)
    if place == "running":
        scene.redis.delete("queue:q")
        scene.redis.hset("{queue:q}:inflight", "vm:1:abc/7", payload)
    elif place == "queued elsewhere":  # its definition has changed since
        scene.define(entry(overlap="skip", queue="other"), last=None)
    scene.pass_to(START + 3 * MINUTE, by=30)
    assert len(scene.jobs()) == (0 if place == "running" else 1)
    assert not scene.redis.exists("queue:other")
    assert scene.runs()[1:] == [
        {"event": "skipped", "tick": START + n * MINUTE, "running": job["jid"]} for n in (2, 3)
    ]


@pytest.mark.parametrize("outcome", ["done", "retry", "dead", "dropped"])
def test_the_next_tick_is_enqueued_once_the_last_job_has_ended(
    scene: Scene, redis_server: Server, outcome: Outcome
) -> None:
    scene.define(entry(overlap="skip"))
    scene.pass_to(START + MINUTE)
    [job] = scene.jobs()
    ended(scene, redis_server, outcome, job)
    assert not scene.redis.exists("forkq:cron:pending")
    scene.pass_to(START + 2 * MINUTE)
    assert len(scene.ticked()) == 2
    assert scene.runs()[1] == {"event": outcome, "jid": job["jid"], "elapsed": 1.5}


def test_a_note_that_a_crash_has_left_behind_stops_nothing(scene: Scene) -> None:
    scene.define(entry("* * * * * *", overlap="skip"))
    scene.redis.hset("forkq:cron:pending", "report", "0" * 24)
    scene.pass_to(START + 1)
    assert scene.ticked() == [START + 1]


def test_a_job_that_waits_for_its_retry_stops_nothing(scene: Scene) -> None:
    scene.define(entry(overlap="skip"))
    scene.pass_to(START + MINUTE)
    payload: Any = scene.redis.rpop("queue:q")
    scene.redis.zadd("retry", {payload: START})
    scene.pass_to(START + 2 * MINUTE)
    assert scene.ticked() == [START + 2 * MINUTE]


def test_a_deep_queue_is_not_searched_at_every_tick(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = []
    find = find_job.find

    def count(*arguments: Any, **more: Any) -> Any:
        searched.append(arguments)
        return find(*arguments, **more)

    monkeypatch.setattr(overlap, "find", count)
    scene.define(entry("* * * * * *", overlap="skip"))
    scene.pass_to(START + 30, by=1)
    assert len(searched) == 1
    assert [run["event"] for run in scene.runs()] == ["enqueued"] + ["skipped"] * 29
    scene.redis.delete("queue:q")  # a minute later somebody looks again
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    scene.at = START + 31
    scene.enqueuer.work()
    assert scene.ticked() == [START + 31]


# What ended


def test_the_end_of_any_other_job_costs_nothing() -> None:
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


def test_without_redis_an_end_is_not_noted_and_nobody_fails() -> None:
    pool = RedisPool("redis://127.0.0.1:1/0", size=1, timeout=1, connect_timeout=1)
    log = RecordedLog()
    job = {"class": "J", "jid": "1", "forkq": {"cron": "report", "tick": START}}
    end(CronOutcomes(Keys(), pool, log), "done", job)
    assert [level for level, _, _ in log.lines] == ["debug"]


def test_an_older_job_that_ends_leaves_the_note_of_the_latest(
    scene: Scene, redis_server: Server
) -> None:
    scene.define(entry())
    scene.pass_to(START + 2 * MINUTE, by=30)
    older, latest = scene.jobs()
    ended(scene, redis_server, "done", older)
    assert scene.redis.hget("forkq:cron:pending", "report") == latest["jid"].encode()


# Servers and strangers


def test_a_full_server_takes_ticks_and_ends(own_server: Server) -> None:
    scene = Scene(own_server.url, own_server.client())
    scene.define(entry(overlap="skip", missed=0), last=START - 30 * MINUTE)
    own_server.cli("CONFIG", "SET", "maxmemory", 1)
    scene.pass_to(START + MINUTE, by=MINUTE / 2)
    older, latest = scene.jobs()[0], scene.jobs()[-1]
    assert older == latest
    ended(scene, own_server, "done", older)
    scene.pass_to(START + 2 * MINUTE)
    assert scene.ticked() == [START, START + 2 * MINUTE]
    events = [run["event"] for run in scene.runs()]
    assert events == ["missed", "enqueued", "skipped", "done", "enqueued"]
    scene.connection.close()


def test_a_queue_that_is_no_list_ends_nobody_and_is_not_tried_for_ever(scene: Scene) -> None:
    scene.redis.set("queue:broken", "a string")
    scene.define(entry("* * * * * *", queue="broken"), entry("* * * * * *", name="other"))
    scene.pass_to(START + 3, by=1)
    assert scene.ticked() == [START + 1, START + 2, START + 3]
    runs = scene.runs()
    assert [(run["event"], run["tick"]) for run in runs] == [
        ("missed", START + n) for n in (1, 2, 3)
    ]
    assert "broken" in runs[0]["why"]
    assert len(scene.log.lines) == 1
    scene.redis.delete("queue:broken")
    scene.pass_to(START + 4)
    assert scene.ticked("broken") == [START + 4]


@pytest.mark.parametrize("key", ["cron", "cron:paused", "cron:last", "cron:pending", "cron:runs:a"])
def test_a_key_of_another_type_ends_no_clock(scene: Scene, key: str) -> None:
    scene.define(entry(name="a", overlap="skip"))
    scene.redis.delete(f"forkq:{key}")
    scene.redis.set(f"forkq:{key}", "a string")
    scene.at = START + MINUTE
    if key in ("cron:pending", "cron:runs:a"):
        scene.enqueuer.load(watch=False)
        scene.enqueuer.work()
        assert scene.ticked() == [START + MINUTE]
        return
    with pytest.raises(ResponseError):  # the clock's duty tells of it, and tries again (duty.py)
        scene.enqueuer.load(watch=False)
    scene.redis.delete(f"forkq:{key}")
    scene.define(entry(name="a"))
    scene.enqueuer.load(watch=False)
    scene.at += MINUTE
    scene.enqueuer.work()
    assert scene.ticked()[-1] == START + 2 * MINUTE


def test_definitions_that_nobody_can_read_are_told_once_and_leave_the_others_ticking(
    scene: Scene,
) -> None:
    strange = {
        "json": b"{nope",
        "list": b"[1]",
        "cron": entry(name="cron").encode().replace(b"* * * * *", b"* * nope * *"),
        "name": entry(name="another").encode(),
        b"\xff": b"\xff",
    }
    scene.redis.hset("forkq:cron", mapping=strange)  # type: ignore[arg-type]
    scene.define(entry())
    for n in range(1, 4):
        scene.pass_to(START + n * MINUTE)
        scene.enqueuer.load(watch=False)
    assert len(scene.ticked()) == 3
    assert len(scene.log.lines) == len(strange)
    scene.redis.hset("forkq:cron", "json", "{other")
    scene.enqueuer.load(watch=False)
    assert len(scene.log.lines) == len(strange) + 1


def test_a_template_of_a_stranger_may_carry_marks_and_no_time(scene: Scene) -> None:
    job = {"class": "R", "args": [], "queue": "q", "at": 2e9, "jid": "x", "forkq": {"crashes": []}}
    scene.define(entry(job=job))
    scene.pass_to(START + MINUTE)
    [found] = scene.jobs()
    assert "at" not in found
    assert found["jid"] != "x"
    assert found["forkq"] == {"crashes": [], "cron": "report", "tick": START + MINUTE}


def test_under_a_prefix_only_its_own_entries_tick(scene: Scene, redis_server: Server) -> None:
    scene.redis.hset("forkq:cron", "theirs", entry(name="theirs", queue="theirs").encode())
    scene.redis.hset("app:forkq:cron", "ours", entry(name="ours").encode())
    scene.redis.hset("app:forkq:cron:last", "ours", START)
    leader = enqueuer(scene.connection, scene.log, lambda: START + MINUTE, prefix="app:")
    leader.load(watch=False)
    leader.work()
    assert scene.redis.llen("app:queue:q") == 1
    assert not scene.redis.exists("queue:theirs")
