"""What holds for a ``def`` job holds for an ``async def`` job, in a processor that waits for it,
and in a capsule of coroutines: each test runs the same assertions for all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis
from structlog.contextvars import bind_contextvars, bound_contextvars, get_contextvars

import forkq
from forkq import middleware, registry
from forkq.config.capsule import Kind
from forkq.current_job import Reason
from forkq.limits.rules import Rules
from forkq.wire.payload import dumps
from tests.redis.in_process_child import InProcessChild, is_waiting
from tests.support.server import Server
from tests.support.waiting import PATIENCE, wait_until

LIST, INFLIGHT = "queue:default", "{queue:default}:inflight"
KINDS = pytest.mark.parametrize("kind", ["def", "async def", "async capsule"])


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(registry, "with_time_limit", set())
    monkeypatch.setattr(registry, "death_handlers", [])
    monkeypatch.setattr(registry, "error_handlers", [])
    monkeypatch.setattr(middleware, "server", middleware.Chain())


@pytest.fixture
def kind() -> str:
    """The job's, where a test does not run for each."""
    return "async def"


def capsule_of(kind: str) -> Kind:
    """That of a child which runs the jobs of this kind."""
    return "async" if kind == "async capsule" else "threads"


@pytest.fixture
def child(redis: Redis, redis_server: Server, kind: str) -> Iterator[InProcessChild]:
    with InProcessChild(redis_server.url, concurrency=2, kind=capsule_of(kind)) as child:
        yield child


def define(kind: str, body: Callable[..., object], name: str = "Job", **options: Any) -> None:
    """A job that calls ``body``, and in a coroutine goes through the loop once before."""

    def perform(*args: Any) -> None:
        body(*args)

    async def aperform(*args: Any) -> None:
        await asyncio.sleep(0)
        body(*args)

    forkq.job(name=name, **options)(perform if kind == "def" else aperform)


class Waiting:
    """A job that waits until the gate is open, and notes how it was interrupted."""

    def __init__(self, kind: str, **options: Any) -> None:
        self.begun = threading.Event()
        self.gate = threading.Event()
        self.raised: list[str] = []
        self.ending: list[Reason | None] = []
        self.cleaned = threading.Event()

        def perform() -> None:
            try:
                self.begun.set()
                while not self.gate.is_set():
                    time.sleep(0.001)
            except BaseException as error:
                self.raised.append(type(error).__name__)
                raise
            finally:
                self.cleaned.set()

        async def aperform() -> None:
            try:
                self.begun.set()
                while not self.gate.is_set():
                    await asyncio.sleep(0.001)
            except BaseException as error:
                self.raised.append(type(error).__name__)
                self.ending.append(forkq.current_job().ending)
                raise
            finally:
                self.cleaned.set()

        forkq.job(name="Job", **options)(perform if kind == "def" else aperform)

    def wait(self) -> None:
        assert self.begun.wait(PATIENCE), "the job has not begun"


def push(redis: Redis, *args: Any, **keys: Any) -> None:
    job = {"class": "Job", "args": list(args), "jid": "m1", "retry": True, **keys}
    redis.lpush(LIST, dumps(job))


def settle(child: InProcessChild, redis: Redis) -> None:
    """Keeps the time, as the main thread of a child does, until all jobs are settled."""

    def look() -> bool:
        child.limits.enforce()
        return not redis.exists(LIST, INFLIGHT)

    wait_until(look, what="the end of all jobs", every=0.005)


def retried(redis: Redis) -> dict[str, Any]:
    member: Any = redis.zrange("retry", 0, -1)[0]
    found: dict[str, Any] = json.loads(member)
    return found


def told(child: InProcessChild) -> list[str]:
    return child.log.events()


@KINDS
def test_it_is_performed_with_its_arguments_and_knows_itself(
    redis: Redis, child: InProcessChild, kind: str
) -> None:
    seen: list[object] = []
    define(kind, lambda *args: seen.append((args, forkq.current_job().jid)))
    push(redis, 1, {"a": [2]})
    settle(child, redis)
    assert seen == [((1, {"a": [2]}), "m1")]
    wait_until(lambda: child.manager.counts() == (1, 0), what="the count")
    assert "done" in told(child)


@KINDS
def test_a_class_has_its_instance_and_its_progress(
    redis: Redis, child: InProcessChild, kind: str
) -> None:
    seen: list[object] = []

    class Plain(forkq.Job, name="Plain"):
        def perform(self, word: str) -> None:
            self.progress(1, 2, word)
            seen.append((self.jid, self.queue, self.retry_count))

    class Async(forkq.Job, name="Async"):
        async def perform(self, word: str) -> None:
            await asyncio.sleep(0)
            self.progress(1, 2, word)
            seen.append((self.jid, self.queue, self.retry_count))

    name = "Plain" if kind == "def" else "Async"
    push(redis, "half", **{"class": name})
    settle(child, redis)
    assert seen == [("m1", "default", None)]


