"""With ``once`` two pushes of one jid are one job: so a push may be sent again."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from redis import Redis

import forkq
import forkq.testing
from forkq import api, middleware, registry
from forkq.client import Client, transactions
from forkq.clock.doubted_locks import DoubtedLocks
from forkq.errors import InvalidJob, ServerRefused, ServerUnavailable
from forkq.store.connection import RedisConnection
from forkq.store.push_steps import BATCH
from forkq.wire.keys import Keys
from forkq.wire.times import now
from tests.redis.in_process_child import InProcessChild
from tests.redis.in_process_clock import InProcessClock
from tests.redis.proxy import Proxy
from tests.support.documents import ROOT
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.spread import QUEUE as SPREAD
from tests.support.spread import jids_for, three_parts
from tests.support.waiting import wait_until

QUEUE, ENDS = "queue:default", "forkq:totals:ends"
JID: Final = "a1" * 12
LATER: Final = 4_000_000_000
Push: TypeAlias = "Callable[[Client, dict[str, Any]], Any]"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())


@pytest.fixture
def through(proxy: Proxy, redis: Redis) -> Iterator[Client]:
    """A client whose replies may be lost."""
    with closing(Client(proxy.url, timeout=2.0)) as client:
        yield client


def job(**more: Any) -> dict[str, Any]:
    return {"class": "Mail", "args": [7], "jid": JID, "once": True, **more}


def bulk(client: Client, one: dict[str, Any]) -> Any:
    return client.push_bulk({**one, "args": [one["args"]], "jid": [one["jid"]]})[0]


def of_many(client: Client, one: dict[str, Any]) -> Any:
    """One row among those of two batches."""
    jids, rows = [f"{number:024x}" for number in range(BATCH)], [[-n] for n in range(BATCH)]
    return client.push_bulk({**one, "args": [*rows, one["args"]], "jid": [*jids, one["jid"]]})[-1]


def awaited(client: Client, one: dict[str, Any]) -> Any:
    async def push() -> Any:
        try:
            return await client.apush(one)
        finally:
            await client.aclose()

    return asyncio.run(push())


def awaited_bulk(client: Client, one: dict[str, Any]) -> Any:
    async def push() -> Any:
        found = await client.apush_bulk({**one, "args": [one["args"]], "jid": [JID]})
        await client.aclose()
        return found[0]

    return asyncio.run(push())


def at_commit(client: Client, one: dict[str, Any]) -> Any:
    return client.push_later(one, lambda send: send())


def in_transaction(client: Client, one: dict[str, Any]) -> Any:
    waiting: list[Callable[[], None]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transactions, "on_commit", waiting.append)
        patch.setattr(transactions, "all_wait", True)
        jid = client.push(one)
    waiting[0]()
    return jid


WAYS: Final[dict[str, Push]] = {
    "single": Client.push,
    "bulk": bulk,
    "of many": of_many,
    "awaited": awaited,
    "awaited bulk": awaited_bulk,
    "at commit": at_commit,
    "in a transaction": in_transaction,
}
KINDS: Final[dict[str, dict[str, Any]]] = {
    "now": {},
    "scheduled": {"at": LATER},
    "expiring": {"expires_in": 60},
    "unique": {"unique_for": 60},
    "scheduled unique": {"unique_for": 60, "at": LATER},
    "latest": {"unique_for": 60, "on_duplicate": "latest"},
    "replace": {"unique_for": 60, "on_duplicate": "replace", "at": LATER},
    "debounced": {"debounce": 60},
    "confirmed": {"wait": 1},
}


def jobs_of(redis: Redis) -> list[str]:
    """The jids of all jobs that wait, but for those beside the one of the test."""
    lists: Any = redis.lrange(QUEUE, 0, -1)
    scheduled: Any = redis.zrange("schedule", 0, -1)
    found = [json.loads(payload)["jid"] for payload in (*lists, *scheduled)]
    return [jid for jid in found if not jid.startswith("000")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_two_pushes_of_a_jid_are_one_job(client: Client, redis: Redis, way: str, kind: str) -> None:
    push, one = WAYS[way], job(**KINDS[kind])
    assert [push(client, one), push(client, one)] == [JID, JID]
    assert jobs_of(redis) == [JID]
    repeated: Any = redis.hget(ENDS, "Mail|repeated")
    assert int(repeated) == (BATCH + 1 if way == "of many" else 1)
    assert 86_300_000 < redis.pttl(f"forkq:pushed:{JID}") <= 86_400_000


@pytest.mark.parametrize("kind", ["now", "unique", "latest", "debounced"])
def test_also_after_the_job_has_ended(
    client: Client, redis: Redis, redis_server: Server, kind: str
) -> None:
    ran: list[int] = []
    forkq.job(name="Mail")(ran.append)
    client.push(job(**KINDS[kind]))
    if kind == "debounced":
        [waiting] = api.ScheduledSet()
        waiting.add_to_queue()
    with InProcessChild(redis_server.url):
        wait_until(lambda: ran and not redis.exists("{queue:default}:inflight"), what="the end")
    assert client.push(job(**KINDS[kind])) == JID
    assert jobs_of(redis) == []


def test_a_jid_that_is_twice_in_a_bulk_is_one_job(client: Client, redis: Redis) -> None:
    rows = {**job(), "args": [[1], [2], [3]], "jid": [JID, "b" * 24, JID]}
    assert client.push_bulk(rows) == [JID, "b" * 24, JID]
    assert jobs_of(redis) == ["b" * 24, JID]


def test_the_payload_is_that_of_a_plain_job(client: Client, redis: Redis) -> None:
    """A worker that is older, or Ruby's, runs it; the leader has nothing to look for."""
    client.push(job())
    found: Any = redis.lrange(QUEUE, 0, -1)
    assert "forkq" not in json.loads(found[0])
    assert not redis.exists("forkq:marked")


