"""The fetcher with real threads: nothing hoarded, nothing lost, nothing doubled, nothing late."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis, exceptions

from forkq.child.fetch.channel import Exchange
from forkq.child.fetch_turn import Hand
from forkq.limits.rules import Rules
from forkq.store.connection import RedisConnection, ResponseError
from forkq.store.scripts import FETCH
from forkq.wire.lease import UnitOfWork
from tests.redis.in_process_child import IDENTITY, ProcessorThreads, is_waiting
from tests.redis.proxy import Proxy
from tests.support.server import Server
from tests.support.waiting import wait_until, within

LIST, INFLIGHT = "queue:q", "{queue:q}:inflight"
# What "at once" may take on a machine that is busy with other things. The promise is 20 ms; a child
# that is not woken looks by itself after a minute.
AT_ONCE = 30.0


def push(redis: Redis, *payloads: str | int, queue: str = "q") -> None:
    for start in range(0, len(payloads), 1000):
        redis.lpush(f"queue:{queue}", *payloads[start : start + 1000])


def line(redis: Redis) -> list[bytes]:
    """The queue, next to run first."""
    found: Any = redis.lrange(LIST, 0, -1)
    return list(reversed(found))


class Gate:
    """Work that holds every unit until `open`, except those that it lets through."""

    def __init__(self, *through: bytes) -> None:
        self.waiting: list[bytes] = []
        self._through = through
        self._open = threading.Event()

    def __call__(self, unit: UnitOfWork) -> None:
        if unit.payload not in self._through:
            self.waiting.append(unit.payload)
            assert self._open.wait(30)

    def open(self) -> None:
        self._open.set()

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.waiting) >= count, what=f"{count} jobs at the gate")


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


@pytest.mark.parametrize("right", ["-hset", "-ltrim"])
def test_a_right_that_goes_missing_costs_no_job(
    redis: Redis, redis_server: Server, right: str
) -> None:
    """Each job is in its queue or leased, whichever of the commands of a fetch is refused."""
    redis.rpush("queue:q", *range(5))
    redis.acl_setuser("app", enabled=True, nopass=True, keys=["*"], commands=["+@all", right])
    url = redis_server.url.replace("redis://", "redis://app:x@")
    connection = RedisConnection(url)
    try:
        connection.connect()
        keys = ("paused", "forkq:controlled", "queue:q", "{queue:q}:inflight")
        for _ in range(2):
            with pytest.raises(ResponseError, match=r"can't run this|no permissions to run"):
                connection.script(FETCH, keys, (3, "me/", 1, 0, 1, 3, 1, 0))
        assert redis.lrange("queue:q", 0, -1) == [b"0", b"1", b"2", b"3", b"4"]
        assert not redis.exists("{queue:q}:inflight")
    finally:
        connection.close()
        redis.acl_deluser("app")


def test_no_more_is_leased_than_there_are_processors(
    redis: Redis, redis_server: Server, gate: Gate
) -> None:
    push(redis, *range(10))
    with ProcessorThreads(redis_server.url, gate, concurrency=3):
        gate.wait_for(3)
        assert (redis.hlen(INFLIGHT), redis.llen(LIST)) == (3, 7)
        assert line(redis) == [str(number).encode() for number in range(3, 10)]
        gate.open()
    assert redis.hlen(INFLIGHT) == 0


def test_one_long_job_holds_no_other_up(redis: Redis, redis_server: Server) -> None:
    gate = Gate(*(str(number).encode() for number in range(1, 400)))
    with ProcessorThreads(redis_server.url, gate, concurrency=2) as child:
        push(redis, *range(1, 200), 0, *range(200, 400))
        child.wait_runs(399)
        assert redis.llen(LIST) == 0
        gate.open()
        child.wait_runs(400)


def test_a_push_wakes_a_waiting_child_at_once(redis: Redis, redis_server: Server) -> None:
    with ProcessorThreads(redis_server.url, queues={"a": 0, "b": 0, "c": 0}) as child:
        for number, queue in enumerate(["c", "a", "b", "c"] * 5):
            wait_until(lambda: is_waiting(child.fetcher), what="the child to wait")
            began = time.monotonic()
            push(redis, number, queue=queue)
            child.wait_runs(number + 1)
            assert time.monotonic() - began < AT_ONCE


def test_a_waiting_child_is_woken_whatever_the_mode(redis: Redis, redis_server: Server) -> None:
    with ProcessorThreads(redis_server.url, queues={"a": 100, "b": 1}) as child:
        for number in range(10):
            wait_until(lambda: is_waiting(child.fetcher), what="the child to wait")
            push(redis, number, queue="b")
            child.wait_runs(number + 1, deadline=AT_ONCE)


def test_an_idle_child_sends_nothing(redis: Redis, redis_server: Server) -> None:
    with ProcessorThreads(redis_server.url) as child:
        wait_until(lambda: is_waiting(child.fetcher), what="the child to wait")
        before = commands(redis)
        threading.Event().wait(1.0)  # the fact is that nothing happens
        assert commands(redis) - before <= 3  # our own two, and one to spare


def commands(redis: Redis) -> int:
    count: int = redis.info("stats")["total_commands_processed"]
    return count


def test_an_acknowledgement_is_sent_soon_though_nothing_else_comes(
    redis: Redis, redis_server: Server
) -> None:
    with ProcessorThreads(redis_server.url) as child:
        push(redis, "only")
        child.wait_runs(1)
        wait_until(lambda: not redis.exists(INFLIGHT), deadline=AT_ONCE, what="the acknowledgement")


def test_an_acknowledgement_is_sent_soon_though_all_processors_are_busy(
    redis: Redis, redis_server: Server
) -> None:
    gate = Gate(b"tiny")
    with ProcessorThreads(redis_server.url, gate, concurrency=2) as child:
        push(redis, "tiny", "long 1", "long 2")
        gate.wait_for(2)
        child.wait_runs(1)
        wait_until(
            lambda: sorted(redis.hvals(INFLIGHT)) == [b"long 1", b"long 2"],
            deadline=AT_ONCE,
            what="the tiny job's acknowledgement",
        )
        gate.open()


@pytest.mark.parametrize("rules", [{}, {"q": Rules(limit=100)}])
def test_large_jobs_are_fetched_a_few_at_a_time(
    own_server: Server, rules: dict[str, Rules]
) -> None:
    """Ten of them in one answer are more than this server lets a client have."""
    own_server.cli("CONFIG", "SET", "client-output-buffer-limit", "normal 1mb 1mb 1")
    redis = own_server.client()
    for number in range(10):
        redis.lpush(LIST, f"{number}" * 250_000)
    redis.lpush(LIST, *range(40))
    with ProcessorThreads(own_server.url, concurrency=10, rules=rules) as child:
        child.wait_runs(50)
        assert "redis lost" not in child.log.events()
    assert sorted(map(len, child.order))[-10:] == [250_000] * 10
    assert redis.exists(INFLIGHT) == 0


def test_strict_order_starts_no_lower_job_while_a_higher_queue_has_some(
    redis: Redis, redis_server: Server
) -> None:
    for queue in ("low", "high", "mid"):
        push(redis, *(f"{queue} {number}" for number in range(300)), queue=queue)
    queues = {"high": 0, "mid": 0, "low": 0}
    with ProcessorThreads(redis_server.url, queues=queues, concurrency=1) as child:
        child.wait_runs(900)
    wanted = [f"{queue} {number}" for queue in queues for number in range(300)]
    assert child.order == [payload.encode() for payload in wanted]


def test_weighted_shares_through_the_fetcher_come_close(redis: Redis, redis_server: Server) -> None:
    for queue in ("a", "b", "c"):
        push(redis, *[queue] * 18_000, queue=queue)
    queues = {"a": 10, "b": 5, "c": 3}
    with ProcessorThreads(redis_server.url, queues=queues, concurrency=10) as child:
        child.wait_runs(18_000)
        drawn = Counter(child.order[:18_000])
    shares = [100 * drawn[queue.encode()] / 18_000 for queue in queues]
    # One more than the draw itself: the last fetch brings the jobs of one queue after the other.
    assert shares == pytest.approx([1000 / 18, 500 / 18, 300 / 18], abs=4)


def test_quiet_fetches_nothing_more_and_acknowledges_what_is_done(
    redis: Redis, redis_server: Server, gate: Gate
) -> None:
    push(redis, *range(10))
    child = ProcessorThreads(redis_server.url, gate, concurrency=2)
    with child:
        gate.wait_for(2)
        child.fetcher.quiet()
        gate.open()
    assert len(child.order) == 2
    assert line(redis) == [str(number).encode() for number in range(2, 10)]
    assert redis.hlen(INFLIGHT) == 0


def test_the_child_owes_what_redis_has_not_confirmed(own_server: Server, gate: Gate) -> None:
    """If its process were ended then, the job would run again."""
    client = own_server.client()
    push(client, 0, 1)
    done = Gate()
    with ProcessorThreads(
        own_server.url, lambda unit: (done if unit.payload == b"1" else gate)(unit), concurrency=2
    ) as child:
        gate.wait_for(1)
        done.wait_for(1)
        child.fetcher.quiet()
        wait_until(lambda: not child.fetcher.owes, what="an end of what is under way")
        own_server.pause()
        done.open()
        wait_until(lambda: child.order == [b"1"], what="the job's end")
        wait_until(lambda: child.fetcher.owes, what="an acknowledgement to be under way")
        assert len(child.leases.units()) == 1
        own_server.resume()
        wait_until(lambda: not child.fetcher.owes, what="its reply")
        assert client.hlen(INFLIGHT) == 1
        gate.open()


def test_the_heartbeat_leaves_the_connection_to_a_processor_that_waits(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the order to go quiet and the moment in which that processor hears of it, two threads
    would read from one connection."""
    with ProcessorThreads(redis_server.url, concurrency=1) as child:
        wait_until(lambda: is_waiting(child.fetcher), what="a processor that waits")
        waker = child.fetcher._waker
        with monkeypatch.context() as patched:
            patched.setattr(child.fetcher, "_waker", SimpleNamespace(wake=lambda: None))
            child.fetcher.quiet()
        child.leases.must_compare = True
        before = clients(redis)
        child.fetcher.flush()
        assert clients(redis) == before  # to compare leases takes a new connection
        waker.wake()


