"""docs/jobs.md: "it runs in the event loop of its child, and all on this page holds for it". Each
way out of a job is the same for a ``def`` job, for a coroutine for which a processor waits, and for
one in a capsule of coroutines: what Redis has then, what is counted, and what the app is told."""

from __future__ import annotations

import asyncio
import builtins
import inspect
import json
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from redis import Redis

import forkq
from forkq import middleware, registry
from forkq.config.capsule import Kind
from forkq.wire.payload import dumps
from forkq.wire.times import seconds
from tests.redis.in_process_child import InProcessChild
from tests.redis.in_process_clock import InProcessClock
from tests.support.server import Server
from tests.support.waiting import wait_until

QUEUE, INFLIGHT = "queue:default", "{queue:default}:inflight"
NO_JSON = b"no JSON"
KINDS = ("def", "async def", "async capsule")
# What differs from run to run.
_TIMES = ("failed_at", "retried_at", "created_at", "enqueued_at", "expiry", "snoozed_since")


class Odd(Exception):
    """An error whose text is made by code of the app that fails."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Case(NamedTuple):
    """A job. ``body`` gets the journal. ``place``: where the job is in the end, "" if it is gone.
    ``told``: what the app was told of it, in any order. ``options`` of the definition, ``keys`` of
    the payload."""

    body: Callable[[list[Any]], Any]
    place: str = ""
    told: tuple[str, ...] = ()
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    keys: dict[str, Any] = {}  # noqa: RUF012 - never changed
    args: tuple[Any, ...] = ()


def fails(make: Callable[..., BaseException], *args: Any) -> Callable[[list[Any]], Any]:
    """A new error each time: an old one would keep the child that has raised it."""

    def body(_: list[Any]) -> None:
        raise make(*args)

    return body


def says_both(_: list[Any]) -> None:
    """Two words in a group, as task groups make them."""
    group = vars(builtins)["BaseExceptionGroup"]  # from Python 3.11 on
    raise group("group", [forkq.Discard("x"), forkq.Dead("y")])


def looks(journal: list[Any]) -> None:
    """Notes what a job can ask of itself."""
    job = forkq.current_job()
    job.progress(1, 2, "half")
    known = (job.jid, job.queue, job.retry_count, forkq.is_alive(job.jid))
    journal.append(("asked", *known, forkq.lease_lost(), forkq.stopping()))
    journal.append(("key", forkq.idempotency_key("x")))


def later(count: int, error: BaseException, job: forkq.Payload) -> timedelta:
    return timedelta(seconds=100 + count)


def nothing(_: list[Any]) -> int:
    return 7


RETRIED = ("error retried ValueError",)
DEAD = ("error dead ValueError", "death ValueError")
DROPPED = ("error dropped ValueError", "death ValueError")
CASES: dict[str, Case] = {
    "done": Case(nothing),
    "asks": Case(looks, keys={"retry_count": 2}),
    "counts_from_zero": Case(looks, keys={"retry_count": -1}),
    "fails": Case(fails(ValueError), "retry", RETRIED),
    "exits": Case(fails(SystemExit), "retry", ("error retried SystemExit",)),
    "is_odd": Case(fails(Odd), "retry", ("error retried Odd",)),
    "last_try": Case(
        fails(ValueError), "dead", DEAD, keys={"retry": 0}
    ),
    "no_retry": Case(
        fails(ValueError), "", DROPPED, keys={"retry": False}
    ),
    "not_kept": Case(
        fails(ValueError), "", DROPPED,
        {"dead": False, "retry": 0},
    ),
    "for_a_time": Case(
        fails(ValueError), "dead", DEAD,
        keys={"retry_for": 60, "failed_at": 1_000_000_000_000, "retry_count": 3},
    ),
    "elsewhere": Case(fails(ValueError), "retry", RETRIED, {"retry_queue": "low"}),
    "traced": Case(fails(ValueError), "retry", RETRIED, {"backtrace": 5}),
    "exactly": Case(fails(ValueError), "retry", RETRIED, {"backoff": [7]}),
    "own_time": Case(fails(ValueError), "retry", RETRIED, {"retry_in": later}),
    "not_this": Case(
        fails(ValueError), "dead", DEAD,
        {"retry_on": KeyError},
    ),
    "discards": Case(
        fails(ValueError), "", ("error discarded ValueError",), {"discard_on": ValueError}
    ),
    "snoozes": Case(fails(forkq.Snooze, 60), "schedule"),
    "discarded": Case(fails(forkq.Discard, "why")),
    "dead": Case(fails(forkq.Dead, "why"), "dead", ("error dead Dead", "death Dead")),
    "wrong_number": Case(nothing, "retry", ("error retried InvalidJob",), args=(1, 2, 3)),
    "expired": Case(fails(ValueError), keys={"forkq": {"needs": {"expires_at": 5.0}}}),
    "newer": Case(fails(ValueError), "schedule", keys={"forkq": {"v": 1000}}),
    "large": Case(nothing, args=("x" * 300_000,)),
    "large_fails": Case(
        fails(ValueError), "retry", RETRIED, args=("x" * 300_000,)
    ),
}  # fmt: skip
if sys.version_info >= (3, 11):
    CASES["group"] = Case(says_both, "dead", ("error dead Dead", "death Dead"))


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for chain in ("server", "client", "pushes"):
        monkeypatch.setattr(middleware, chain, middleware.Chain())


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return []


@contextmanager
def defined(monkeypatch: pytest.MonkeyPatch, kind: str, journal: list[Any]) -> Iterator[None]:
    """The jobs of one kind, and handlers that note what they are told."""
    with monkeypatch.context() as patch:
        patch.setattr(registry, "_jobs", {})
        for name in ("death_handlers", "error_handlers"):
            patch.setattr(registry, name, [])

        @forkq.on_error
        def on_error(error: BaseException, context: Any) -> None:
            if "job" in context:
                what = f"error {context['outcome']} {type(error).__name__}"
                journal.append((context["job"]["jid"], what))

        @forkq.on_death
        def on_death(job: forkq.Payload, error: BaseException) -> None:
            journal.append((job["jid"], f"death {type(error).__name__}"))

        for name, case in CASES.items():
            define(kind, name, case, journal)
        yield


def define(kind: str, name: str, case: Case, journal: list[Any]) -> None:
    most = 1 if name != "wrong_number" else 0

    def perform(*args: Any) -> Any:
        return case.body(journal)

    async def aperform(*args: Any) -> Any:
        await asyncio.sleep(0)
        return case.body(journal)

    made: Any = perform if kind == "def" else aperform
    parameters = [
        inspect.Parameter(f"a{number}", inspect.Parameter.POSITIONAL_ONLY, default=None)
        for number in range(most)
    ]
    made.__signature__ = inspect.Signature(parameters)
    forkq.job(name=name, **case.options)(made)


def capsule_of(kind: str) -> Kind:
    return "async" if kind == "async capsule" else "threads"


def payload(name: str, case: Case) -> bytes:
    options = {k: v for k, v in registry.lookup(name).options.items() if k != "queue"}
    job = {"class": name, "args": list(case.args), "queue": "default", "jid": f"jid-{name}"}
    return dumps({"retry": True, **options, **job, "created_at": 1, "enqueued_at": 1, **case.keys})


def settle(redis: Redis, child: InProcessChild, *more: str) -> None:
    def look() -> bool:
        child.limits.enforce()
        return not redis.exists(QUEUE, INFLIGHT, *more)

    wait_until(look, what="the end of all jobs", every=0.01)


def kept(redis: Redis) -> dict[str, Any]:
    """All that Redis has, without times."""
    found: dict[str, Any] = {}
    for place in ("retry", "dead", "schedule"):
        members: Any = redis.zrange(place, 0, -1, withscores=True)
        for raw, score in members:
            if raw == NO_JSON:
                found["none"] = (place, raw)
                continue
            job = without_times(json.loads(raw))
            after = score - seconds(json.loads(raw).get("failed_at", 0))
            exact = round(after, 1) if job["class"] in ("exactly", "own_time") else 0
            found[job["jid"]] = (place, exact, job)
    names: Any = redis.keys("*")
    return {**found, "keys": sorted(str(name, "utf-8") for name in names)}


def without_times(job: dict[str, Any]) -> dict[str, Any]:
    if "error_backtrace" in job:
        job["error_backtrace"] = len(job["error_backtrace"]) > 0
    if type(job.get("forkq")) is dict:
        job["forkq"] = re.sub(r"\d{9,}(\.\d+)?", "TIME", json.dumps(job["forkq"]))
    return {name: value for name, value in job.items() if name not in _TIMES}


def outcome(redis: Redis, url: str, kind: str, journal: list[Any]) -> dict[str, Any]:
    """What has come of one job of each case."""
    redis.flushall()
    redis.sadd("queues", "default")
    journal.clear()
    with InProcessChild(url, concurrency=3, kind=capsule_of(kind)) as child:
        redis.lpush(QUEUE, *(payload(name, case) for name, case in CASES.items()), NO_JSON)
        settle(redis, child)
        wait_until(lambda: not child.manager.busy, what="all handlers")
    totals = child.manager.tally()
    rows = {name: row[:3] for name, row in totals.classes.items()}
    return {
        "redis": kept(redis),
        "told": sorted(map(str, journal)),
        "counts": (totals.processed, totals.failed, rows),
        "log": sorted(f"{event} {values.get('jid')}" for _, event, values in child.log.lines),
    }


def test_every_way_out_is_gone_by_a_coroutine_as_by_a_function(
    client: forkq.Client,
    redis: Redis,
    redis_server: Server,
    monkeypatch: pytest.MonkeyPatch,
    journal: list[Any],
) -> None:
    found = {}
    for kind in KINDS:
        with defined(monkeypatch, kind, journal):
            found[kind] = outcome(redis, redis_server.url, kind, journal)
    first = found["def"]
    places = {jid[4:]: entry[0] for jid, entry in first["redis"].items() if jid.startswith("jid-")}
    assert places == {name: case.place for name, case in CASES.items() if case.place}
    told = sorted(str((f"jid-{name}", what)) for name, case in CASES.items() for what in case.told)
    assert [line for line in first["told"] if line.startswith("('jid-")] == told
    for kind in KINDS[1:]:
        for what, value in found[kind].items():
            assert value == first[what], kind


class Features:
    """Jobs with features, all of them coroutines. ``seen``: what they have done."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.once = forkq.job(name="once", unique_for=3600)(self.notes)
        self.started = forkq.job(name="started", unique_for=3600, unique_until="start")(self.notes)
        self.timed = forkq.job(name="timed", unique_for=3600, unique_until="expiry")(self.notes)
        self.square = forkq.job(name="square", result_ttl=60)(self.squares)
        self.after = forkq.job(name="after")(self.notes)
        self.order = forkq.job(name="order", backoff=0.01, result_ttl=60)(self.orders)
        self.walk = forkq.job(name="walk", iterable=True)(self.walks)

    async def notes(self, word: str) -> None:
        await asyncio.sleep(0)
        self.seen.append(word)

    async def squares(self, number: int) -> int:
        await asyncio.sleep(0)
        if number < 0:
            raise forkq.Dead("negative")
        return number * number

    async def orders(self, number: int) -> str:
        paid = await forkq.astep("pay", self.step, f"pay{number}")
        approval = await forkq.await_for("approved", key=number, timeout=60)
        if forkq.current_job().retry_count is None:
            raise ValueError("later")
        both = await asyncio.gather(*(forkq.astep(name, self.step, name) for name in "ab"))
        return f"{paid}, {approval and approval.data}, {both}"

    async def step(self, name: str) -> str:
        await asyncio.sleep(0)
        self.seen.append(name)
        return name

    async def walks(self, last: int, cursor: int | None = None) -> AsyncIterator[int]:
        for number in range(cursor or 0, last):
            await asyncio.sleep(0)
            self.seen.append(f"item{number}")
            yield number

    def push(self) -> dict[str, str]:
        """One of each. Returns the jids of those that have results."""
        for job in (self.once, self.started, self.timed):
            assert job.perform_async(job.name)
        with forkq.Batch(on_success=self.after.s("batch")):
            self.after.perform_bulk([["member"], ["member"]])
        forkq.Flow("f", self.square.s(3) | self.square.s(forkq.BEFORE)).push()
        self.walk.perform_async(3)
        forkq.signal("approved", key=7, data="by ann")
        jids = {"square": self.square.perform_async(12), "odd": self.square.perform_async(-1)}
        return {**jids, "order": self.order.perform_async(7)}


@pytest.mark.parametrize("kind", KINDS[1:])
def test_each_feature_holds_for_coroutines(
    client: forkq.Client,
    redis: Redis,
    redis_server: Server,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    features = Features()
    url = redis_server.url
    with InProcessClock(url), InProcessChild(url, concurrency=3, kind=capsule_of(kind)) as child:
        jids = features.push()
        settle(redis, child, "schedule", "retry")
    words = "a b batch item0 item1 item2 member member once pay7 started timed"
    assert sorted(features.seen) == words.split()
    assert features.square.result(jids["square"]) == 144
    assert features.order.result(jids["order"]) == "pay7, by ann, ['a', 'b']"
    with pytest.raises(forkq.JobFailed, match="negative"):
        features.square.result(jids["odd"])
    again = [bool(job.perform_async(job.name)) for job in (features.once, features.timed)]
    assert again == [True, False], "the first lock is free, that of the other one lasts"
    [flow] = forkq.api.flows()
    assert (flow.state, flow.done) == ("succeeded", 2)