def test_a_definition_says_it_and_set_gives_the_jid(client: Client, redis: Redis) -> None:
    @forkq.job(name="Mail", once=True)
    def mail(number: int) -> None: ...

    again = mail.set({"jid": JID})
    assert [again.perform_async(7), again.perform_in(60, 7)] == [JID, JID]
    assert jobs_of(redis) == [JID]
    assert mail.perform_async(7) != mail.perform_async(7)
    assert len(set(mail.perform_bulk([(1,), (2,)]))) == 2
    assert again.perform_bulk([(9,)]) == [JID]
    with pytest.raises(InvalidJob, match=r"`jid` of a bulk push is 'a1a1.*one for each of the 2"):
        again.perform_bulk([(1,), (2,)])
    with pytest.raises(InvalidJob, match=r"row 1 .*`jid` is 5; pass a string"):
        client.push_bulk({**job(), "args": [[1], [2]], "jid": [JID, 5]})
    with pytest.raises(InvalidJob, match="`once` is 'yes'; pass True or False"):
        mail.set(once="yes")  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="`once` is 1; pass True or False"):
        client.push({"class": "Mail", "args": [], "forkq": {"needs": {"once": 1}}})


def test_a_tick_of_a_periodic_job_is_once_anyway(
    client: Client, redis: Redis, redis_server: Server
) -> None:
    @forkq.job(name="Mail", once=True)
    def mail(number: int) -> None: ...

    api.cron.add("often", "* * * * * *", mail, args=[7])
    with InProcessClock(redis_server.url):
        wait_until(lambda: redis.llen(QUEUE) > 1, what="two ticks")
    found: Any = redis.lrange(QUEUE, 0, -1)
    assert all("needs" not in json.loads(payload)["forkq"] for payload in found)


# A push that is refused, or a duplicate, has pushed nothing


def test_what_redis_refuses_may_be_pushed_again(client: Client, redis: Redis) -> None:
    redis.set("queue:odd", "x")
    for kind in ("now", "unique", "latest"):
        with pytest.raises(ServerRefused, match="queue:odd"):
            client.push(job(queue="odd", **KINDS[kind]))
        redis.config_set("maxmemory", 1)
        try:
            with pytest.raises(ServerRefused):
                client.push(job(**KINDS[kind]))
        finally:
            redis.config_set("maxmemory", 0)
        assert not redis.exists(f"forkq:pushed:{JID}")
        assert client.push(job(**KINDS[kind])) == JID
        assert jobs_of(redis) == [JID]
        redis.delete(QUEUE, f"forkq:pushed:{JID}", *redis.keys("forkq:unique:*"))


def test_a_duplicate_may_be_pushed_again_once_the_lock_is_free(
    client: Client, redis: Redis
) -> None:
    first = client.push({**job(unique_for=60), "jid": "b" * 24})
    assert client.push(job(unique_for=60)) == ""
    redis.delete(*redis.keys("forkq:unique:*"))
    assert client.push(job(unique_for=60)) == JID
    assert jobs_of(redis) == [JID, first]


def test_a_duplicate_that_the_leader_may_push_stays_one(
    client: Client, redis: Redis, redis_server: Server
) -> None:
    """Its push was noted, since nothing had confirmed the lock: the leader pushes it."""
    client.push({**job(unique_for=60), "jid": "b" * 24})
    redis.delete(QUEUE)
    [lock] = redis.keys("forkq:unique:*")
    redis.hset(lock, "sure", round((now() - 1) * 1000))
    assert client.push(job(unique_for=60, on_duplicate="return")) == "b" * 24
    with closing(RedisConnection(redis_server.url)) as connection:
        connection.connect()
        leader = DoubtedLocks(Keys(), connection, RecordedLog())
        leader.load(watch=False)
        while leader.next_due() is not None and redis.exists("forkq:unique:doubt"):
            leader.work()
    assert jobs_of(redis) == [JID]
    redis.delete(lock)  # it has ended
    assert client.push(job(unique_for=60, on_duplicate="return")) == "b" * 24
    assert jobs_of(redis) == [JID]


