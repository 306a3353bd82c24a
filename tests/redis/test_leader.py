"""The leader's lease: one clock holds it, and another takes it when the first is gone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from forkq.clock import leader as module
from forkq.clock.leader import HANDOVER, MARGIN, RENEW, TTL, LeaderLease
from forkq.clock.tracking import TrackingConnection
from forkq.runtime.liveness import process_ref
from forkq.store.connection import ConnectionLost
from forkq.store.scripts import LEADER_CLAIM
from forkq.wire.keys import Keys
from tests.redis.proxy import Proxy
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.waiting import wait_until, within

LEASE, LEFT = "forkq:leader", "forkq:leader:left"
ELSEWHERE = "vm2:7:eeeeeeeeeeee another-boot/pid:[1]/4242/1.00"
linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells where a pid lives: test on Linux"
)


class Candidate:
    """One clock's lease, on a connection of its own; ``reported`` are the times it has reported."""

    def __init__(self, number: int, url: str, keys: Keys) -> None:
        self.identity = f"vm:{number}:aaaaaaaaaaaa"
        self.log = RecordedLog()
        self.reported: list[float] = []
        self.connection = TrackingConnection(url)
        self.connection.connect()
        self.connection.track()
        self.lease = LeaderLease(
            self.identity, keys, self.connection, self.reported.append, self.log
        )

    def attend(self, *, watch: bool = True) -> bool:
        """Attends; returns whether it leads."""
        self.lease.attend(watch)
        return self.lease.leads

    def wait(self) -> None:
        """As the clock does: until the lease is due, or the server sends an invalidation."""
        self.connection.wait(max(0.0, self.lease.pause()))
        if self.connection.take_changes().include(LEFT):
            self.lease.try_now()

    def lead_soon(self, deadline: float) -> float:
        """Waits and attends until it leads; returns how many seconds that took."""
        began = time.monotonic()
        while not self.attend():
            assert time.monotonic() - began < deadline, f"does not lead after {deadline} s"
            self.wait()
        return time.monotonic() - began


Make = Callable[..., Candidate]


@pytest.fixture
def make(redis: Redis, redis_server: Server) -> Iterator[Make]:
    """Makes candidates for the lease on the shared server, or on the one at a given URL."""
    made: list[Candidate] = []

    def candidate(url: str = redis_server.url, keys: Keys = Keys()) -> Candidate:  # noqa: B008
        made.append(Candidate(len(made) + 1, url, keys))
        return made[-1]

    yield candidate
    for each in made:
        each.connection.close()


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that expires within a second and a half; later on a busy machine, on which the test
    may stand still for so long."""
    unit = min(within(1.0), 4.0)
    monkeypatch.setattr(module, "TTL", 1.5 * unit)
    monkeypatch.setattr(module, "RENEW", 0.6 * unit)
    monkeypatch.setattr(module, "MARGIN", 0.5 * unit)


def dead_process_ref() -> str:
    """The process_ref of a process that has ended and was reaped."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ref = process_ref(process.pid)
    process.communicate()
    return ref


def commands(redis: Redis) -> int:
    """How many commands the server has processed, without this one."""
    info: Any = redis.info("stats")
    return int(info["total_commands_processed"])


def test_the_first_clock_leads_and_reports_until_when(make: Make, redis: Redis) -> None:
    first, before = make(), time.monotonic()
    assert first.attend()
    assert redis.get(LEASE) == f"{first.identity} {process_ref()}".encode()
    assert 0 < redis.pttl(LEASE) <= TTL * 1000
    [until] = first.reported
    assert before + TTL - MARGIN <= until <= time.monotonic() + TTL - MARGIN


def test_leadership_ends_before_the_lease_does(make: Make, redis: Redis) -> None:
    first = make()
    assert first.attend()
    left = redis.pttl(LEASE) / 1000
    lease_ends = time.monotonic() + left
    assert first.reported[-1] < lease_ends - MARGIN / 2


def test_the_second_stands_by_and_sends_no_command_until_the_lease_could_expire(
    make: Make, redis: Redis
) -> None:
    first, second = make(), make()
    assert first.attend()
    redis.set(LEASE, ELSEWHERE, px=10_000)
    assert not second.attend()
    assert second.reported == []
    assert 1 < second.lease.pause() <= 10
    before = commands(redis)
    for _ in range(5):
        assert not second.attend()
    assert commands(redis) - before == 1