def clients(redis: Redis) -> set[str]:
    """The connections that the server has."""
    found: Any = redis.client_list()
    return {client["id"] for client in found}


def test_a_child_that_waits_goes_quiet_at_once(redis: Redis, redis_server: Server) -> None:
    child = ProcessorThreads(redis_server.url, concurrency=5)
    with child:
        wait_until(lambda: is_waiting(child.fetcher), what="the child to wait")
        began = time.monotonic()
        child.stop()
        assert time.monotonic() - began < AT_ONCE


def test_what_is_given_back_stands_at_the_head_in_its_old_order(
    redis: Redis, redis_server: Server
) -> None:
    push(redis, *range(6))
    child = ProcessorThreads(redis_server.url, concurrency=4)
    units = [child.take() for _ in range(4)]
    assert units[1] is not None
    child.fetcher.done(units[1])
    child.fetcher.quiet()
    assert child.fetcher.give_back()
    assert line(redis) == [b"0", b"2", b"3", b"4", b"5"]
    assert redis.hlen(INFLIGHT) == 0
    assert child.leases.units() == {}


def test_giving_back_to_a_server_that_is_away_says_so_and_the_leases_stay(
    own_server: Server,
) -> None:
    redis = own_server.client()
    push(redis, 1, 2)
    child = ProcessorThreads(own_server.url, concurrency=2)
    assert child.take() is not None
    child.fetcher.quiet()
    own_server.stop()
    assert child.fetcher.give_back() is False
    own_server.start()
    assert own_server.cli("HLEN", INFLIGHT) == 2


