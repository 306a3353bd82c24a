"""A push that waits for replicas of Redis: what it is told, and what it never does."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import forkq
from forkq import api, default_client
from forkq.api.sharding import queue_move
from forkq.api.sharding.queue_move import QueueMove
from forkq.client import Client
from forkq.config.shards import Shard
from forkq.errors import InvalidJob
from forkq.sharded_client import ShardedClient
from forkq.store.route import note_replicated, replicated
from forkq.testing import fake
from tests.support.documents import redis_rights
from tests.support.server import Server
from tests.support.waiting import wait_until

LIMIT = 0.3
JOB = {"class": "Pay", "args": [7]}


@forkq.job(name="Pay")
def pay(order: int) -> None:
    raise NotImplementedError


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Server, Server]]:
    """A primary and its replica."""
    primary = Server(tcp=True, extra=("--repl-diskless-sync-delay", "0")).start()
    replica = Server(tcp=True, extra=("--replicaof", "127.0.0.1", str(primary.port))).start()
    wait_until(lambda: has_replica(primary), deadline=60, what="the replica")
    yield primary, replica
    replica.close()
    primary.close()


def has_replica(primary: Server) -> bool:
    found: dict[str, Any] = primary.cli("INFO", "replication")
    return "slave0" in found and found["slave0"]["state"] == "online"


@pytest.fixture
def primary(servers: tuple[Server, Server]) -> Server:
    primary, replica = servers
    primary.cli("FLUSHALL")
    replica.resume()
    assert primary.cli("WAIT", 1, 20_000) == 1
    primary.cli("CONFIG", "RESETSTAT")
    return primary


@pytest.fixture
def replica(servers: tuple[Server, Server]) -> Iterator[Server]:
    """The replica, which the test may pause."""
    yield servers[1]
    servers[1].resume()


@pytest.fixture
def make(primary: Server) -> Iterator[Callable[..., Client]]:
    """Makes clients of the primary."""
    made: list[Client] = []

    def client(url: str = primary.url, **options: Any) -> Client:
        made.append(Client(url, **{"wait_timeout": LIMIT, **options}))
        return made[-1]

    yield client
    for each in made:
        each.close()


def jobs(primary: Server) -> list[dict[str, Any]]:
    return [json.loads(payload) for payload in primary.cli("LRANGE", "queue:default", 0, -1)]


def waits(primary: Server) -> int:
    """How many WAIT the server has got."""
    stats: dict[str, Any] = primary.cli("INFO", "commandstats")
    return int(stats.get("cmdstat_wait", {}).get("calls", 0))


def test_a_push_that_a_replica_has_is_told(
    make: Callable[..., Client], primary: Server, replica: Server
) -> None:
    jid = make().push({**JOB, "wait": 1})
    assert replicated(jid) is True
    [job] = jobs(primary)
    assert job["jid"] == jid
    assert "wait" not in job
    assert replica.cli("LLEN", "queue:default") == 1


def test_a_replica_that_hangs_costs_the_time_and_no_job(
    make: Callable[..., Client], primary: Server, replica: Server
) -> None:
    """The answer is false, and the job is in Redis once."""
    client = make()
    replica.pause()
    begun = time.monotonic()
    jid = client.push({**JOB, "wait": 1})
    assert time.monotonic() - begun >= LIMIT
    assert replicated(jid) is False
    assert [job["jid"] for job in jobs(primary)] == [jid]


def test_a_hanging_replica_is_logged_once_and_its_return_once(
    make: Callable[..., Client],
    primary: Server,
    replica: Server,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = make(wait=1, wait_timeout=0.05)
    replica.pause()
    for _ in range(3):
        client.push(JOB)
    replica.resume()
    wait_until(lambda: replicated(client.push(JOB)), what="a push that is replicated")
    client.push(JOB)
    lost, back = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert lost.startswith(f"replicas of Redis at {primary.url} do not confirm a push in time")
    assert lost.endswith(": 0 of 1 replica have it; it is in Redis, and pushes go on")
    assert back.endswith("confirm pushes in time again")


def test_a_push_that_does_not_wait_sends_nothing_more(
    make: Callable[..., Client], primary: Server
) -> None:
    jid = make().push(JOB)
    assert replicated(jid) is None
    assert waits(primary) == 0


def test_a_bulk_push_waits_once(make: Callable[..., Client], primary: Server) -> None:
    """With the last batch: WAIT is about all that the connection has sent."""
    jids = make().push_bulk({"class": "Pay", "args": [[n] for n in range(2500)], "wait": 1})
    assert {replicated(jid) for jid in jids} == {True}
    assert primary.cli("LLEN", "queue:default") == 2500
    assert waits(primary) == 1


def test_a_job_for_later_waits_too(make: Callable[..., Client], primary: Server) -> None:
    jid = make().push({**JOB, "wait": 1, "at": 3600})
    assert replicated(jid) is True
    assert primary.cli("ZCARD", "schedule") == 1


def test_a_push_at_the_commit_waits_then(make: Callable[..., Client], primary: Server) -> None:
    at_commit: list[Callable[[], None]] = []
    jid = make().push_later({**JOB, "wait": 1}, at_commit.append)
    assert replicated(jid) is None
    at_commit[0]()
    assert replicated(jid) is True


def test_no_time_to_wait_is_not_for_ever(make: Callable[..., Client]) -> None:
    """To Redis, a WAIT of 0 ms has no end."""
    assert replicated(make(wait=2, wait_timeout=0).push(JOB)) is False


def test_more_replicas_than_there_are_is_false(make: Callable[..., Client]) -> None:
    assert replicated(make(wait_timeout=0.01).push({**JOB, "wait": 2})) is False


def test_the_setting_holds_for_all_pushes_and_an_option_for_one(
    primary: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "forkq.toml").write_text(
        f'[redis]\nurl = "{primary.url}"\nwait = 1\nwait_timeout = {LIMIT}\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(default_client, "_default", None)
    client = forkq.configure(environ={})
    try:
        assert forkq.replicated(pay.perform_async(1)) is True
        assert [forkq.replicated(jid) for jid in pay.perform_bulk([(1,), (2,)])] == [True, True]
        assert forkq.replicated(pay.set(wait=0).perform_async(1)) is None
        assert asyncio.run(awaited()) is True
    finally:
        client.close()


async def awaited() -> bool | None:
    """What a push from a loop is told."""
    jid = await pay.set(wait=1).aperform_async(1)
    return forkq.replicated(jid)


def test_a_refused_wait_is_no_failed_push(
    make: Callable[..., Client], primary: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """The pusher's rights in docs/redis.md have no +wait."""
    primary.cli("ACL", "SETUSER", "pusher", "reset", *redis_rights("pusher"))
    client = make(primary.url.replace("redis://", "redis://pusher:x@"))
    jid = client.push({**JOB, "wait": 1})
    assert replicated(jid) is False
    assert [job["jid"] for job in jobs(primary)] == [jid]
    assert "WAIT is refused" in caplog.text
    primary.cli("ACL", "DELUSER", "pusher")