def test_a_renewal_is_two_commands_and_comes_when_it_is_due(
    make: Make, redis: Redis, short_lease: None
) -> None:
    first = make()
    assert first.attend()
    redis.config_resetstat()
    assert first.attend()
    wait_until(lambda: first.lease.pause() <= 0, what="the time to renew", every=0.01)
    left = redis.pttl(LEASE)
    assert first.attend()
    stats: Any = redis.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
    assert (calls.pop("getex"), calls.pop("time")) == (1, 1)
    assert set(calls) <= {"config|resetstat", "config", "info", "pttl"}
    assert redis.pttl(LEASE) > left
    assert first.reported[0] < first.reported[1]


def test_a_leader_that_cannot_renew_stops_before_another_may_start(
    make: Make, redis: Redis, short_lease: None
) -> None:
    first = make()
    assert first.attend()
    wait_until(lambda: not first.lease.leads, what="the end of its leadership", every=0.005)
    assert redis.pttl(LEASE) > 0
    assert not first.lease.does_the_work


def test_a_leader_whose_lease_another_clock_holds_no_longer_leads(
    make: Make, redis: Redis, short_lease: None
) -> None:
    first = make()
    assert first.attend()
    redis.set(LEASE, ELSEWHERE, px=5000)
    wait_until(lambda: first.lease.pause() <= 0, what="the time to renew", every=0.01)
    assert not first.attend()
    assert first.reported[-1] == 0.0
    assert redis.get(LEASE) == ELSEWHERE.encode()


def test_a_leader_whose_lease_was_flushed_takes_it_again(
    make: Make, redis: Redis, short_lease: None
) -> None:
    first = make()
    assert first.attend()
    redis.flushall()
    wait_until(lambda: first.lease.pause() <= 0, what="the time to renew", every=0.01)
    assert first.attend()
    assert 0.0 not in first.reported


def test_an_expired_lease_of_another_host_is_taken_at_once(make: Make, redis: Redis) -> None:
    """No process here can see that the leader has died with its host."""
    redis.set(LEASE, ELSEWHERE, px=600)
    took = make().lead_soon(deadline=within(5))
    assert took > 0.5


def test_of_many_standbys_one_gets_the_lease(make: Make, redis: Redis) -> None:
    standbys = [make() for _ in range(5)]
    redis.set(LEASE, ELSEWHERE, px=round(min(within(1.0), 5.0) * 1000))
    assert not any(each.attend() for each in standbys)
    wait_until(lambda: not redis.exists(LEASE), what="the end of the lease")
    assert sum(each.attend() for each in standbys) <= 1
    wait_until(lambda: sum(each.attend() for each in standbys) == 1, what="one leader", every=0.01)


def test_a_lease_without_expiry_is_free(make: Make, redis: Redis) -> None:
    redis.set(LEASE, ELSEWHERE)
    assert make().attend()


@linux
def test_the_lease_of_a_process_that_died_here_is_taken_at_once(make: Make, redis: Redis) -> None:
    redis.set(LEASE, f"vm:7:dddddddddddd {dead_process_ref()}", px=12_000)
    assert make().attend()


@linux
def test_a_standby_sees_the_leader_die_without_asking_redis(make: Make, redis: Redis) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        redis.set(LEASE, f"vm:7:dddddddddddd {process_ref(process.pid)}", px=10_000)
        second = make()
        assert not second.attend()
        before = commands(redis)
        assert not second.attend()
        assert 0 < second.lease.pause() <= 1
        assert commands(redis) - before == 1
    finally:
        process.communicate()
    assert second.attend()


@linux
def test_only_the_lease_of_the_dead_holder_is_taken_over(make: Make, redis: Redis) -> None:
    """Another clock may have taken the lease since it was read."""
    second = make()
    assert second.lease._claim(b"")[0] == f"{second.identity} {process_ref()}".encode()
    redis.set(LEASE, ELSEWHERE, px=10_000)
    holder, left = second.lease._claim(b"vm:7:dddddddddddd a-process-ref")
    assert holder == ELSEWHERE.encode()
    assert left > 5


def test_a_standby_leads_once_the_app_of_the_resigned_leader_has_heard(make: Make) -> None:
    first, second = make(), make()
    assert first.attend()
    assert not second.attend()
    resigned = time.monotonic()
    first.lease.resign()
    assert first.reported[-1] == 0.0
    assert not first.lease.leads
    second.lead_soon(deadline=within(5))
    took = time.monotonic() - resigned
    assert took >= HANDOVER * 0.9
    assert not first.attend()
    assert first.lease.pause() > 1


