"""An event loop as the consumer: a thread drives the fetcher, and a thousand coroutines run at
once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis

from forkq.child.failure.ends import Ending, Ends, Outcome
from forkq.child.failure.retry import Bury, Postpone, Retry
from forkq.child.fetch_thread import FetchThread
from forkq.child.fetch_turn import make_fetch
from forkq.config.capsule import Capsule
from forkq.store.connection import RedisConnection
from forkq.store.crash_record import ProcessDeath
from forkq.store.dead_set import DeadSetLimits
from forkq.store.outage import Outage
from forkq.store.recovery import Recovery
from forkq.store.steps import carry_out
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from tests.redis.in_process_child import IDENTITY
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

LIST, INFLIGHT, SUSPECTS = "queue:q", "{queue:q}:inflight", Keys().suspects("q")
CAPACITY = 1000
KINDS = ("done", "retry", "bury", "postpone", "isolate", "put back")


class LoopConsumer:
    """Runs each unit in a coroutine, and ends it as its payload says: ``KIND NUMBER``."""

    def __init__(self, url: str, capacity: int = CAPACITY) -> None:
        self.log = RecordedLog()
        self.ran: Counter[bytes] = Counter()
        self.told: Counter[Outcome] = Counter()
        self.running = self.most = 0
        self.batches: list[int] = []
        self.gate = asyncio.Event()
        self._connection = RedisConnection(url)
        self._ends = Ends(IDENTITY, Keys(), DeadSetLimits(Keys()))
        capsule = Capsule("c", (("q", 0),), capacity)
        outage = Outage(self.log)
        self.fetch = make_fetch(
            capsule, self._ends, self._connection, outage, self.log, ahead=False
        )
        self.fetch.fetcher._backoff._first = 0.02
        self.thread = FetchThread(self.fetch, self._begin)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self.thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.gate.set()
        self.thread.quiet()
        assert await asyncio.to_thread(self.thread.join, 30)
        await asyncio.to_thread(self.fetch.fetcher.give_back)
        self._connection.close()

    async def until(self, condition: Any, what: str) -> None:
        """Waits for a fact while the loop goes on."""
        await asyncio.to_thread(wait_until, condition, what=what)

    def _begin(self, units: Sequence[UnitOfWork]) -> None:
        self._loop.call_soon_threadsafe(self._begin_in_loop, units)

    def _begin_in_loop(self, units: Sequence[UnitOfWork]) -> None:
        self.batches.append(len(units))
        for unit in units:
            task = self._loop.create_task(self._run(unit))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, unit: UnitOfWork) -> None:
        self.ran[unit.payload] += 1
        self.running += 1
        self.most = max(self.most, self.running)
        await self.gate.wait()
        await asyncio.sleep(0)
        self.running -= 1
        self.thread.done(unit, self._ending(unit))

    def _ending(self, unit: UnitOfWork) -> Ending | None:
        kind, ends = unit.payload.decode().rpartition(" ")[0], self._ends
        if kind == "done" or (kind == "put back" and self.ran[unit.payload] > 1):
            return None
        if kind == "put back":
            ending = ends.return_to_queue(unit)
        elif kind == "bury":
            ending = ends.bury(unit, Bury(unit.payload, None))
        elif kind == "isolate":
            ending = ends.isolate(unit)
        else:
            decision = (Retry if kind == "retry" else Postpone)(5.5, unit.payload)
            ending = ends.retry(unit, decision)
        ending.told = self._note
        return ending

    def _note(self, outcome: Outcome) -> None:
        self.told[outcome] += 1


def push(redis: Redis, each: int) -> int:
    """So many jobs of each kind, mixed. Returns how many in all."""
    payloads = [f"{kind} {number}" for number in range(each) for kind in KINDS]
    redis.lpush(LIST, *payloads)
    return len(payloads)


def found(redis: Redis) -> dict[str, int]:
    """How many are in each place."""
    return {
        "queued": redis.llen(LIST),
        "leased": redis.hlen(INFLIGHT),
        "retry": redis.zcard("retry"),
        "dead": redis.zcard("dead"),
        "schedule": redis.zcard("schedule"),
        "suspects": redis.llen(SUSPECTS),
    }


def ended(each: int) -> dict[str, int]:
    """Where those that were pushed are in the end."""
    places = dict.fromkeys(("retry", "dead", "schedule", "suspects"), each)
    return {"queued": 0, "leased": 0, **places}


def test_a_thousand_coroutines_run_at_once_and_end_in_all_ways(
    redis: Redis, redis_server: Server
) -> None:
    async def scenario() -> LoopConsumer:
        async with LoopConsumer(redis_server.url) as consumer:
            await consumer.until(lambda: consumer.running == CAPACITY, "a full loop")
            assert redis.hlen(INFLIGHT) == CAPACITY
            consumer.gate.set()
            await consumer.until(lambda: found(redis) == ended(400), "all ends")
            return consumer

    total = push(redis, 400)
    consumer = asyncio.run(scenario())
    assert consumer.most == CAPACITY
    assert len(consumer.batches) < total / 10, "a batch at a time"
    again = {payload for payload, times in consumer.ran.items() if times == 2}
    assert len(consumer.ran) == total
    assert again == {f"put back {number}".encode() for number in range(400)}
    assert consumer.told == {"moved": 5 * 400}
    assert consumer.log.events() == []


def test_what_is_pushed_to_an_idle_loop_begins(redis: Redis, redis_server: Server) -> None:
    async def scenario() -> None:
        async with LoopConsumer(redis_server.url, capacity=10) as consumer:
            consumer.gate.set()
            for number in range(5):
                waiting = lambda: consumer.fetch.fetcher._state == "waiting"  # noqa: E731
                await consumer.until(waiting, "the thread to wait")
                redis.lpush(LIST, f"retry {number}")
                await consumer.until(lambda: redis.zcard("retry") == number + 1, "its end")  # noqa: B023

    asyncio.run(scenario())


def test_cut_connections_lose_and_double_no_end(redis: Redis, redis_server: Server) -> None:
    async def scenario() -> LoopConsumer:
        async with LoopConsumer(redis_server.url, capacity=50) as consumer:
            consumer.gate.set()
            for left in range(1000, 0, -200):
                await consumer.until(lambda: redis.llen(LIST) <= left, "some ends")  # noqa: B023
                redis.client_kill_filter(_type="normal", skipme=True)
            await consumer.until(lambda: found(redis) == ended(200), "all ends")
            return consumer

    push(redis, 200)
    consumer = asyncio.run(scenario())
    assert set(consumer.told) == {"moved"}
    assert all(consumer.ran.values())


def test_what_redis_refuses_keeps_its_lease_and_is_told_again(
    redis: Redis, redis_server: Server
) -> None:
    async def scenario() -> LoopConsumer:
        async with LoopConsumer(redis_server.url, capacity=10) as consumer:
            consumer.gate.set()
            await consumer.until(lambda: consumer.told["refused"] == 20, "the refusals")
            assert redis.hlen(INFLIGHT) == 20
            redis.delete("retry")
            consumer.fetch.leases.endings.hurry()
            assert await asyncio.to_thread(consumer.fetch.fetcher.flush)
            await consumer.until(lambda: redis.zcard("retry") == 20, "the retries")
            return consumer

    redis.set("retry", "another program's")
    redis.lpush(LIST, *(f"retry {number}" for number in range(20)))
    consumer = asyncio.run(scenario())
    assert redis.hlen(INFLIGHT) == 0
    assert consumer.log.events() == [
        "redis does not take failed jobs; they are kept and tried again",
        "redis takes failed jobs again",
    ]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("where", ["begin", "fetch"])
def test_the_jobs_of_a_consumer_that_dies_go_back_in_order(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Its loop is closed; or an exception strikes the thread while it has the fetcher's lock."""

    async def scenario() -> None:
        consumer = LoopConsumer(redis_server.url, capacity=10)
        fetcher = consumer.fetch.fetcher

        def die(*_: object) -> None:
            raise SystemExit

        def die_with_lock(*_: object) -> bool:
            fetcher._lock.acquire()
            raise SystemExit

        if where == "begin":
            monkeypatch.setattr(consumer.thread, "_begin", die)
        else:
            monkeypatch.setattr(fetcher, "step", die_with_lock)
        consumer.thread.start()
        assert await asyncio.to_thread(consumer.thread.join, 30)
        assert fetcher._lock.acquire(timeout=10), "the lock is free"
        fetcher._lock.release()
        assert fetcher.give_back()
        consumer._connection.close()

    redis.lpush(LIST, *(f"done {number}" for number in range(20)))
    asyncio.run(scenario())
    assert redis.lrange(LIST, 0, -1) == [f"done {number}".encode() for number in range(19, -1, -1)]
    assert redis.hlen(INFLIGHT) == 0


