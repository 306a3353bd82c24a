"""The leader's lease: one clock has it, another takes it when that one is gone, nobody is stuck."""

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
from tests.support.waiting import wait_until

LEASE, LEFT = "forkq:leader", "forkq:leader:left"
ELSEWHERE = "vm2:7:eeeeeeeeeeee another-boot/pid:[1]/4242/1.00"
linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells where a pid lives: test on Linux"
)


class Candidate:
    """One clock's LeaderLease with a wire of its own; ``told`` is what it has reported."""

    def __init__(self, number: int, url: str, keys: Keys) -> None:
        self.identity = f"vm:{number}:aaaaaaaaaaaa"
        self.log = RecordedLog()
        self.told: list[float] = []
        self.connection = TrackingConnection(url)
        self.connection.connect()
        self.connection.track()
        self.lease = LeaderLease(self.identity, keys, self.connection, self.told.append, self.log)

    def attend(self, *, watch: bool = True) -> bool:
        """Attends; returns whether it leads."""
        self.lease.attend(watch)
        return self.lease.leads

    def wait(self) -> None:
        """As the clock does: until there is something to attend to, or the server speaks."""
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
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that runs out within a second and a half."""
    monkeypatch.setattr(module, "TTL", 1.5)
    monkeypatch.setattr(module, "RENEW", 0.6)
    monkeypatch.setattr(module, "MARGIN", 0.5)


def dead_place() -> str:
    """Where a process lived that has ended and been reaped."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    place = process_ref(process.pid)
    process.communicate()
    return place


def commands(redis: Redis) -> int:
    """How many commands the server has worked off, this one not counted."""
    info: Any = redis.info("stats")
    return int(info["total_commands_processed"])


def test_the_first_to_come_leads_and_says_until_when(make: Make, redis: Redis) -> None:
    first, before = make(), time.monotonic()
    assert first.attend()
    assert redis.get(LEASE) == f"{first.identity} {process_ref()}".encode()
    assert 0 < redis.pttl(LEASE) <= TTL * 1000
    [until] = first.told
    assert before + TTL - MARGIN <= until <= time.monotonic() + TTL - MARGIN


def test_leadership_ends_before_the_lease_does(make: Make, redis: Redis) -> None:
    first = make()
    assert first.attend()
    lease_ends = time.monotonic() + redis.pttl(LEASE) / 1000
    assert first.told[-1] < lease_ends - MARGIN / 2


def test_the_second_stands_by_and_asks_nothing_until_the_lease_could_run_out(
    make: Make, redis: Redis
) -> None:
    first, second = make(), make()
    assert first.attend()
    redis.set(LEASE, ELSEWHERE, px=10_000)
    assert not second.attend()
    assert second.told == []
    assert 9 < second.lease.pause() <= 10
    before = commands(redis)
    for _ in range(5):
        assert not second.attend()
    assert commands(redis) - before == 1


def test_a_renewal_is_one_command_and_a_look_at_the_time_and_not_before_its_time(
    make: Make, redis: Redis, hasty: None
) -> None:
    first = make()
    assert first.attend()
    redis.config_resetstat()
    assert first.attend()
    wait_until(lambda: first.lease.pause() <= 0, what="the time to renew", every=0.01)
    assert first.attend()
    stats: Any = redis.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
    assert (calls.pop("getex"), calls.pop("time")) == (1, 1)
    assert set(calls) <= {"config|resetstat", "config", "info"}
    assert redis.pttl(LEASE) > 1000
    assert first.told[0] < first.told[1]


def test_a_leader_that_cannot_renew_stops_before_another_may_start(
    make: Make, redis: Redis, hasty: None
) -> None:
    first = make()
    assert first.attend()
    wait_until(lambda: not first.lease.leads, what="the end of its leadership", every=0.005)
    assert redis.pttl(LEASE) > 0
    assert not first.lease.does_the_work


def test_a_leader_whose_lease_somebody_else_has_leads_no_more(
    make: Make, redis: Redis, hasty: None
) -> None:
    first = make()
    assert first.attend()
    redis.set(LEASE, ELSEWHERE, px=5000)
    wait_until(lambda: first.lease.pause() <= 0, what="the time to renew", every=0.01)
    assert not first.attend()
    assert first.told[-1] == 0.0
    assert redis.get(LEASE) == ELSEWHERE.encode()


def test_a_leader_whose_lease_was_flushed_takes_it_again(
    make: Make, redis: Redis, hasty: None
) -> None:
    first = make()
    assert first.attend()
    redis.flushall()
    wait_until(lambda: first.lease.pause() <= 0, what="the time to renew", every=0.01)
    assert first.attend()
    assert 0.0 not in first.told


def test_a_lease_that_runs_out_elsewhere_is_taken_at_once(make: Make, redis: Redis) -> None:
    """A leader that died with its whole host: nobody here can see that."""
    redis.set(LEASE, ELSEWHERE, px=600)
    took = make().lead_soon(deadline=5)
    assert took > 0.5


