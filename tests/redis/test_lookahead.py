"""Jobs that are leased ahead: they start before long, or go back to the head of their queue."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis

from forkq.child.fetch import fetcher
from forkq.limits.rules import Rules
from forkq.store.scripts import LEASE_RETURN
from forkq.wire.lease import UnitOfWork
from tests.redis.in_process_child import ProcessorThreads
from tests.redis.proxy import Proxy
from tests.support.server import Server
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

LIST, INFLIGHT = "queue:q", "{queue:q}:inflight"
# The promise is 5 ms and the way to Redis; a machine that is busy with other things is slower.
SOON = 20.0


class Barrier:
    """Work that ends at once until a payload of ``stops`` comes: that one waits for ``open``."""

    def __init__(self, *stops: bytes) -> None:
        self.stopped = 0
        self._stops = stops
        self._open = threading.Event()

    def __call__(self, unit: UnitOfWork) -> None:
        if unit.payload in self._stops:
            self.stopped += 1
            assert self._open.wait(120)

    def open(self) -> None:
        self._open.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()  # else a test that fails waits for it


class Look:
    """Work of that length, in seconds, which then counts the leases in Redis: ``most`` at any time,
    and how often there were more than its own (``ahead``)."""

    def __init__(self, redis: Redis, length: float = 0) -> None:
        self.most = 0
        self.ahead = 0
        self._redis = redis
        self._length = length

    def __call__(self, unit: UnitOfWork) -> None:
        threading.Event().wait(self._length)
        count: Any = self._redis.hlen(INFLIGHT)
        self.most = max(self.most, count)
        self.ahead += count > 1


@pytest.fixture
def slow(redis_server: Server) -> Iterator[Proxy]:
    """Each reply comes 3 ms late, so that there is something to lease ahead for."""
    with Proxy(redis_server.port, delay=0.003) as proxy:
        yield proxy


def push(redis: Redis, numbers: range, queue: str = "q") -> None:
    redis.lpush(f"queue:{queue}", *numbers)


def left(redis: Redis) -> list[int]:
    """The queue, next to run first."""
    found: Any = redis.lrange(LIST, 0, -1)
    return [int(payload) for payload in reversed(found)]


def wait_left(redis: Redis, numbers: range) -> None:
    """Waits until these are queued and one job is leased. A child may lease ahead once more before
    it has seen that its processors start nothing."""
    wait_until(
        lambda: left(redis) == list(numbers) and redis.hlen(INFLIGHT) == 1,
        deadline=SOON,
        what="the others to go back, in order",
    )


def test_more_is_leased_than_there_are_processors(redis: Redis, slow: Proxy) -> None:
    """So the network is not the bound: each exchange of one job takes 3 ms."""
    push(redis, range(1000))
    look = Look(redis)
    with ProcessorThreads(slow.url, look, concurrency=1) as child:
        child.wait_runs(1000)
    assert look.most > 3  # one in progress, one done, and one for the processor
    assert child.order == [str(number).encode() for number in range(1000)]
    assert not redis.exists(INFLIGHT)


def test_what_cannot_start_soon_goes_back_in_order(redis: Redis, slow: Proxy) -> None:
    work = Barrier(b"3000")
    push(redis, range(4000))
    with ProcessorThreads(slow.url, work, concurrency=1) as child, work:
        wait_until(lambda: work.stopped, what="the slow job")
        wait_left(redis, range(3001, 4000))
        work.open()
        child.wait_runs(4000)
    assert child.order == [str(number).encode() for number in range(4000)]


def test_an_idle_child_gets_what_a_busy_one_has_leased_ahead(redis: Redis, slow: Proxy) -> None:
    work = Barrier(b"2000", b"2001")
    push(redis, range(2000))
    with ProcessorThreads(slow.url, work, concurrency=2) as busy, work:
        busy.wait_runs(1000)
        push(redis, range(2000, 2100))
        wait_until(lambda: work.stopped == 2, what="both slow jobs")
        other = ProcessorThreads(slow.url, concurrency=2, identity="vm:2:bbbbbbbbbbbb")
        with other:
            wait_until(
                lambda: len(busy.order) + len(other.order) == 2098,
                deadline=SOON,
                what="all short jobs",
            )
            work.open()
    assert sorted(map(int, busy.order + other.order)) == list(range(2100))


def test_no_short_job_waits_behind_a_long_one(redis: Redis, slow: Proxy) -> None:
    """Of 600 jobs, every hundredth does not end. They take all processors of the first child, and
    two of the second one, which does all else."""
    work = Barrier(*(str(number).encode() for number in range(99, 600, 100)))
    first = ProcessorThreads(slow.url, work, concurrency=4)
    other = ProcessorThreads(slow.url, work, concurrency=4, identity="vm:2:bbbbbbbbbbbb")
    push(redis, range(600))
    with first, other, work:
        wait_until(
            lambda: len(first.order) + len(other.order) == 594,
            deadline=SOON,
            what="all short jobs, while the long ones go on",
        )
        wait_until(lambda: redis.hlen(INFLIGHT) == 6, deadline=SOON, what="acknowledgements")
    assert sorted(map(int, first.order + other.order)) == list(range(600))


def test_what_cannot_start_goes_back_though_a_reply_is_lost(redis: Redis, slow: Proxy) -> None:
    """Redis has put the jobs back, or has not: the child does not know."""
    work = Barrier(b"3000")
    with ProcessorThreads(slow.url, work, concurrency=1) as child, work:
        slow.cut(LEASE_RETURN.sha)
        push(redis, range(4000))
        wait_until(lambda: work.stopped, deadline=SOON, what="the slow job")
        wait_left(redis, range(3001, 4000))
        work.open()
        child.wait_runs(4000)
    assert child.order == [str(number).encode() for number in range(4000)]


def test_a_damaged_queue_keeps_no_job_of_another_from_going_back(
    redis: Redis, redis_server: Server
) -> None:
    """Its own leases stay: another type than a list has its place."""
    push(redis, range(2), queue="bad")
    push(redis, range(2))
    child = ProcessorThreads(redis_server.url, concurrency=4, queues={"q": 0, "bad": 0})
    leases = child.leases
    assert child.fetcher._exchange()
    assert leases.count().ready == 4
    redis.set("queue:bad", "no list")
    child.fetcher.quiet()
    leases.capacity = 1
    child.fetcher._return_surplus()
    assert child.fetcher._exchange()
    assert (redis.hlen(INFLIGHT), redis.hlen("{queue:bad}:inflight")) == (1, 2)
    assert [unit.payload for unit in leases.units().values()] == [b"0"]
    child.stop()


def test_jobs_of_some_length_are_leased_before_the_one_before_ends(
    redis: Redis, slow: Proxy
) -> None:
    """At the end of a job, Redis has leased the next one."""
    push(redis, range(100))
    look = Look(redis, length=0.02)
    with ProcessorThreads(slow.url, look, concurrency=1) as child:
        child.wait_runs(100)
    assert look.ahead > 5


@pytest.mark.parametrize("changed", [False, True])
def test_under_a_rule_nothing_is_leased_ahead(redis: Redis, slow: Proxy, changed: bool) -> None:
    """A permit, or a token, that is held for a job which waits would be missing elsewhere."""
    push(redis, range(500))
    if changed:
        redis.sadd("paused", "another")
    look = Look(redis)
    rules = None if changed else {"q": Rules(limit=100)}
    queues = {"q": 0, "another": 0}
    with ProcessorThreads(slow.url, look, concurrency=2, rules=rules, queues=queues) as child:
        child.wait_runs(500)
    assert look.most <= 6  # two in progress, two done, and two for the processors that are free


def test_quiet_leases_nothing_more_and_the_rest_goes_back(redis: Redis, slow: Proxy) -> None:
    work = Barrier(b"3000")
    push(redis, range(4000))
    child = ProcessorThreads(slow.url, work, concurrency=1)
    with child, work:
        wait_until(lambda: work.stopped, what="the slow job")
        child.fetcher.quiet()
        wait_until(lambda: redis.hlen(INFLIGHT) == 1, deadline=SOON, what="the others to go back")
        work.open()
    assert left(redis) == list(range(3001, 4000))
    assert not redis.exists(INFLIGHT)


def test_a_cut_connection_loses_and_doubles_nothing(redis: Redis, slow: Proxy) -> None:
    push(redis, range(8000))
    child = ProcessorThreads(slow.url, concurrency=2)
    with child:
        for runs in range(1000, 8000, 1000):
            child.wait_runs(runs)
            slow.cut(b"EVALSHA")
        wait_until(lambda: len(set(child.order)) == 8000, what="all jobs")
        wait_until(lambda: not redis.exists(INFLIGHT), what="all acknowledged")
    assert not redis.exists(LIST)


def test_no_old_lease_begins_while_redis_cannot_be_asked(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another host may have taken it meanwhile."""
    monkeypatch.setattr(fetcher, "_OLD_LEASE", -60.0)
    monkeypatch.setattr(fetcher, "_ASK_AGAIN", 0.01)
    push(redis, range(4))
    taken: list[Any] = []
    with Proxy(redis_server.port) as proxy:
        child = ProcessorThreads(proxy.url, concurrency=4)
        assert child.fetcher._exchange()
        tries, exchange = [0], child.fetcher._exchange

        def counted() -> bool:
            tries[0] += 1
            return exchange()

        monkeypatch.setattr(child.fetcher, "_exchange", counted)
        proxy.target = 1  # nothing listens there
        proxy.hang_up()
        thread = threading.Thread(target=lambda: taken.append(child.take()))
        thread.start()
        wait_until(lambda: tries[0] >= 3, what="the child to ask in vain")
        assert not taken
        proxy.target = redis_server.port
        thread.join(SOON)
        assert [unit.payload for unit in taken] == [b"0"]
        child.fetcher.quiet()
        assert child.fetcher.give_back()
    assert left(redis) == [0, 1, 2, 3]
