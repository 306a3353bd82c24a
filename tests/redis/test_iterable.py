"""Iterable jobs: what a run saves, where the next one goes on, and what each end does with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import iteration, middleware, registry
from forkq.child.failure.ends import Ends
from forkq.child.failure.retry import GoOn
from forkq.features.iterable.parts import Iteration
from forkq.store.connection import ConnectionLost, RedisConnection
from forkq.store.dead_set import DeadSetLimits
from forkq.store.pool import RedisPool
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from forkq.wire.payload import dumps
from tests.redis.in_process_child import IDENTITY, InProcessChild
from tests.support.server import Server
from tests.support.waiting import wait_until

QUEUE = "queue:default"
JID = "it0123456789"
KEY = f"it-{JID}"
ENDS = Keys().totals("ends")
items: list[Any] = []
hooks: list[str] = []
fails_at: list[int] = []
kinds: dict[str, type[forkq.IterableJob]] = {}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    for each in (items, hooks, fails_at):
        each.clear()

    class Walk(forkq.IterableJob, name="Walk"):
        def build_enumerator(self, total: int, cursor: int | None = None) -> Any:
            return forkq.cursors.sequence(range(total), cursor)

        def each_iteration(self, item: int, total: int) -> None:
            if item in fails_at:
                fails_at.remove(item)
                raise ValueError(item)
            items.append(item)

        def on_start(self) -> None:
            hooks.append("start")

        def on_resume(self) -> None:
            hooks.append(f"resume {self.cursor}")

        def on_stop(self) -> None:
            hooks.append("stop")

        def on_cancel(self) -> None:
            hooks.append("cancel")

        def on_complete(self) -> None:
            hooks.append("complete")

    class AsyncWalk(Walk, name="AsyncWalk"):
        async def build_enumerator(self, total: int, cursor: int | None = None) -> Any:
            return forkq.cursors.sequence(range(total), cursor)

        async def each_iteration(self, item: int, total: int) -> None:  # type: ignore[override]
            await asyncio.sleep(0)
            Walk.each_iteration(self, item, total)

        async def on_stop(self) -> None:  # type: ignore[override]
            await asyncio.sleep(0)
            hooks.append("stop")

    kinds.update(Walk=Walk, AsyncWalk=AsyncWalk)


@pytest.fixture
def run(redis_server: Server) -> Callable[..., InProcessChild]:
    """Runs what waits, in one child after the other."""

    def until(over: Callable[[], Any]) -> InProcessChild:
        with InProcessChild(redis_server.url, concurrency=1) as child:
            wait_until(over, what="the job")
        return child

    return until


def push(redis: Redis, *args: Any, name: str = "Walk", **keys: Any) -> None:
    redis.sadd("queues", "default")
    job = {"class": name, "args": list(args), "queue": "default", "jid": JID, "retry": 5}
    redis.lpush(QUEUE, dumps({**job, "created_at": 1.5, "enqueued_at": 1.5, **keys}))


def over(redis: Redis) -> Callable[[], bool]:
    return lambda: not redis.exists(QUEUE, "{queue:default}:inflight")


def waiting(redis: Redis) -> list[dict[str, Any]]:
    found: Any = redis.lrange(QUEUE, 0, -1)
    return [json.loads(each) for each in found]


def retried(redis: Redis) -> bytes:
    """The payload of the one job that waits for its retry."""
    found: Any = redis.zrange("retry", 0, -1)
    [raw] = found
    return bytes(raw)


def calls(redis: Redis) -> dict[str, int]:
    """How often each command was called."""
    found: Any = redis.info("commandstats")
    return {name: info["calls"] for name, info in found.items()}


def stop_after(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Has the child stop once so many items are done; then not any more."""
    told = count()
    monkeypatch.setattr(iteration, "stopping", lambda: next(told) == number)


