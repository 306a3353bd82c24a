"""Results where Redis is not one server that stays: behind Sentinels, on shards, without its
scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import default_client, middleware, registry
from forkq.config.load import load
from forkq.wire.keys import Keys
from tests.redis.in_process_child import InProcessChild
from tests.redis.test_results import SOON, WAITS, call, watched
from tests.support.sentinels import NAME, Sentinel
from tests.support.server import Server
from tests.support.waiting import wait_until

KEYS = Keys()
SHARDS = '[redis]\nurl = "{}"\n[[redis.shards]]\nname = "mail"\nurl = "{}"\nqueues = ["mail"]\n'
DONE = '{"outcome":"done","class":"Double","at":1,"value":42}'


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())

    @forkq.job(name="Double", result_ttl=60, retry=0)
    def perform(number: int) -> int:
        return 2 * number

    return perform


@contextmanager
def used(client: Any) -> Iterator[Any]:
    """This process's client is that one."""
    before = default_client.swap(client)
    try:
        yield client
    finally:
        client.close()
        default_client.swap(before)


# Sentinels


@pytest.fixture
def replica(own_server: Server) -> Iterator[Server]:
    own_server.cli("CONFIG", "SET", "repl-diskless-sync-delay", 0)
    master = ("--replicaof", "127.0.0.1", str(own_server.port))
    with closing(Server(tcp=True, extra=master).start()) as replica:
        yield replica


def test_a_wait_goes_on_at_the_server_that_a_failover_has_made_the_master(
    own_server: Server, replica: Server, double: Any
) -> None:
    """If that has never had the push, no result will come of it: that is told, too."""
    with closing(Sentinel(own_server).start()) as sentinel:
        url = f"sentinel://127.0.0.1:{sentinel.port}/{NAME}/0"
        with used(forkq.Client(url)) as client, ThreadPoolExecutor(4) as pool:
            had, lost = (double.perform_bulk([[1], [2]]) for _ in range(2))
            waits = list(zip(("thread", "loop"), zip(had, lost, strict=True), strict=True))
            for_value = [pool.submit(call, wait, jids[0], 60) for wait, jids in waits]
            for_none = [pool.submit(call, wait, jids[1], 60) for wait, jids in waits]
            wait_until(lambda: watched(client.routes[0].channel()) == 4, what="the waiters")
            wait_until(lambda: replica.cli("EXISTS", KEYS.result(lost[1])), what="the replica")
            replica.cli("REPLICAOF", "NO", "ONE")
            replica.cli("DEL", *map(KEYS.result, lost))
            sentinel.cli("SENTINEL", "REMOVE", NAME)
            sentinel.cli("SENTINEL", "MONITOR", NAME, "127.0.0.1", replica.port, 1)
            for waiting in for_none:
                with pytest.raises(forkq.ResultUnknown):
                    waiting.result()
            for jid in had:
                replica.cli("SET", KEYS.result(jid), DONE)
            assert [waiting.result() for waiting in for_value] == [42, 42]


# Shards


@contextmanager
def shards(tmp_path: Path, *urls: str) -> Iterator[Any]:
    (tmp_path / "forkq.toml").write_text(SHARDS.format(*urls))
    before = default_client.swap(None)
    client = default_client.use(load(None, {}, {}, tmp_path))
    try:
        yield client
    finally:
        client.close()
        default_client.swap(before)


@WAITS
def test_the_shard_that_has_the_job_answers(
    redis_server: Server, own_server: Server, redis: Redis, tmp_path: Path, double: Any, wait: str
) -> None:
    other = double.set(queue="mail")
    with shards(tmp_path, redis_server.url, own_server.url) as client:
        jids = [double.perform_async(1), other.perform_async(2)]
        assert not redis.exists(KEYS.result(jids[1]))
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(call, wait, jid) for jid in jids]
            channels = [route.channel() for route in client.routes]
            wait_until(lambda: [watched(each) for each in channels] == [1, 1], what="the waiters")
            with InProcessChild(redis_server.url), InProcessChild(own_server.url, queue="mail"):
                assert [each.result() for each in waiting] == [2, 4]
        with pytest.raises(forkq.ResultUnknown):
            call(wait, "nowhere", SOON)


@WAITS
def test_a_shard_that_is_away_hides_no_result_of_another_one(
    redis_server: Server, redis: Redis, tmp_path: Path, double: Any, wait: str
) -> None:
    """But then it is not known that a job is nowhere."""
    with shards(tmp_path, redis_server.url, "redis://127.0.0.1:1/0"):
        jid = double.perform_async(4)
        with pytest.raises(TimeoutError):
            call(wait, jid, 0)
        with InProcessChild(redis_server.url):
            assert call(wait, jid) == 8
        with pytest.raises(forkq.ServerUnavailable, match=r"127\.0\.0\.1:1"):
            call(wait, "nowhere", SOON)


# The server forgets


@pytest.mark.parametrize("fails", [False, True])
def test_a_server_that_has_forgotten_its_scripts_gets_the_result_once(
    client: Any, redis: Redis, redis_server: Server, fails: bool
) -> None:
    """NOSCRIPT at the push, and at the end."""
    runs: list[int] = []

    @forkq.job(name="Forgotten", result_ttl=60, retry=0)
    def perform() -> int:
        runs.append(1)
        redis.script_flush()
        if fails:
            raise ValueError("no")
        return 5

    redis.script_flush()
    jid = perform.perform_async()
    with InProcessChild(redis_server.url):
        if fails:
            with pytest.raises(forkq.JobFailed, match="ValueError: no"):
                forkq.result(jid, SOON)
        else:
            assert forkq.result(jid, SOON) == 5
    assert (runs, redis.exists("retry", "{queue:default}:inflight")) == ([1], 0)


def test_a_wait_hears_of_a_server_that_has_lost_everything(client: Any, redis: Redis) -> None:
    """FLUSHALL, or an empty server behind the same address."""
    forget: list[Callable[[], object]] = [redis.flushall, redis.flushdb]

    @forkq.job(name="Lost", result_ttl=60)
    def perform() -> None: ...

    async def both() -> list[Any]:
        jids = await perform.aperform_bulk([[], []])
        asked = (forkq.aresult(jid, SOON) for jid in jids)
        found = asyncio.gather(*asked, return_exceptions=True)
        await asyncio.to_thread(
            wait_until, lambda: watched(client.routes[0].channel()) == 2, what="the waiters"
        )
        forget.pop()()
        return list(await found)

    for _ in range(2):
        assert [type(error) for error in asyncio.run(both())] == [forkq.ResultUnknown] * 2