def test_the_job_of_a_dead_processor_goes_back_and_runs_again(
    redis: Redis, redis_server: Server
) -> None:
    push(redis, "orphan")
    child = ProcessorThreads(redis_server.url, concurrency=2)
    hand = Hand()
    assert child.take(hand) is not None
    child.fetch.turn.abandon(hand)
    with child:
        child.wait_runs(1)
    assert child.order == [b"orphan"]


def test_leases_name_their_owner_and_count_up(redis: Redis, redis_server: Server) -> None:
    push(redis, "1", "2", "3")
    child = ProcessorThreads(redis_server.url, concurrency=3)
    assert child.take() is not None
    assert set(redis.hkeys(INFLIGHT)) == {f"{IDENTITY}/{n}".encode() for n in (1, 2, 3)}
    child.fetcher.quiet()
    assert child.fetcher.give_back()


# Connections lost


def drained(redis: Redis, child: ProcessorThreads, count: int) -> None:
    """Every job was run exactly once, and nothing is left."""
    child.wait_runs(count, deadline=40)
    child.stop()
    runs = Counter(child.order)
    assert {payload: times for payload, times in runs.items() if times > 1} == {}
    assert len(runs) == count
    assert (redis.llen(LIST), redis.hlen(INFLIGHT)) == (0, 0)