@pytest.mark.parametrize("name", ["Walk", "walk", "AsyncWalk", "async_walk"])
def test_a_stop_between_two_items_goes_to_the_head_with_the_cursor(
    redis: Redis, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    @forkq.job(name="walk", iterable=True)
    def walk(total: int, cursor: int = 0) -> Iterator[int]:
        for item in range(cursor, total):
            items.append(item)
            yield item + 1

    @forkq.job(name="async_walk", iterable=True)
    async def async_walk(total: int, cursor: int = 0) -> AsyncIterator[int]:
        for item in range(cursor, total):
            await asyncio.sleep(0)
            items.append(item)
            yield item + 1

    push(redis, 10, name=name)
    redis.lpush(QUEUE, b'{"class":"Nothing","args":[],"jid":"n","retry":false}')
    stop_after(monkeypatch, 4)
    child = run(over(redis))
    assert items == list(range(10))
    if name in ("Walk", "AsyncWalk"):
        assert hooks == ["start", "stop", "resume 4", "stop", "complete"]
    assert "stopped between two items; goes back to the head of its queue" in child.log.events()
    assert not redis.exists(KEY, "retry", "dead")


@pytest.mark.parametrize("at_tail", [False, True])
def test_the_job_its_cursor_and_its_lease_move_in_one_step(
    redis: Redis, redis_server: Server, at_tail: bool
) -> None:
    raw = dumps({"class": "Walk", "args": [], "jid": JID, "forkq": {"needs": {"cursor": True}}})
    redis.lpush(QUEUE, "next", "last")
    redis.hset("{queue:default}:inflight", f"{IDENTITY}/7", "old")
    decision = GoOn(raw, Iteration(2, [1, "a"], 1.5, items=4, place=(4, 10)), at_tail, JID)
    ends = Ends(IDENTITY, Keys(), DeadSetLimits(Keys()))
    call = ends.go_on(UnitOfWork(1, "default", 7, raw), decision).call()
    connection = RedisConnection(redis_server.url)
    connection.connect()
    assert connection.script(call.script, call.keys, call.arguments) == 1
    assert connection.script(call.script, call.keys, call.arguments) == 0  # its reply was lost
    connection.close()
    others = [b"last", b"next"]
    assert redis.lrange(QUEUE, 0, -1) == ([raw, *others] if at_tail else [*others, raw])
    fields = {b"ex": b"2", b"c": b'[1,"a"]', b"rt": b"1.500000"}
    assert redis.hgetall(KEY) == {**fields, b"forkq": b"[2,4,4,10]"}
    assert not redis.exists("{queue:default}:inflight")
    assert redis.zscore("forkq:marked", "default") == float("inf")


@pytest.mark.parametrize("how", ["skip", "latest", "replace"])
def test_a_job_that_goes_back_with_its_cursor_confirms_its_lock(
    redis: Redis, redis_server: Server, how: str
) -> None:
    """As its beats did: nothing is to doubt it the moment it waits. One that has left its lock, or
    has lost it, takes none."""
    need = {"lock": "d" * 32, "for": 60.0, "until": "start" if how == "replace" else "end"}
    need |= {} if how == "skip" else {"on": how}
    marks = {"v": 3, "needs": {"unique": need, "cursor": True}}
    unit = UnitOfWork(1, "other", 7, dumps({"class": "Walk", "args": [], "jid": JID}))
    unit.marked = {"class": "Walk", "jid": JID, "queue": "other", "forkq": marks}
    decision = GoOn(unit.payload, None, True, JID)
    call = Ends(IDENTITY, Keys(), DeadSetLimits(Keys())).go_on(unit, decision).call()
    lock = f"forkq:unique:{'d' * 32}"
    connection = RedisConnection(redis_server.url)
    connection.connect()
    for holder in (JID, "another"):
        redis.hset("{queue:other}:inflight", f"{IDENTITY}/7", "old")
        redis.hset(lock, mapping={"jid": holder, "sure": 5, "state": "running"})
        assert connection.script(call.script, call.keys, call.arguments) == 1
        is_sure: Any = redis.hget(lock, "sure")
        assert (int(is_sure) > 5) is (holder == JID and how != "replace")
    connection.close()


def test_each_save_renews_the_thirty_days(redis: Redis, redis_server: Server) -> None:
    raw, connection = dumps({"class": "Walk", "jid": JID}), RedisConnection(redis_server.url)
    ends, unit = Ends(IDENTITY, Keys(), DeadSetLimits(Keys())), UnitOfWork(1, "default", 7, raw)
    redis.hset("{queue:default}:inflight", f"{IDENTITY}/7", raw)
    redis.hset(KEY, mapping={"ex": "1", "c": "1", "rt": "1.5"})
    redis.expire(KEY, 60)  # as after almost 30 days
    call = ends.save(unit, JID, b"", len(raw), Iteration(2, 3, 12.5))
    connection.connect()
    connection.script(call.script, call.keys, call.arguments)
    connection.close()
    kept: Any = redis.ttl(KEY)
    assert 30 * 86_400 - 60 < kept <= 30 * 86_400


def test_a_save_leaves_the_mark_of_the_master(redis: Redis, redis_server: Server) -> None:
    """The child is removed, since its job has met its `hard_timeout`: the next child settles it as
    failed. A save that was on its way then must not make it a job that runs again."""
    raw, inflight = dumps({"class": "Walk", "args": [], "jid": JID}), "{queue:default}:inflight"
    marked = dumps({**json.loads(raw), "forkq": {"failed": {"class": "forkq.TimeLimit"}}})
    noted = dumps({**json.loads(raw), "forkq": {"needs": {"cursor": True}}})
    ends, unit = Ends(IDENTITY, Keys(), DeadSetLimits(Keys())), UnitOfWork(1, "default", 7, raw)
    call = ends.save(unit, JID, noted, len(raw), Iteration(1, 3, 1.5))
    connection = RedisConnection(redis_server.url)
    connection.connect()
    for before, after in ((raw, noted), (marked, marked)):
        redis.hset(inflight, f"{IDENTITY}/7", before)
        assert connection.script(call.script, call.keys, call.arguments) == [b"", 1]
        assert redis.hvals(inflight) == [after]
    assert redis.hget(KEY, "c") == b"3"
    connection.close()


def test_a_save_that_comes_late_takes_nothing_back(redis: Redis, redis_server: Server) -> None:
    """Its connection had ended before Redis read it, and the run has saved again since. Another run
    saves what it has reached, even if that is less."""
    raw, connection = dumps({"class": "Walk", "jid": JID}), RedisConnection(redis_server.url)
    ends, unit = Ends(IDENTITY, Keys(), DeadSetLimits(Keys())), UnitOfWork(1, "default", 7, raw)
    redis.hset("{queue:default}:inflight", f"{IDENTITY}/7", raw)
    connection.connect()
    for reached, kept in (
        (Iteration(1, 3, 12.5), b"3"), (Iteration(1, 1, 5.5), b"3"), (Iteration(2, 2, 3.0), b"2")
    ):  # fmt: skip
        call = ends.save(unit, JID, b"", len(raw), reached)
        assert connection.script(call.script, call.keys, call.arguments) == [b"", 1]
        assert redis.hget(KEY, "c") == kept
    connection.close()


def test_max_runtime_lets_others_come_first(
    redis: Redis, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = count(start=0.0, step=1.0)
    monkeypatch.setattr(iteration, "monotonic", lambda: next(clock))

    @forkq.job(name="other", retry=False)
    def other() -> None:
        items.append("other")

    push(redis, 4, max_runtime=3)
    redis.lpush(QUEUE, b'{"class":"other","args":[],"jid":"n","retry":false}')
    child = run(over(redis))
    assert 0 < items.index("other") < 4
    assert [item for item in items if item != "other"] == [0, 1, 2, 3]
    assert "ran for its max_runtime; goes on from the tail of its queue" in child.log.events()


@pytest.mark.parametrize("name", ["Walk", "AsyncWalk"])
def test_a_failure_saves_the_cursor_and_the_retry_goes_on_there(
    redis: Redis, run: Callable[..., Any], name: str
) -> None:
    fails_at.append(3)
    push(redis, 6, name=name)
    run(lambda: redis.exists("retry"))
    raw = retried(redis)
    job = json.loads(raw)
    assert (list(job)[-1], job["forkq"]["needs"]) == ("forkq", {"cursor": True})
    state: Any = redis.hgetall(KEY)
    assert (state[b"ex"], state[b"c"]) == (b"1", b"3")
    kept: Any = redis.ttl(KEY)
    assert 30 * 86_400 < kept < 31 * 86_400  # from its retry on
    redis.delete("retry")
    redis.lpush(QUEUE, raw)
    run(over(redis))
    assert items == [0, 1, 2, 3, 4, 5]
    assert not redis.exists(KEY)


@pytest.mark.parametrize("hook", ["on_complete", "on_stop"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_hook_that_fails_at_the_end_repeats_the_last_item_only(
    redis: Redis, run: Callable[..., Any], hook: str, is_async: bool
) -> None:
    """Also in a run that was too short to be saved."""
    failures = [1]

    def fail(job: Any) -> None:
        if failures:
            failures.pop()
            raise OSError

    type("Ends", (kinds["AsyncWalk" if is_async else "Walk"],), {hook: fail}, name="Ends")
    push(redis, 4, name="Ends")
    run(lambda: redis.exists("retry"))
    raw = retried(redis)
    redis.delete("retry")
    redis.lpush(QUEUE, raw)
    run(over(redis))
    assert items == [0, 1, 2, 3, 3]


def test_a_job_that_sidekiq_has_begun_goes_on(redis: Redis, run: Callable[..., Any]) -> None:
    push(redis, 5)
    redis.hset(KEY, mapping={"ex": "2", "c": "3", "rt": "12.5"})
    run(over(redis))
    assert (items, hooks[0]) == ([3, 4], "resume 3")
    assert not redis.exists(KEY)


@pytest.mark.parametrize("name", ["Walk", "AsyncWalk"])
@pytest.mark.parametrize("state", [{"cancelled": 5}, {"ex": "1", "c": "2", "cancelled": 5}])
def test_a_job_that_sidekiq_has_cancelled_ends(
    redis: Redis, run: Callable[..., Any], state: Any, name: str
) -> None:
    """Also before it had a cursor, where Sidekiq itself fails."""
    push(redis, 5, name=name)
    redis.hset(KEY, mapping=state)
    run(over(redis))
    assert (items, hooks) == ([], ["cancel", "stop"])
    assert redis.hget(ENDS, f"{name}|cancelled") == b"1"
    assert not redis.exists(KEY, "retry", "dead")


def test_a_run_hears_at_its_next_save_that_it_was_cancelled(
    redis: Redis, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iteration, "_SAVE_EVERY", 0.0)

    class Cancels(forkq.IterableJob, name="Cancels"):
        def build_enumerator(self, cursor: int | None = None) -> Any:
            return forkq.cursors.sequence("abc", cursor)

        def each_iteration(self, item: str) -> None:
            items.append(item)
            redis.hset(KEY, "cancelled", 7)

        def on_cancel(self) -> None:
            hooks.append("cancel")

    push(redis, name="Cancels")
    run(over(redis))
    assert (items, hooks) == (["a"], ["cancel"])
    assert redis.hget(ENDS, "Cancels|cancelled") == b"1"
    assert not redis.exists(KEY)


def test_forkq_cancel_is_noted_where_sidekiq_looks(client: forkq.Client, redis: Redis) -> None:
    forkq.cancel(JID, wait=0)
    state: Any = redis.hgetall(KEY)
    assert (state[b"c"], state[b"cancelled"].isdigit()) == (b"null", True)
    assert 0 < redis.ttl(KEY) <= 3 * 86_400


def test_a_short_job_leaves_nothing_and_asks_once(
    redis: Redis, run: Callable[..., Any], redis_server: Server
) -> None:
    """Until its first save it is a plain job: it ends as one."""
    push(redis, 3)
    before = calls(redis)
    run(over(redis))
    asked = calls(redis)["cmdstat_hgetall"] - before.get("cmdstat_hgetall", 0)
    assert (items, asked) == ([0, 1, 2], 1)
    assert not redis.exists("forkq:marked", ENDS)


def test_a_run_without_its_lease_stops_and_changes_nothing(
    redis: Redis, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iteration, "_SAVE_EVERY", 0.0)

    class Loses(forkq.IterableJob, name="Loses"):
        def build_enumerator(self, cursor: int | None = None) -> Any:
            return forkq.cursors.sequence("abc", cursor)

        def each_iteration(self, item: str) -> None:
            items.append(item)
            redis.delete("{queue:default}:inflight")  # another host has it

    push(redis, name="Loses")
    run(lambda: items and over(redis)())
    assert items == ["a"]
    assert not redis.exists("retry", "dead", QUEUE)
    assert redis.hget(KEY, "c") == b"0"  # saved before the first item, and not after it


def test_a_job_whose_cursor_cannot_be_read_fails_and_does_not_begin_again(
    redis: Redis, run: Callable[..., Any]
) -> None:
    for damage in (lambda: redis.set(KEY, "?"), lambda: redis.hset(KEY, "c", "no JSON")):
        redis.delete(KEY, "retry")
        damage()
        push(redis, 3)
        run(lambda: redis.exists("retry"))
        raw = retried(redis)
        assert "cannot be read" in json.loads(raw)["error_message"]
    assert items == []


def test_a_job_that_redis_does_not_tell_its_cursor_goes_back(
    redis: Redis, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    take, failures = RedisPool.take, [2]

    def fail(pool: RedisPool) -> Any:
        if failures[0]:
            failures[0] -= 1
            raise ConnectionLost[0]("cut")
        return take(pool)

    monkeypatch.setattr(RedisPool, "take", fail)
    redis.hset(KEY, mapping={"ex": "1", "c": "1", "rt": "1"})
    push(redis, 3)
    run(lambda: items and over(redis)())
    assert items == [1, 2]


@pytest.mark.parametrize("cursor", [object(), "x" * 70_000, float("nan")])
def test_a_cursor_that_is_no_json_or_too_large_is_the_jobs_failure(
    redis: Redis, run: Callable[..., Any], cursor: Any
) -> None:
    """Also in a run that is too short to save it."""

    @forkq.job(name="odd", iterable=True)
    def odd(cursor: Any = None) -> Iterator[Any]:
        yield given

    given = cursor
    push(redis, name="odd")
    run(lambda: redis.exists("retry"))
    raw = retried(redis)
    assert "the cursor" in json.loads(raw)["error_message"]


@pytest.mark.parametrize("name", ["bare", "async_bare", "Bare"])
def test_no_cursor_after_an_item_is_the_jobs_failure(
    redis: Redis, run: Callable[..., Any], name: str
) -> None:
    """It would begin again after each stop. Before the first item None is the beginning."""

    @forkq.job(name="bare", iterable=True)
    def bare(cursor: Any = None) -> Iterator[Any]:
        items.append(1)
        yield

    @forkq.job(name="async_bare", iterable=True)
    async def async_bare(cursor: Any = None) -> AsyncIterator[Any]:
        items.append(1)
        yield

    class Bare(forkq.IterableJob, name="Bare"):
        def build_enumerator(self, cursor: str | None = None) -> Any:
            return [("first page", None), ("second page", None)]

        def each_iteration(self, item: str) -> None:
            items.append(item)

    push(redis, name=name)
    run(lambda: redis.exists("retry"))
    assert "gives None as its cursor" in json.loads(retried(redis))["error_message"]
    assert len(items) == 1


def test_what_is_no_pair_is_named(redis: Redis, run: Callable[..., Any]) -> None:
    class Bare(forkq.IterableJob, name="Bare"):
        def build_enumerator(self, cursor: int | None = None) -> Any:
            return [1, 2]

        def each_iteration(self, item: int) -> None: ...

    push(redis, name="Bare")
    run(lambda: redis.exists("retry"))
    raw = retried(redis)
    text = json.loads(raw)["error_message"]
    assert "Bare.build_enumerator gives an int, not a pair (item, cursor)" in text


@pytest.mark.parametrize("odd", [5, 0, "ab"])
@pytest.mark.parametrize("is_async", [False, True])
def test_what_is_no_iterable_is_named(
    redis: Redis, run: Callable[..., Any], odd: object, is_async: bool
) -> None:
    class Number(forkq.IterableJob, name="Number"):
        def build_enumerator(self, cursor: int | None = None) -> Any:
            return odd

        def each_iteration(self, item: int) -> None: ...

    class Awaited(Number, name="Awaited"):
        async def each_iteration(self, item: int) -> None: ...  # type: ignore[override]

    push(redis, name="Awaited" if is_async else "Number")
    run(lambda: redis.exists("retry"))
    text = json.loads(retried(redis))["error_message"]
    assert f"build_enumerator returns {'a str' if odd == 'ab' else 'an int'}: return an" in text
    assert "iterable of pairs (item, cursor), or None" in text


def test_definitions_that_cannot_work_are_refused() -> None:
    with pytest.raises(forkq.InvalidJob, match=r"is a generator.*give it iterable=True"):

        @forkq.job
        def plain(cursor: int = 0) -> Iterator[int]:
            yield cursor

    with pytest.raises(forkq.InvalidJob, match="has iterable=True and is no generator"):

        @forkq.job(iterable=True)
        def no_generator(cursor: int = 0) -> None: ...

    with pytest.raises(forkq.InvalidJob, match="needs a parameter `cursor=None`"):

        @forkq.job(iterable=True)
        def no_cursor(number: int) -> Iterator[int]:
            yield number

    with pytest.raises(forkq.InvalidJob, match="put `cursor=None` behind all other parameters"):

        @forkq.job(iterable=True)
        def first(cursor: int = 0, number: int = 0) -> Iterator[int]:
            yield number

    with pytest.raises(forkq.InvalidJob, match="`max_runtime` is of iterable jobs"):

        @forkq.job(max_runtime=5)
        def bounded() -> None: ...

    @forkq.job
    def unbounded() -> None: ...

    with pytest.raises(forkq.InvalidJob, match="`max_runtime` is of iterable jobs"):
        unbounded.set(max_runtime=5)

    with pytest.raises(forkq.InvalidJob, match="defines `perform`"):

        class Performs(forkq.IterableJob):
            def build_enumerator(self, cursor: Any = None) -> Any: ...
            def each_iteration(self, item: Any) -> None: ...
            def perform(self) -> None: ...

    with pytest.raises(forkq.InvalidJob, match="defines `perform`"):

        class PerformsAlone(forkq.IterableJob):
            def perform(self) -> None: ...

    with pytest.raises(forkq.InvalidJob, match="build_enumerator is asynchronous"):

        class Mixed(forkq.IterableJob):
            async def build_enumerator(self, cursor: Any = None) -> Any: ...
            def each_iteration(self, item: Any) -> None: ...

    with pytest.raises(forkq.InvalidJob, match="has no `build_enumerator"):

        class Sourceless(forkq.IterableJob):
            def each_iteration(self, item: Any) -> None: ...

    with pytest.raises(forkq.InvalidJob, match=r"each_iteration takes \(item\), and gets the item"):

        class Narrow(forkq.IterableJob):
            def build_enumerator(self, account: int, cursor: Any = None) -> Any: ...
            def each_iteration(self, item: Any) -> None: ...

    with pytest.raises(forkq.InvalidJob, match=r"each_iteration takes \(item, a, b\)"):

        class Wide(forkq.IterableJob):
            def build_enumerator(self, a: int, b: int = 1, cursor: Any = None) -> Any: ...
            def each_iteration(self, item: Any, a: int, b: int) -> None: ...

    class Loose(forkq.IterableJob):
        def build_enumerator(self, a: int, b: int = 1, cursor: Any = None) -> Any: ...
        def each_iteration(self, item: Any, *arguments: int) -> None: ...

    with pytest.raises(forkq.InvalidJob, match="has no `each_iteration"):

        class Idle(forkq.IterableJob):
            def build_enumerator(self, cursor: Any = None) -> Any: ...


def test_the_cursor_is_no_argument_of_a_push(client: forkq.Client, redis: Redis) -> None:
    walk: Any = registry.find("Walk")
    assert walk.parameters == ("total",)

    @forkq.job(name="w", iterable=True)
    def w(total: int, cursor: int = 0) -> Iterator[int]:
        yield cursor

    with pytest.raises(forkq.InvalidJob, match=r"job 'w' takes \(total\)"):
        w.perform_async(3, 4)
    assert not redis.exists(QUEUE)
