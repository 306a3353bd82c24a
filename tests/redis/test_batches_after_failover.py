"""Batches after a replica was promoted that was behind: they agree with the members which that
Redis has, and nothing stands still. What it had not heard of is done once more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import pytest
from redis import Redis

import forkq
from forkq import api, default_client, middleware, registry
from forkq.clock.notes import NoteCarrier
from forkq.clock.other_shards import OtherShards
from forkq.clock.standing_batches import StandingBatches
from forkq.config.config import Config, RedisSettings
from forkq.config.shards import Shard
from forkq.features.effects import packed
from forkq.features.marked import effects_in
from forkq.runtime.liveness import pid_scope
from forkq.store.connection import RedisConnection
from forkq.store.scripts import EFFECTS_ALONE
from forkq.wire.keys import Keys
from tests.redis.in_process_child import InProcessChild
from tests.redis.in_process_clock import InProcessClock
from tests.redis.prefix_shards import NOWHERE
from tests.redis.test_notes import carry
from tests.redis.test_standing_batches import look
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.waiting import wait_until

KEYS, MAIL = Keys(), Keys("mail:")
QUEUE, INFLIGHT = "queue:default", "{queue:default}:inflight"
DEAD: Final = "vm:1:0123456789ab"
ran: Counter[Any] = Counter()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    monkeypatch.setattr(middleware, "pushes", middleware.Chain())
    ran.clear()
    before = default_client.swap(None)
    yield
    default_client.swap(before)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Server, Server]]:
    """A primary and its replica."""
    with (
        closing(Server(tcp=True, extra=("--repl-diskless-sync-delay", "0")).start()) as primary,
        closing(Server(tcp=True).start()) as replica,
    ):
        yield primary, replica


class Failover:
    """The replica stops to hear of the primary (``cut``), and is promoted later."""

    def __init__(self, servers: tuple[Server, Server]) -> None:
        self.primary, self.replica = servers
        self.primary.flush()
        self.replica.cli("REPLICAOF", "127.0.0.1", self.primary.port)
        wait_until(self._has_heard, what="the replica")

    def _has_heard(self) -> bool:
        found: Any = self.replica.cli("INFO", "replication")
        return bool(found["master_link_status"] == "up")

    def cut(self) -> None:
        assert self.primary.cli("WAIT", 1, 20_000) == 1
        self.replica.cli("REPLICAOF", "127.0.0.1", 1)

    def promote(self) -> str:
        self.primary.flush()  # it is gone: who still asks it would find nothing
        self.replica.cli("REPLICAOF", "NO", "ONE")
        return self.replica.url


def told(word: str) -> forkq.PreparedJob:
    return forkq.PreparedJob({"class": "Told", "args": [word]})


def note_run(word: Any) -> None:
    ran[word] += 1
    if word == "dies":
        raise ValueError(word)


def jobs() -> Any:
    forkq.job(name="Told")(note_run)
    return forkq.job(name="Load", retry=0)(note_run)


class Import:
    """A batch, one step after the other, as the processes of an app and its children take them."""

    def __init__(self, url: str, load: Any) -> None:
        self._load = load
        self.client = forkq.configure(url, environ={})
        self.url = url
        self._redis = Redis.from_url(url)
        calls: Any = {f"on_{event}": told(event) for event in ("death", "finish", "success")}
        self.batch = forkq.Batch("import", **calls)

    def close(self) -> None:
        self.client.close()
        self._redis.close()

    def open(self) -> None:
        self.batch.__enter__()

    def push(self) -> None:
        self._load.perform_bulk([["one"], ["dies"]])

    def push_last(self) -> None:
        self._load.perform_async("last")

    def seal(self) -> None:
        self.batch.__exit__(None, None, None)

    def lease(self) -> None:
        """A child that is dead by the time of the failover has fetched the first one."""
        self._redis.set(KEYS.process_ref(DEAD), f"{pid_scope()}/{2**30}/1")
        self._redis.hset(INFLIGHT, f"{DEAD}/7", self._redis.rpop(QUEUE))  # type: ignore[arg-type]

    def end_all(self) -> None:
        """The leases come back, and all members end."""
        self._redis.rpush(QUEUE, self._redis.hget(INFLIGHT, f"{DEAD}/7"))  # type: ignore[arg-type]
        self._redis.delete(INFLIGHT)
        with InProcessChild(self.url):
            wait_until(lambda: not self._redis.exists(QUEUE, INFLIGHT), what="all members")

    def call(self) -> None:
        with InProcessClock(self.url), InProcessChild(self.url):
            wait_until(
                lambda: not self._redis.exists(QUEUE, INFLIGHT, "schedule"), what="the callbacks"
            )


STEPS: Final = ("open", "push", "push_last", "seal", "lease", "end_all", "call")


@pytest.mark.parametrize("heard", range(1, len(STEPS) + 1))
def test_a_batch_ends_once_more_from_where_the_replica_was(
    servers: tuple[Server, Server], heard: int
) -> None:
    """It has heard of so many steps. Members that have ended since run again, and so does a
    callback whose time has come since; none is missed, and none comes twice from what it has."""
    failover = Failover(servers)
    with closing(Import(failover.primary.url, jobs())) as one:
        for number, step in enumerate(STEPS):
            if number == heard:
                failover.cut()
            getattr(one, step)()
        if heard == len(STEPS):
            failover.cut()
    assert ran["finish"] == ran["death"] == 1
    ran.clear()
    url = failover.promote()
    default_client.swap(None)
    with closing(forkq.configure(url, environ={})), closing(Redis.from_url(url)) as redis:
        batch = api.Batch(one.batch.bid)
        with InProcessClock(url), InProcessChild(url):
            wait_until(lambda: is_settled(redis, batch), what="the end of what can end")
        if heard < STEPS.index("seal") + 1:
            assert batch.report().state == "open"
            batch.seal()  # a person has to: it is told as one that gets no members
            with InProcessClock(url), InProcessChild(url):
                wait_until(lambda: is_settled(redis, batch), what="the callbacks")
        report = batch.report()
    assert report.waiting == 0
    expected = Counter[Any]()
    if heard < len(STEPS):
        pushed = {"one", "dies", "last"}
        pushed -= {"last"} if heard < 3 else set()
        pushed -= {"one", "dies"} if heard < 2 else set()
        expected.update(pushed if heard < STEPS.index("end_all") + 1 else ())
        expected["finish"] = 1
        expected["death"] = int("dies" in pushed)
        expected["success"] = int(not pushed)
        assert (report.total, report.dead) == (len(pushed), expected["death"])
    assert ran == expected


def is_settled(redis: Redis, batch: api.Batch) -> bool:
    names = (QUEUE, INFLIGHT, "schedule", "retry")
    return not redis.exists(*names) and batch.report().waiting == 0


def test_an_end_that_was_noted_before_the_failover_is_found_by_the_leader(
    servers: tuple[Server, Server], redis_server: Server, redis: Redis
) -> None:
    """The member was on another shard, whose note is carried, and so deleted: no job says any more
    that it has ended."""
    failover = Failover(servers)
    before = over_shards(failover.primary.url, redis_server.url)
    with closing(default_client.use(before)):
        with forkq.Batch("import", on_finish=told("finish")) as batch:
            jobs().set(queue="mail").perform_async("one")
        failover.cut()
        end_member(before, redis)
        assert api.Batch(batch.bid).report().done == 1
    after = over_shards(failover.promote(), redis_server.url)
    default_client.swap(None)
    with (
        closing(default_client.use(after)),
        closing(RedisConnection(failover.replica.url)) as connection,
        closing(OtherShards(after)) as others,
    ):
        connection.connect()
        look(StandingBatches(KEYS, connection, others, RecordedLog()), 3)
        report = api.Batch(batch.bid).report()
    assert (report.state, report.waiting, report.otherwise) == ("finished", 0, 1)
    assert failover.replica.cli("ZCARD", "schedule") == 1


def over_shards(default: str, mail: str) -> Config:
    shards = (Shard("default", default), Shard("mail", mail, ("mail",), prefix="mail:"))
    redis = RedisSettings(url=default)
    config = Config(pidfile=NOWHERE, state_dir=NOWHERE, redis=redis, shards=shards, shard="default")
    return config.of_shard("default")


def end_member(config: Config, redis: Redis) -> None:
    """The member is done, and the clock of its shard tells the batch."""
    names: list[Any] = []
    raw: Any = redis.rpop("mail:queue:mail")
    text = packed(effects_in(MAIL, raw, "done"), names, MAIL.totals("ends"))
    with (
        closing(RedisConnection(config.of_shard("mail").redis.url)) as connection,
        closing(OtherShards(config.of_shard("mail"))) as others,
    ):
        connection.connect()
        connection.script(EFFECTS_ALONE, names, [text])
        carry(NoteCarrier(MAIL, connection, others, RecordedLog()))