def a_little_work(unit: UnitOfWork) -> None:
    """Half a millisecond, so that the jobs last until the server is back."""
    threading.Event().wait(0.0005)


def brief_pauses(child: ProcessorThreads) -> None:
    """The fetcher's pauses after a failure are for production; a test has no second to lose."""
    child.fetcher._backoff._first = 0.02


def test_killed_connections_lose_and_double_nothing(redis: Redis, redis_server: Server) -> None:
    push(redis, *range(6000))
    child = ProcessorThreads(redis_server.url, concurrency=4)
    brief_pauses(child)
    with child:
        for cut in range(1, 11):
            child.wait_runs(cut * 400)
            redis.client_kill_filter(_type="normal", skipme=True)
        drained(redis, child, 6000)
    assert child.fetcher.give_back()  # as each child does: the last cut may have hit it in its stop
    assert 1 <= child.log.events().count("redis lost") <= 10
    assert child.log.events().count("redis lost") == child.log.events().count("redis is back")


def test_a_child_that_stops_before_it_has_reconnected_tells_that_redis_is_back(
    redis: Redis, redis_server: Server
) -> None:
    """Its stop is the first that Redis answers: it returns the leases."""
    with Proxy(redis_server.port) as proxy:
        child = ProcessorThreads(proxy.url)
        child.fetcher._backoff._first = 600.0  # it does not reconnect by itself
        with child:
            wait_until(lambda: is_waiting(child.fetcher), what="the child to wait")
            proxy.target = 1  # nothing listens there
            proxy.hang_up()
            wait_until(lambda: child.log.events() == ["redis lost"], what="the outage")
        proxy.target = redis_server.port
        assert child.fetcher.give_back()
    assert child.log.events() == ["redis lost", "redis is back"]


def test_a_fetch_that_was_answered_before_another_part_lost_redis_ends_no_outage(
    redis_server: Server,
) -> None:
    """The reply came; then the heartbeat failed; only then the fetcher's thread goes on."""
    child = ProcessorThreads(redis_server.url)
    fetcher, channel = child.fetcher, child.fetcher._channel
    receive = channel.receive

    def then_another_part_fails() -> Exchange:
        exchange = receive()
        fetcher._outage.begin(exceptions.ConnectionError("Connection refused"))
        return exchange

    channel.receive = then_another_part_fails  # type: ignore[method-assign]
    assert fetcher._exchange()
    assert child.log.events() == ["redis lost"]
    channel.receive = receive  # type: ignore[method-assign]
    assert fetcher._exchange()
    assert child.log.events() == ["redis lost", "redis is back"]


def test_a_waiting_child_whose_connection_is_killed_waits_on_the_next(
    redis: Redis, redis_server: Server
) -> None:
    child = ProcessorThreads(redis_server.url)
    brief_pauses(child)
    with child:
        for number in range(5):
            wait_until(lambda: is_waiting(child.fetcher), what="the child to wait")
            redis.client_kill_filter(_type="normal", skipme=True)
            push(redis, number)
            child.wait_runs(number + 1)


def connections(redis: Redis) -> int:
    """How many the server has taken so far."""
    found: Any = redis.info("stats")
    return int(found["total_connections_received"])


@pytest.mark.parametrize("said", [b"-ERR you are unwelcome\r\n", b"+OK\r\n", b"HTTP/1.1 502\r\n"])
def test_what_a_server_says_unasked_ends_no_processor_that_waits(
    redis: Redis, redis_server: Server, said: bytes
) -> None:
    """An error, a reply, and what is no message of Redis at all: the child connects again."""
    with Proxy(redis_server.port) as proxy, ProcessorThreads(proxy.url, concurrency=2) as child:
        wait_until(lambda: is_waiting(child.fetcher), what="a processor that waits")
        before = connections(redis)
        proxy.say(said)
        wait_until(lambda: connections(redis) > before or child.errors, what="a new connection")
        redis.lpush("queue:q", "1")
        child.wait_runs(1)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_lost_replies_lose_and_double_nothing(
    redis: Redis, redis_server: Server, concurrency: int
) -> None:
    """The server has leased the jobs, or dropped the leases, and the child never hears of it."""
    with Proxy(redis_server.port) as proxy:
        child = ProcessorThreads(proxy.url, concurrency=concurrency)
        brief_pauses(child)
        cuts, count = 0, 2400

        def a_reply_is_lost() -> bool:
            nonlocal count
            if not redis.llen(LIST):  # this thread is slower than the child: more requests
                push(redis, count)
                count += 1
            return proxy.cuts >= 1 or bool(child.errors)

        with child:
            for cut in range(8):
                proxy.cut(b"EVALSHA", times=1 + cut % 2)
                push(redis, *range(cut * 300, cut * 300 + 300))
                wait_until(a_reply_is_lost, what="a reply to be lost")
                cuts += proxy.cuts
                child.wait_runs(cut * 300 + 150)
            drained(redis, child, count)
    assert cuts >= 8