def test_a_key_of_another_type_keeps_no_job_from_its_queue(client: Client, redis: Redis) -> None:
    redis.lpush(f"forkq:pushed:{JID}", "x")
    assert client.push(job()) == JID
    assert (jobs_of(redis), redis.hget(ENDS, "(feature)|damaged")) == ([JID], b"1")
    client.push(job())
    assert jobs_of(redis) == [JID]


# A reply that is lost


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_a_push_whose_reply_is_lost_is_sent_again(
    through: Client, redis: Redis, proxy: Proxy, way: str, kind: str
) -> None:
    through.push({**job(**KINDS[kind]), "args": [8], "jid": "000"})  # the script is known
    proxy.cut(b"Mail", times=2)
    assert WAYS[way](through, job(**KINDS[kind])) == JID
    assert proxy.cuts == 2
    assert jobs_of(redis) == [JID]
    if way == "of many":
        assert redis.llen(QUEUE) + redis.zcard("schedule") == BATCH + 2


@pytest.mark.parametrize("push", [Client.push, awaited], ids=["push", "apush"])
def test_a_push_without_it_is_sent_no_second_time(
    through: Client, redis: Redis, proxy: Proxy, push: Push
) -> None:
    proxy.cut(b"Mail")
    with pytest.raises(ServerUnavailable, match="whether the job was pushed is not known") as lost:
        push(through, job(once=False))
    assert lost.value.unknown == (JID,)
    assert jobs_of(redis) == [JID]


@pytest.mark.parametrize("push", [Client.push, awaited], ids=["push", "apush"])
def test_a_server_that_stays_away_ends_the_push_and_the_caller_may_go_on(
    redis: Redis, proxy: Proxy, push: Push
) -> None:
    with closing(Client(proxy.url, timeout=0.3)) as client:
        proxy.cut(b"Mail", times=1_000_000)
        with pytest.raises(ServerUnavailable, match="is not known") as lost:
            push(client, job())
        assert lost.value.unknown == (JID,)
        assert proxy.cuts > 1
        proxy.cut(b"Mail", times=0)
        assert push(client, job()) == JID
    assert jobs_of(redis) == [JID]


def test_a_server_that_was_killed_gets_the_push_once_it_is_back(own_server: Server) -> None:
    """It had taken the job, and may have lost that, and has lost the script."""
    with Proxy(own_server.port) as proxy, closing(Client(proxy.url, timeout=10.0)) as client:
        client.push({**job(), "jid": "000"})
        proxy.cut(b"Mail", times=1_000_000)
        found: list[str | None] = []
        thread = threading.Thread(target=lambda: found.append(client.push(job())))
        thread.start()
        wait_until(lambda: proxy.cuts, what="the first reply is lost")
        own_server.kill()
        own_server.start()
        proxy.cut(b"Mail", times=0)
        thread.join(20)
        assert found == [JID]
        with closing(own_server.client()) as redis:
            assert jobs_of(redis) == [JID]


# Several servers


def test_over_shards_it_is_one_job_in_the_part_that_its_jid_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with three_parts(tmp_path) as spread:
        [jid] = jids_for("b", 1)
        one = job(queue=SPREAD, jid=jid)
        many = {**one, "args": [[1], [2]], "jid": ["c" * 24, jid]}
        assert [spread.client.push(one), spread.client.push(one)] == [jid, jid]
        assert spread.client.push_bulk(many) == ["c" * 24, jid]
        assert awaited(spread.client, one) == jid
        assert sum(spread.sizes().values()) == 2


def test_it_goes_to_no_other_part_while_its_own_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one would not know what its own part has pushed."""
    monkeypatch.chdir(tmp_path)
    with three_parts(tmp_path) as spread:
        [jid] = jids_for("b", 1)
        one = job(queue=SPREAD, jid=jid)
        assert spread.client.push(one) == jid
        spread.servers["b"].stop()
        for _ in range(2):
            with pytest.raises(ServerUnavailable):
                spread.client.push(one)
            with pytest.raises(ServerUnavailable):
                awaited(spread.client, one)
        assert spread.client.push({**one, "once": False})
        spread.servers["b"].start()
        wait_until(lambda: spread.client.push({**one, "jid": jids_for("b", 2)[1]}), what="it is up")


# Tests of apps


def test_a_test_without_redis_knows_the_jids() -> None:
    with forkq.testing.fake() as jobs, closing(Client("redis://127.0.0.1:1")) as client:
        assert [client.push(job()), client.push(job())] == [JID, JID]
        assert client.push_bulk({**job(), "args": [[1], [2]], "jid": [JID, "b" * 24]})
        assert [one.jid for one in jobs] == [JID, "b" * 24]
        assert client.push(job(once=False)) == JID
        assert len(list(jobs)) == 3


def test_what_it_costs_is_what_the_page_says(client: Client, redis: Redis) -> None:
    client.push(job())
    [said] = re.findall(
        r"key of a jid takes about (\d+) bytes", (ROOT / "docs/unique.md").read_text()
    )
    assert redis.memory_usage(f"forkq:pushed:{JID}") == pytest.approx(int(said), rel=0.3)