def test_each_resignation_wakes_the_standbys(make: Make) -> None:
    first, second, third = make(), make(), make()
    assert first.attend()
    assert not any(each.attend() for each in (second, third))
    first.lease.resign()
    second.lead_soon(deadline=within(5))
    third.wait()
    assert not third.attend()
    second.lease.resign()
    third.lead_soon(deadline=within(5))


def test_resigning_a_lease_that_another_clock_holds_changes_nothing(
    make: Make, redis: Redis
) -> None:
    first = make()
    assert first.attend()
    redis.set(LEASE, ELSEWHERE, px=10_000)
    first.lease.resign()
    assert redis.get(LEASE) == ELSEWHERE.encode()
    assert not redis.exists(LEFT)


def test_the_counter_of_resignations_expires(make: Make, redis: Redis) -> None:
    first = make()
    assert first.attend()
    first.lease.resign()
    assert 0 < redis.ttl(LEFT) <= 86_400


def test_a_standby_without_invalidations_asks_every_second(make: Make, redis: Redis) -> None:
    first, second = make(), make()
    redis.set(LEASE, ELSEWHERE, px=12_000)
    began = time.monotonic()
    assert not second.attend(watch=False)
    assert second.lease.pause() <= 1
    assert second.lease.pause() + time.monotonic() - began > 0.9
    assert not first.attend(watch=True)
    assert first.lease.pause() > 1


def test_a_lost_reply_to_a_claim_costs_no_time(make: Make, redis_server: Server) -> None:
    with Proxy(redis_server.port) as proxy:
        first = make(proxy.url)
        first.connection.call("SCRIPT", "LOAD", LEADER_CLAIM.text)
        proxy.cut(LEADER_CLAIM.sha)
        with pytest.raises(ConnectionLost):
            first.attend()
        assert not first.lease.leads
        first.connection.connect()
        first.lease.try_now()
        assert first.attend()


def test_a_full_server_grants_the_lease(own_server: Server, make: Make, short_lease: None) -> None:
    first, second = make(own_server.url), make(own_server.url)
    own_server.cli("CONFIG", "SET", "maxmemory", 1)
    assert first.attend()
    wait_until(lambda: first.lease.pause() <= 0, what="the time to renew", every=0.01)
    assert first.attend()
    assert not second.attend()
    first.lease.resign()
    second.lead_soon(deadline=within(5))
    assert first.log.events() == ["this clock leads", "this clock no longer leads"]


def test_where_redis_refuses_the_lease_every_clock_does_the_work_and_none_leads(
    make: Make, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Due jobs go on. It is logged once, and once when it is over."""
    monkeypatch.setattr(module, "RENEW", 0.05)
    redis.lpush(LEASE, "no lease")
    both = [make(), make()]
    for _ in range(3):
        assert not any(each.attend() for each in both)
        assert all(each.lease.does_the_work for each in both)
        wait_until(lambda: both[1].lease.pause() <= 0, what="the next try", every=0.01)
    assert [len(each.log.lines) for each in both] == [1, 1]
    redis.delete(LEASE)
    assert [each.attend() for each in both] == [True, False]
    assert not both[1].lease.does_the_work
    assert [len(each.log.lines) for each in both] == [3, 2]


def test_a_leader_whose_lease_becomes_unreadable_reports_the_end(
    make: Make, redis: Redis, short_lease: None
) -> None:
    first = make()
    assert first.attend()
    redis.delete(LEASE)
    redis.lpush(LEASE, "no lease")
    wait_until(lambda: first.lease.pause() <= 0, what="the time to renew", every=0.01)
    assert not first.attend()
    assert first.reported[-1] == 0.0
    assert first.lease.does_the_work


def test_each_prefix_has_a_leader_of_its_own(make: Make, redis: Redis) -> None:
    assert make().attend()
    assert make(keys=Keys("app:")).attend()
    assert redis.exists("app:" + LEASE)


def test_the_lease_outlasts_two_failed_renewals() -> None:
    """One failed renewal must not end the leadership; a dead leader is replaced within 15 s."""
    assert 2 * RENEW < TTL - MARGIN
    assert TTL + 1 < 15


def test_a_lease_that_lasts_longer_than_any_of_ours_is_free(make: Make, redis: Redis) -> None:
    """The server's wall clock was set back: Redis keeps the moment of expiry, not the time left."""
    redis.set(LEASE, ELSEWHERE, px=3_600_000)
    second = make()
    second.lease.attend(watch=False)
    assert second.lease.leads
