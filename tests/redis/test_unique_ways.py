"""What a push does that meets a job with its lock: each `on_duplicate`, by each way of pushing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from redis import Redis

import forkq
import forkq.testing
from forkq import api, default_client, middleware, registry
from forkq.client import transactions
from forkq.store.connection import RedisConnection
from forkq.wire.times import now
from tests.redis.test_ticks import catch_up, enqueuer
from tests.support.recorded_log import RecordedLog

QUEUE = "queue:default"
Pushes = Callable[[Any, pytest.MonkeyPatch], Any]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(registry, "duplicate_handlers", [])
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    monkeypatch.setattr(middleware, "pushes", middleware.Chain())


def at_commit(job: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A push that waits for a commit has its jid at once; what it meets is told later."""
    waiting: list[Any] = []
    monkeypatch.setattr(transactions, "on_commit", waiting.append)
    monkeypatch.setattr(transactions, "all_wait", True)
    job.perform_async(7, 2)
    told: list[str] = []
    forkq.on_duplicate(lambda job, holder: told.append(holder))
    for send in waiting:
        send()
    return told[0] if told else None


def at_a_tick(job: Any, _: pytest.MonkeyPatch) -> Any:
    """The history of a periodic job has the jid of the job that is there."""
    api.cron.add("minutely", "* * * * *", job, args=[7, 2])
    at = now() + 60
    with closing(RedisConnection(default_client.default().routes[0]._access.url)) as connection:
        connection.connect()
        one = enqueuer(connection, RecordedLog(), lambda: at)
        one.load(watch=False)
        catch_up(one, at)
    [run] = api.cron.history("minutely")
    assert (run.event == "enqueued") == bool(run.jid)
    return run.why or None


WAYS: dict[str, Pushes] = {
    "single": lambda job, _: job.perform_async(7, 2),
    "bulk": lambda job, _: job.perform_bulk([(7, 2)])[0],
    "scheduled": lambda job, _: job.perform_in(900, 7, 2),
    "awaited": lambda job, _: asyncio.run(job.aperform_async(7, 2)),
    "awaited bulk": lambda job, _: asyncio.run(job.aperform_bulk([(7, 2)]))[0],
    "at a commit": at_commit,
    "at a tick": at_a_tick,
}


def versions(redis: Redis) -> list[int]:
    """Which versions will run: of a ticket that of the newest job, which its lock has."""
    entries: Any = [*redis.lrange(QUEUE, 0, -1), *redis.zrange("schedule", 0, -1)]
    locks: Any = redis.keys("forkq:unique:*")
    newest: Any = redis.hget(locks[0], "next")
    found = [newest] if newest and len(entries) == 1 else entries
    return [json.loads(each)["args"][1] for each in found]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("first", ["queued", "scheduled"])
@pytest.mark.parametrize("how", ["skip", "return", "raise", "replace", "latest"])
def test_each_way_of_pushing_obeys(
    client: forkq.Client,
    redis: Redis,
    monkeypatch: pytest.MonkeyPatch,
    how: Any,
    first: str,
    way: str,
) -> None:
    @forkq.job(name="Index", unique_for=60, unique_by=["doc"], on_duplicate=how)
    def index(doc: int, version: int) -> None: ...

    before = index.perform_in(600, 7, 1) if first == "scheduled" else index.perform_async(7, 1)
    try:
        answer = WAYS[way](index, monkeypatch)
    except forkq.Duplicate as error:
        answer = error
    gives_way = how in ("replace", "latest")
    assert versions(redis) == [2 if gives_way else 1]
    if way in ("at a commit", "at a tick"):
        assert answer == (None if gives_way else before)
    elif how == "raise":
        assert isinstance(answer, forkq.Duplicate)
        assert answer.jid == before
    elif gives_way:
        assert len(answer) == 24
        assert answer != before
    else:
        assert answer == {"skip": "", "return": before}[how]


@pytest.mark.parametrize("way", ["single", "bulk", "scheduled", "awaited"])
@pytest.mark.parametrize("first", ["queued", "scheduled"])
@pytest.mark.parametrize("how", ["skip", "return", "raise", "replace", "latest"])
def test_a_test_without_redis_obeys_as_well(
    monkeypatch: pytest.MonkeyPatch, how: Any, first: str, way: str
) -> None:
    """The test above says what Redis does."""

    @forkq.job(name="Index", unique_for=60, unique_by=["doc"], on_duplicate=how)
    def index(doc: int, version: int) -> None: ...

    with forkq.testing.fake() as jobs:
        before = index.perform_in(600, 7, 1) if first == "scheduled" else index.perform_async(7, 1)
        try:
            answer = WAYS[way](index, monkeypatch)
        except forkq.Duplicate as error:
            answer = error.jid
        gives_way = how in ("replace", "latest")
        assert [job.args[1] for job in jobs] == [2 if gives_way else 1]
    if gives_way:
        assert len(answer) == 24
        assert answer != before
    else:
        assert answer == {"skip": "", "return": before, "raise": before}[how]