@KINDS
@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_what_it_raises_is_a_failure_that_is_retried(
    redis: Redis, child: InProcessChild, kind: str, error: type[BaseException]
) -> None:
    def fail() -> None:
        raise error

    define(kind, fail)
    push(redis)
    settle(child, redis)
    assert retried(redis)["error_class"] == error.__name__
    wait_until(lambda: child.manager.counts() == (1, 1), what="the count")


@KINDS
def test_a_time_limit_ends_it_and_is_a_failure(
    redis: Redis, child: InProcessChild, kind: str
) -> None:
    job = Waiting(kind, timeout=0.05)
    push(redis, timeout=0.05)
    settle(child, redis)
    assert job.cleaned.is_set()
    assert retried(redis)["error_class"] == "forkq.errors.TimeLimit"
    assert "its timeout of 0.05 s" in retried(redis)["error_message"]
    assert job.raised == [{"def": "TimeLimit"}.get(kind, "CancelledError")]
    assert job.ending == [] if kind == "def" else ["time_limit"]


@KINDS
def test_a_cancel_ends_it_for_good(redis: Redis, redis_server: Server, kind: str) -> None:
    job = Waiting(kind)
    with InProcessChild(redis_server.url, kind=capsule_of(kind)) as child:
        push(redis)
        job.wait()
        [region] = [one for one in child.manager.regions if one.run is not None]
        assert region.run is not None
        assert region.cancel(region.run)
        settle(child, redis)
    assert "cancelled" in told(child)
    assert redis.zcard("retry") == redis.zcard("dead") == 0
    assert job.raised == [{"def": "Cancelled"}.get(kind, "CancelledError")]


@KINDS
def test_the_stop_cuts_it_short_and_its_lease_stays(
    redis: Redis, redis_server: Server, kind: str
) -> None:
    job = Waiting(kind)
    with InProcessChild(redis_server.url, kind=capsule_of(kind)) as child:
        push(redis)
        job.wait()
        child.manager.quiet()
        assert child.manager.interrupt() == 1
        assert job.cleaned.wait(PATIENCE)
    assert redis.llen(LIST) == 1
    assert child.manager.counts() == (0, 0)
    assert job.raised == [{"def": "Shutdown"}.get(kind, "CancelledError")]


def test_a_lost_lease_ends_a_coroutine_and_nothing_of_it_counts(
    redis: Redis, child: InProcessChild
) -> None:
    job = Waiting("async def")
    push(redis)
    job.wait()
    [unit] = child.leases.units().values()
    unit.lost = True
    child.manager.lose(unit)
    settle(child, redis)
    assert job.ending == ["lease_lost"]
    wait_until(lambda: "interrupted, since another host has the job" in told(child), what="a line")
    assert child.manager.counts() == (0, 0)
    assert redis.zcard("retry") == 0


@KINDS
def test_a_neighbour_goes_on(redis: Redis, child: InProcessChild, kind: str) -> None:
    ran: list[int] = []
    job = Waiting(kind)
    define(kind, ran.append, name="Other")
    push(redis)
    job.wait()
    push(redis, 1, **{"class": "Other"})
    wait_until(lambda: ran, what="the neighbour")
    job.gate.set()
    settle(child, redis)


@KINDS
@pytest.mark.parametrize(
    ("says", "place"), [(forkq.Snooze, "schedule"), (forkq.Dead, "dead"), (forkq.Discard, "")]
)
def test_what_it_says_of_itself_is_done(
    redis: Redis, child: InProcessChild, kind: str, says: Callable[[Any], BaseException], place: str
) -> None:
    def say() -> None:
        raise says(60 if place == "schedule" else "why")

    define(kind, say)
    push(redis)
    settle(child, redis)
    found = [name for name in ("schedule", "retry", "dead") if redis.zcard(name)]
    assert found == [place] * bool(place)


def test_a_plain_function_that_returns_a_coroutine_is_awaited(
    redis: Redis, child: InProcessChild
) -> None:
    """A decorator that knows nothing of async has made it one."""
    ran: list[int] = []

    async def perform(number: int) -> None:
        await asyncio.sleep(0)
        ran.append(number)

    def decorated(number: int) -> object:
        return perform(number)

    forkq.job(name="Job")(decorated)
    push(redis, 7)
    settle(child, redis)
    assert ran == [7]


def test_a_middleware_sees_the_interruption_as_that_of_a_thread(
    redis: Redis, redis_server: Server
) -> None:
    seen: list[str] = []

    @middleware.server.append
    def notes(job: dict[str, Any], call: Callable[[], Any]) -> Any:
        try:
            return call()
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    job = Waiting("async def")
    with InProcessChild(redis_server.url) as child:
        push(redis)
        job.wait()
        child.manager.quiet()
        child.manager.interrupt()
        assert job.cleaned.wait(PATIENCE)
    assert seen == ["Shutdown"]


def test_a_job_that_swallows_the_stop_runs_again_all_the_same(
    redis: Redis, redis_server: Server
) -> None:
    begun, swallowed = threading.Event(), threading.Event()

    async def perform() -> None:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(PATIENCE)
        swallowed.set()

    forkq.job(name="Job")(perform)
    with InProcessChild(redis_server.url) as child:
        push(redis)
        assert begun.wait(PATIENCE)
        child.manager.quiet()
        child.manager.interrupt()
        assert swallowed.wait(PATIENCE)
    assert redis.llen(LIST) == 1