def test_a_wrong_wait_is_an_error(make: Callable[..., Client]) -> None:
    with pytest.raises(InvalidJob, match="`wait` is -1; pass a whole number from 0 to"):
        make().push({**JOB, "wait": -1})
    with pytest.raises(InvalidJob, match="`wait` is True"):
        pay.set(wait=True)


def test_the_reply_comes_before_the_timeout(make: Callable[..., Client], replica: Server) -> None:
    """Else a push that Redis has would be told as one of which nothing is known."""
    client = make(timeout=0.4, wait_timeout=60.0)
    replica.pause()
    assert replicated(client.push({**JOB, "wait": 1})) is False


def test_a_recorded_push_is_replicated() -> None:
    with fake():
        assert forkq.replicated(pay.set(wait=1).perform_async(7)) is True
        assert forkq.replicated(pay.perform_async(7)) is None


def test_the_answers_do_not_grow_for_ever() -> None:
    note_replicated((f"old-{n}" for n in range(100)), True)
    note_replicated((f"new-{n}" for n in range(10_000)), False)
    assert replicated("old-0") is None
    assert replicated("new-0") is False
    assert replicated("new-9999") is False


@pytest.mark.parametrize("is_late", [False, True])
def test_a_page_of_a_move_waits_for_a_replica_of_the_new_shard(
    primary: Server, replica: Server, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """For a moment at most; a page that none has confirmed is counted, for the command to tell."""
    monkeypatch.setattr(queue_move, "_JOBS", 2)
    monkeypatch.setattr(queue_move, "_CONFIRMED_IN", 50 if is_late else 10_000)
    before = default_client.swap(None)
    shards = [Shard("default", primary.url), Shard("new", primary.url, ("mail",), prefix="new:")]
    client = ShardedClient(shards, "default", primary.url)
    default_client.swap(client)
    try:
        primary.cli("RPUSH", "queue:mail", *(json.dumps({**JOB, "jid": str(n)}) for n in range(4)))
        if is_late:
            replica.pause()
        move = QueueMove("mail", api.server("default"), api.server("new"), lambda _: None)
        move.run(wait=False)
    finally:
        replica.resume()
        default_client.swap(before)
        client.close()
    assert (move.counts["queued"], move.unconfirmed) == (4, 2 if is_late else 0)
    assert primary.cli("LLEN", "new:queue:mail") == 4


@pytest.mark.parametrize("how", ["skip", "raise", "latest"])
def test_a_server_that_takes_no_writes_says_of_no_job_that_it_is_a_duplicate(
    make: Callable[..., Client], servers: tuple[Server, Server], how: Any
) -> None:
    """A master that has lost its role still has its locks. What they say may be over."""
    needs: Any = {"unique_for": 60, "on_duplicate": how}
    job = {**JOB, "jid": "a" * 24, "forkq": {"needs": needs}}
    assert make().push(dict(job)) == "a" * 24
    replica = servers[1]
    wait_until(lambda: replica.cli("KEYS", "forkq:unique:*"), what="the lock on the replica")
    with pytest.raises(forkq.ServerUnavailable, match="read only"):
        make(replica.url).push({**job, "jid": "a" * 24 if how == "latest" else "c" * 24})