def test_a_restarted_server_loses_and_doubles_nothing(own_server: Server) -> None:
    redis = own_server.client()
    push(redis, *range(3000))
    child = ProcessorThreads(own_server.url, a_little_work, concurrency=4)
    brief_pauses(child)
    with child:
        for restart in range(1, 4):
            child.wait_runs(restart * 500)
            own_server.restart()
        drained(redis, child, 3000)
    events = child.log.events()
    assert 1 <= events.count("redis lost") <= 3
    assert events.count("redis lost") == events.count("redis is back")


def test_jobs_run_on_while_the_server_is_away_and_are_acknowledged_when_it_is_back(
    own_server: Server, gate: Gate
) -> None:
    push(own_server.client(), "1", "2")
    child = ProcessorThreads(own_server.url, gate, concurrency=2)
    brief_pauses(child)
    with child:
        gate.wait_for(2)
        own_server.stop()
        gate.open()
        child.wait_runs(2)
        own_server.start()
        wait_until(lambda: own_server.cli("EXISTS", INFLIGHT) == 0, what="the acknowledgements")
    assert sorted(child.order) == [b"1", b"2"]
    assert own_server.cli("EXISTS", LIST) == 0


class InterferingDeque(deque[UnitOfWork]):
    """A deque in which another processor puts a unit just after the leader has looked at it."""

    def __init__(self) -> None:
        super().__init__()
        self.meddle: Any = None

    def _act(self) -> None:
        meddle, self.meddle = self.meddle, None
        if meddle is not None:
            meddle()

    def copy(self) -> deque[UnitOfWork]:  # type: ignore[override]
        found = deque(self)
        self._act()
        return found

    def popleft(self) -> UnitOfWork:
        self._act()
        return super().popleft()


def test_an_acknowledgement_during_a_reconnection_is_not_forgotten(
    redis: Redis, redis_server: Server
) -> None:
    """Else its lease would stay until the child stops, and the job would then run again."""
    push(redis, "1", "2")
    child = ProcessorThreads(redis_server.url, concurrency=3)
    fetcher = child.fetcher
    one, two = child.take(), child.take()
    assert one is not None
    assert two is not None
    child.leases._ended = done = InterferingDeque()
    fetcher.done(one)
    child.leases.must_compare = True  # as after a lost connection
    done.meddle = lambda: fetcher.done(two)
    with child:
        wait_until(
            lambda: is_waiting(fetcher) and not redis.exists(INFLIGHT),
            what="both acknowledgements",
        )
    assert child.order == []
    assert redis.llen(LIST) == 0


# Without tracking


def test_where_tracking_is_refused_it_polls_and_says_so_once(own_server: Server) -> None:
    own_server.cli("ACL", "SETUSER", "default", "-client|tracking")
    redis = own_server.client()
    with ProcessorThreads(own_server.url) as child:
        for number in range(10):
            push(redis, number)
            child.wait_runs(number + 1)
    refusals = [event for event in child.log.events() if "polling" in event]
    assert len(refusals) == 1


def test_polling_is_brisk_again_after_a_job(own_server: Server) -> None:
    """The pauses grow while there is nothing to do, and only then."""
    own_server.cli("ACL", "SETUSER", "default", "-client|tracking")
    redis = own_server.client()
    with ProcessorThreads(own_server.url) as child:
        began = time.monotonic()
        for number in range(20):
            push(redis, number)
            child.wait_runs(number + 1)
        assert time.monotonic() - began < within(20 * 0.5)  # the longest pause is a second