def test_of_many_that_wait_for_the_lease_one_gets_it(make: Make, redis: Redis) -> None:
    redis.set(LEASE, ELSEWHERE, px=200)
    crowd = [make() for _ in range(5)]
    assert not any(each.attend() for each in crowd)
    wait_until(lambda: not redis.exists(LEASE), what="the end of the lease")
    assert sum(each.attend() for each in crowd) <= 1
    wait_until(lambda: sum(each.attend() for each in crowd) == 1, what="one leader", every=0.01)


def test_a_lease_without_an_end_is_nobodys(make: Make, redis: Redis) -> None:
    redis.set(LEASE, ELSEWHERE)
    assert make().attend()


@linux
def test_the_lease_of_a_process_that_died_here_is_taken_at_once(make: Make, redis: Redis) -> None:
    redis.set(LEASE, f"vm:7:dddddddddddd {dead_place()}", px=12_000)
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
def test_only_the_lease_of_the_dead_itself_is_taken_over(make: Make, redis: Redis) -> None:
    """Somebody else may have been quicker, between the look and the taking."""
    second = make()
    assert second.lease._claim(b"")[0] == f"{second.identity} {process_ref()}".encode()
    redis.set(LEASE, ELSEWHERE, px=10_000)
    holder, left = second.lease._claim(b"vm:7:dddddddddddd a-place-of-the-dead")
    assert holder == ELSEWHERE.encode()
    assert left > 5


def test_one_that_resigns_is_followed_as_soon_as_its_app_has_heard(make: Make) -> None:
    first, second = make(), make()
    assert first.attend()
    assert not second.attend()
    resigned = time.monotonic()
    first.lease.resign()
    assert first.told[-1] == 0.0
    assert not first.lease.leads
    second.lead_soon(deadline=5)
    took = time.monotonic() - resigned
    assert took >= HANDOVER * 0.9
    assert not first.attend()
    assert first.lease.pause() > 1


def test_a_resignation_wakes_a_standby_that_has_woken_before(make: Make) -> None:
    first, second, third = make(), make(), make()
    assert first.attend()
    assert not any(each.attend() for each in (second, third))
    first.lease.resign()
    second.lead_soon(deadline=5)
    third.wait()
    assert not third.attend()
    second.lease.resign()
    third.lead_soon(deadline=5)


def test_to_resign_a_lease_that_another_has_changes_nothing(make: Make, redis: Redis) -> None:
    first = make()
    assert first.attend()
    redis.set(LEASE, ELSEWHERE, px=10_000)
    first.lease.resign()
    assert redis.get(LEASE) == ELSEWHERE.encode()
    assert not redis.exists(LEFT)


def test_the_counter_of_resignations_does_not_stay_for_ever(make: Make, redis: Redis) -> None:
    first = make()
    assert first.attend()
    first.lease.resign()
    assert 0 < redis.ttl(LEFT) <= 86_400


def test_where_the_server_does_not_tell_a_standby_asks_every_second(
    make: Make, redis: Redis
) -> None:
    first, second = make(), make()
    redis.set(LEASE, ELSEWHERE, px=12_000)
    assert not second.attend(watch=False)
    assert 0.9 < second.lease.pause() <= 1
    assert not first.attend(watch=True)
    assert first.lease.pause() > 10


def test_a_lost_reply_to_the_taking_loses_no_time(make: Make, redis_server: Server) -> None:
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


def test_a_full_server_is_led_all_the_same(own_server: Server, make: Make, hasty: None) -> None:
    first, second = make(own_server.url), make(own_server.url)
    own_server.cli("CONFIG", "SET", "maxmemory", 1)
    assert first.attend()
    wait_until(lambda: first.lease.pause() <= 0, what="the time to renew", every=0.01)
    assert first.attend()
    assert not second.attend()
    first.lease.resign()
    second.lead_soon(deadline=5)
    assert first.log.events() == ["this clock leads", "this clock no longer leads"]


def test_where_nobody_can_have_the_lease_all_act_and_none_leads(
    make: Make, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Due jobs go on. It is said once, and once when it is over."""
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


def test_a_leader_whose_lease_cannot_be_read_any_more_says_so_to_its_app(
    make: Make, redis: Redis, hasty: None
) -> None:
    first = make()
    assert first.attend()
    redis.delete(LEASE)
    redis.lpush(LEASE, "no lease")
    wait_until(lambda: first.lease.pause() <= 0, what="the time to renew", every=0.01)
    assert not first.attend()
    assert first.told[-1] == 0.0
    assert first.lease.does_the_work


def test_under_a_prefix_there_is_a_leader_of_its_own(make: Make, redis: Redis) -> None:
    assert make().attend()
    assert make(keys=Keys("app:")).attend()
    assert redis.exists("app:" + LEASE)


def test_the_lease_outlives_two_renewals_that_fail() -> None:
    """One lost renewal must not cost the lead; and the bound of 15 s holds."""
    assert 2 * RENEW < TTL - MARGIN
    assert TTL + 1 < 15


def test_a_lease_that_lasts_longer_than_any_of_ours_is_nobodys(make: Make, redis: Redis) -> None:
    """The server's wall clock was set back: Redis keeps the moment of expiry, not the time left."""
    redis.set(LEASE, ELSEWHERE, px=3_600_000)
    second = make()
    second.lease.attend(watch=False)
    assert second.lease.leads