@pytest.fixture
def killed() -> Iterator[list[int]]:
    """Processes to be ended."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_kill_amid_the_ends_loses_no_job(
    redis: Redis, redis_server: Server, killed: list[int]
) -> None:
    """Each job has ended, or has its lease, which the rescue finds."""

    async def scenario() -> None:
        async with LoopConsumer(redis_server.url, capacity=100) as consumer:
            consumer.gate.set()
            await asyncio.Event().wait()

    push(redis, 500)
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(scenario())
        finally:
            os._exit(1)
    killed.append(pid)
    wait_until(lambda: redis.zcard("dead") >= 50, what="some ends", every=0.001)
    killed.clear()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert 0 < redis.hlen(INFLIGHT) <= 200
    connection = RedisConnection(redis_server.url)
    connection.connect()
    recovery = Recovery(DeadSetLimits(Keys()))
    carry_out(connection, recovery.recover(["q"], IDENTITY, ProcessDeath(reason="SIGKILL")))
    connection.close()
    assert redis.hlen(INFLIGHT) == 0
    payloads: list[Any] = [*redis.lrange(LIST, 0, -1), *redis.lrange(SUSPECTS, 0, -1)]
    for key in ("retry", "dead", "schedule"):
        payloads += redis.zrange(key, 0, -1)
    kept = Counter(payload.split(b" ")[0] for payload in payloads if payload.count(b" ") == 1)
    assert kept[b"retry"] == kept[b"bury"] == kept[b"postpone"] == kept[b"isolate"] == 500