@KINDS
def test_a_generator_is_around_it_and_what_it_sets_reaches_the_job(
    redis: Redis, child: InProcessChild, kind: str
) -> None:
    """The log context of structlog is made of such variables."""
    seen: list[object] = []

    @middleware.server.append
    def context(job: dict[str, Any]) -> Iterator[None]:
        with bound_contextvars(tenant=job["args"][0]):
            try:
                yield
            except ValueError as error:
                seen.append(str(error))
                raise
            seen.append("after")

    def work(tenant: int) -> None:
        seen.append(get_contextvars())
        if tenant == 2:
            raise ValueError("odd")

    define(kind, work)
    for tenant in (1, 2):
        push(redis, tenant)
        settle(child, redis)
    assert seen == [{"tenant": 1}, "after", {"tenant": 2}, "odd"]


@KINDS
def test_what_a_job_sets_in_its_context_is_gone_with_it(
    redis: Redis, redis_server: Server, kind: str
) -> None:
    seen: list[object] = []

    def work(number: int) -> None:
        seen.append(dict(get_contextvars()))
        bind_contextvars(number=number)
        seen.append(dict(get_contextvars()))

    define(kind, work)
    with InProcessChild(redis_server.url, concurrency=1, kind=capsule_of(kind)) as child:
        for number in (1, 2):
            push(redis, number)
            settle(child, redis)
    assert seen == [{}, {"number": 1}, {}, {"number": 2}]


@KINDS
def test_handlers_of_a_failure_have_what_a_middleware_has_set(
    redis: Redis, child: InProcessChild, kind: str
) -> None:
    seen: list[object] = []

    @middleware.server.append
    def context(job: dict[str, Any]) -> Iterator[None]:
        bind_contextvars(tenant=job["args"][0])
        yield

    @forkq.on_error
    def tell(error: BaseException, context: forkq.ErrorContext) -> None:
        seen.append(dict(get_contextvars()))

    def work(tenant: int) -> None:
        raise ValueError(tenant)

    define(kind, work)
    for tenant in (1, 2):
        push(redis, tenant)
        settle(child, redis)
    wait_until(lambda: len(seen) == 2, what="both handlers")
    assert seen == [{"tenant": 1}, {"tenant": 2}]


@KINDS
def test_an_error_is_asked_for_its_text_once_and_inside_of_the_job(
    redis: Redis, child: InProcessChild, kind: str
) -> None:
    """Its text is code of the app, which may block: the limits of the job still count."""
    asked: list[object] = []

    class Slow(Exception):
        def __str__(self) -> str:
            asked.append(forkq.current_job().jid)
            return "at last"

    def work() -> None:
        raise Slow

    define(kind, work)
    push(redis)
    settle(child, redis)
    assert retried(redis)["error_message"] == "at last"
    wait_until(lambda: "failed" in told(child), what="the line")
    assert asked == ["m1"]


@KINDS
@pytest.mark.parametrize("rules", [Rules(limit=2), Rules(process_limit=2)])
def test_no_more_begin_at_once_than_a_rule_lets(
    redis: Redis, redis_server: Server, kind: str, rules: Rules
) -> None:
    """docs/limits.md: the highest number in progress on all hosts, and in one child. The permit of
    one that has ended goes to the next."""
    gate, running, most, ran = threading.Event(), set[int](), list[int](), list[int]()

    @contextlib.contextmanager
    def counted(number: int) -> Iterator[None]:
        running.add(number)
        most.append(len(running))
        yield
        running.discard(number)
        ran.append(number)

    def perform(number: int) -> None:
        with counted(number):
            gate.wait(PATIENCE)

    async def aperform(number: int) -> None:
        with counted(number):
            while not gate.is_set():
                await asyncio.sleep(0.001)

    forkq.job(name="Job")(perform if kind == "def" else aperform)
    also: Any = {"rules": {"default": rules}, "kind": capsule_of(kind)}
    with InProcessChild(redis_server.url, concurrency=5, **also) as child:
        for number in range(6):
            push(redis, number, jid=f"m{number}")
        wait_until(lambda: len(running) == 2, what="two of them")
        assert redis.llen(LIST) == 4
        gate.set()
        settle(child, redis)
    assert sorted(ran) == [0, 1, 2, 3, 4, 5]
    assert max(most) == 2


@KINDS
def test_a_pause_lets_none_begin_until_the_queue_is_resumed(
    redis: Redis, child: InProcessChild, kind: str
) -> None:
    ran: list[int] = []
    define(kind, ran.append)
    push(redis, 1)
    settle(child, redis)
    redis.sadd("paused", "default")
    push(redis, 2)
    wait_until(lambda: is_waiting(child.fetcher), what="a child that waits")
    assert (ran, redis.llen(LIST)) == ([1], 1)
    redis.srem("paused", "default")
    settle(child, redis)
    assert ran == [1, 2]
