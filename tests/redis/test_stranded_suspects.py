"""Suspects of a queue that no process of forkq serves go back to the queue's own list."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis import Redis

from forkq.clock import stranded_suspects
from forkq.clock.stranded_suspects import StrandedSuspects
from forkq.store.connection import RedisConnection, ResponseError
from forkq.wire.keys import Keys
from tests.redis.in_process_clock import InProcessClock
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.waiting import wait_until

KEYS = Keys()
HOUR = 3600.0
RETURNED = "suspects returned to their queue: no process of forkq serves it"


def suspect(number: int, **more: Any) -> str:
    job = {"class": "J", "args": [], "jid": str(number), "forkq": {"suspect": True}}
    return json.dumps({**job, **more})


def isolate(redis: Redis, queue: str, payloads: list[str]) -> None:
    """The first one is the oldest."""
    redis.lpush(KEYS.suspects(queue), *payloads)
    redis.sadd(KEYS.suspected, queue)


def serves(redis: Redis, identity: str, *queues: str, **more: Any) -> None:
    """A process's record."""
    info = {"hostname": "h", "pid": 1, "started_at": 1.0, "queues": queues, **more}
    redis.sadd("processes", identity)
    redis.hset(identity, "info", json.dumps(info))


class LeadersTask:
    """The task as its clock calls it, at a made-up time."""

    def __init__(
        self, redis: Redis, connection: RedisConnection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.now = 1_800_000_000.0
        self.log = RecordedLog()
        self._redis = redis
        self._task = StrandedSuspects(KEYS, connection, self._suspected, self.log)
        monkeypatch.setattr(stranded_suspects, "now", lambda: self.now)

    def _suspected(self) -> list[str]:
        found: Any = self._redis.smembers(KEYS.suspected)
        return sorted(name.decode() for name in found)

    def live(self, seconds: float) -> None:
        """So much time passes, in steps of a minute, as the clock attends its tasks."""
        until = self.now + seconds
        while self.now <= until:
            while (due := self._task.next_due()) is not None and due <= self.now:
                self._task.work()
            self.now += 60.0

    def told(self) -> list[tuple[str, int]]:
        """The queues of which the log tells, and how many jobs."""
        lines = [values for _, event, values in self.log.lines if event == RETURNED]
        return [(values["queue"], values["jobs"]) for values in lines]


@pytest.fixture
def leader(
    redis: Redis, connection: RedisConnection, monkeypatch: pytest.MonkeyPatch
) -> LeadersTask:
    return LeadersTask(redis, connection, monkeypatch)


def test_after_an_hour_the_suspects_are_in_the_queue_unchanged_and_in_order(
    redis: Redis, leader: LeadersTask
) -> None:
    """In pages, before the jobs of the queue that are younger, with one line in the log."""
    found = [suspect(number) for number in range(1200)]
    isolate(redis, "old", found)
    redis.lpush("queue:old", "younger")
    leader.live(HOUR - 60.0)
    assert redis.llen(KEYS.suspects("old")) == 1200
    leader.live(120.0)
    order: Any = redis.lrange("queue:old", 0, -1)
    assert [payload.decode() for payload in reversed(order)] == [*found, "younger"]
    assert not redis.exists(KEYS.suspects("old"), KEYS.suspected)
    assert redis.sismember("queues", "old")
    assert leader.told() == [("old", 1200)]
    leader.live(2 * HOUR)
    assert leader.told() == [("old", 1200)]


def test_suspects_stay_that_a_process_of_forkq_can_run(redis: Redis, leader: LeadersTask) -> None:
    """A pattern serves, too. Sidekiq fetches only from the queue itself."""
    for queue in ("mail", "tenant-1", "ruby"):
        isolate(redis, queue, [suspect(1)])
    serves(redis, "h:1:0123456789ab", "mail", "tenant-*", version="forkq 0.1.0", master=7)
    serves(redis, "h:2:fedcba987654", "ruby", "mail")
    leader.live(3 * HOUR)
    assert leader.told() == [("ruby", 1)]
    assert redis.llen("queue:ruby") == 1
    assert redis.smembers(KEYS.suspected) == {b"mail", b"tenant-1"}


def test_the_hour_begins_anew_when_a_process_has_served_the_queue(
    redis: Redis, leader: LeadersTask
) -> None:
    isolate(redis, "q", [suspect(1)])
    leader.live(HOUR - 300.0)
    serves(redis, "h:1:0123456789ab", "q", master=7)
    leader.live(120.0)
    redis.delete("processes")
    leader.live(HOUR - 300.0)
    assert leader.told() == []
    leader.live(600.0)
    assert leader.told() == [("q", 1)]


def test_the_hour_begins_anew_after_another_clock_has_led(
    redis: Redis, leader: LeadersTask
) -> None:
    isolate(redis, "q", [suspect(1)])
    leader.live(120.0)
    leader.now += 2 * HOUR
    leader.live(HOUR - 120.0)
    assert leader.told() == []


def test_a_damaged_queue_keeps_no_other_one_waiting(redis: Redis, leader: LeadersTask) -> None:
    isolate(redis, "b", [suspect(1)])
    isolate(redis, "a", [suspect(2)])
    redis.set("queue:a", "no list")
    leader.live(HOUR - 60.0)
    with pytest.raises(ResponseError):
        leader.live(120.0)
    leader.live(60.0)
    assert leader.told() == [("b", 1)]
    assert redis.llen(KEYS.suspects("a")) == 1


def test_while_no_suspect_waits_nothing_is_asked(leader: LeadersTask) -> None:
    leader.live(HOUR)
    assert leader._task.next_due() is None


def test_the_leaders_clock_does_it(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stranded_suspects, "_STRANDED_AFTER", 0.0)
    isolate(redis, "old", [suspect(1)])
    with InProcessClock(redis_server.url):
        wait_until(lambda: redis.llen("queue:old"), what="the suspect in its queue")
    assert redis.rpop("queue:old") == suspect(1).encode()
