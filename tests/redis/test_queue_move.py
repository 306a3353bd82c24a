"""A queue moves from one shard to another: no job is lost and none is doubled, wherever the move is
killed, and whatever arrives late."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import api, default_client
from forkq.api.sharding import queue_move
from forkq.api.sharding.queue_move import QueueMove
from forkq.config.load import load
from forkq.doctor.backlog import moves
from forkq.doctor.server import ExaminedServer
from forkq.errors import ForkqError, ServerUnavailable
from forkq.servers import Server, first_found
from forkq.sharded_client import ShardedClient
from forkq.wire.keys import Keys
from tests.redis.shell import Shell
from tests.support.server import Server as RedisServer
from tests.support.waiting import wait_until
from tests.unit.doctor.shared import config

HERE, THERE = Keys(""), Keys("new:")
TEXT = """
[redis]
url = "{}"
[[redis.shards]]
name = "new"
prefix = "new:"
queues = ["mail"]
"""
FAR = 4_000_000_000


class Killed(BaseException):
    """Stands for the death of the process."""


@pytest.fixture
def client(redis: Redis, redis_server: RedisServer, tmp_path: Path) -> Iterator[ShardedClient]:
    (tmp_path / "forkq.toml").write_text(TEXT.format(redis_server.url))
    before = default_client.swap(None)
    client = default_client.use(load(None, {}, {}, tmp_path))
    assert isinstance(client, ShardedClient)
    yield client
    client.close()
    default_client.swap(before)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_move, "_JOBS", 2)


def payload(jid: str, queue: str = "mail", **more: Any) -> str:
    return json.dumps({"class": "J", "args": [], "jid": jid, "queue": queue, **more})


def fill(redis: Redis) -> None:
    """The queue has something of each kind, beside jobs of another queue."""
    redis.sadd(HERE.queues, "mail", "other")
    redis.rpush(HERE.queue("mail"), *(payload(f"q{n}") for n in range(5)))
    redis.rpush(HERE.suspects("mail"), *(payload(f"s{n}") for n in range(3)))
    redis.sadd(HERE.suspected, "mail", "other")
    for key, letter in ((HERE.schedule, "a"), (HERE.retry, "r"), (HERE.dead, "d")):
        redis.zadd(key, {payload(f"{letter}{n}"): FAR + n for n in range(3)})
        redis.zadd(key, {payload(f"{letter}-other", "other"): FAR, "no job": 1})
    redis.sadd(HERE.paused, "mail")
    redis.hset(HERE.paused_by, "mail", "1 ada")
    api.Queue("mail", server("default")).limit = 3
    for name in ("nightly", "hourly"):
        api.cron.add(name, "@daily", "J", queue="mail", server=server("default"))
    api.cron.add("other", "@daily", "J", queue="other", server=server("default"))
    api.cron.pause("nightly", server("default"))
    redis.hset(HERE.cron_pending, "hourly", "jid")
    redis.hset(HERE.cron_last, mapping={"nightly": 1, "hourly": 2, "other": 3})


def server(name: str) -> Server:
    return api.server(name)


def examined_moves() -> str:
    """What `forkq doctor` finds of the moves from the old shard."""
    with server("default").connection() as connection:
        return moves(ExaminedServer(connection, config())).level


def contents(redis: Redis, keys: Keys) -> dict[str, Any]:
    """What a shard has of everything that a move touches."""
    return {
        "queued": redis.lrange(keys.queue("mail"), 0, -1),
        "suspects": redis.lrange(keys.suspects("mail"), 0, -1),
        **{
            key.removeprefix(keys.prefix): redis.zrange(key, 0, -1, withscores=True)
            for key in (keys.schedule, keys.retry, keys.dead)
        },
        "queues": redis.smembers(keys.queues),
        "suspected": redis.smembers(keys.suspected),
        "paused": (redis.smembers(keys.paused), redis.hgetall(keys.paused_by)),
        "rules": (redis.hgetall(keys.control("mail")), redis.hkeys(keys.controlled)),
        "cron": redis.hgetall(keys.cron),
        "cron notes": (redis.hgetall(keys.cron_last), redis.hgetall(keys.cron_pending)),
        "cron paused": redis.smembers(keys.cron_paused),
        "under way": redis.lrange(keys.moving("mail"), 0, -1),
    }


def move(*, wait: bool = True) -> QueueMove:
    one = QueueMove("mail", server("default"), server("new"), lambda _: None)
    one.run(wait=wait)
    return one


def test_all_of_a_queue_moves_in_order(client: ShardedClient, redis: Redis) -> None:
    fill(redis)
    before = contents(redis, HERE)
    client.push({"class": "J", "args": [], "queue": "mail"})  # the first new one
    one = move()
    after, left = contents(redis, THERE), contents(redis, HERE)
    assert one.counts == Counter(
        {"queued": 5, "suspects": 3, "scheduled": 3, "retrying": 3, "dead": 3, "periodic": 2}
    )
    assert after["queued"][1:] == before["queued"], "before those that were pushed there meanwhile"
    assert after["suspects"] == before["suspects"]
    for name in ("schedule", "retry", "dead"):
        assert after[name] == [each for each in before[name] if b"mail" in each[0]]
        assert left[name] == [each for each in before[name] if b"mail" not in each[0]]
    assert (after["paused"], after["rules"]) == (before["paused"], before["rules"])
    assert set(after["cron"]) == {b"nightly", b"hourly"}
    assert after["cron notes"][1] == {b"hourly": b"jid"}
    assert after["cron paused"] == {b"nightly"}
    assert after["queues"] == after["suspected"] == {b"mail"}
    assert left["queues"] == left["suspected"] == {b"other"}
    assert (left["queued"], left["suspects"], left["under way"]) == ([], [], [])
    assert (left["paused"], left["rules"]) == ((set(), {}), ({}, []))
    assert set(left["cron"]) == {b"other"}


def test_more_periodic_jobs_than_one_script_can_move(client: ShardedClient, redis: Redis) -> None:
    api.cron.add("job-0", "@daily", "J", queue="mail", server=server("default"))
    definition = redis.hget(HERE.cron, "job-0")
    assert definition is not None
    names = [f"job-{n}" for n in range(2000)]
    redis.hset(HERE.cron, mapping=dict.fromkeys(names, definition))
    assert move().counts["periodic"] == len(names)
    assert redis.hlen(THERE.cron) == len(names)


def test_a_failover_of_the_old_shard_loses_no_job_that_it_still_has(
    client: ShardedClient, redis: Redis
) -> None:
    """A replica that lacks the latest pages becomes the master. Their numbers come again."""
    redis.rpush(HERE.queue("mail"), *map(payload, "abcdef"))
    replicas: list[dict[bytes, bytes]] = []

    def replicate(_: QueueMove) -> None:
        keys = [key for key in redis.scan_iter() if not key.startswith(THERE.prefix.encode())]
        replicas.append({key: redis.dump(key) or b"" for key in keys})

    QueueMove("mail", server("default"), server("new"), replicate).run(wait=False)
    for key, value in replicas[0].items():
        redis.restore(key, 0, value, replace=True)
    redis.lpush(HERE.queue("mail"), *map(payload, "gh"))
    one = move()
    moved = [json.loads(raw)["jid"] for raw in redis.lrange(THERE.queue("mail"), 0, -1)]
    assert set(moved) == set("abcdefgh")
    assert one.counts["queued"] == 6, "c to f are moved twice, and lost by no one"
    assert not redis.exists(HERE.queue("mail"), HERE.moving("mail"))


def test_what_cancels_a_job_moves_with_it(client: ShardedClient, redis: Redis) -> None:
    """The leader of the new shard has closed its note: it has found the job nowhere."""
    made = 1700000000.0
    redis.rpush(HERE.queue("mail"), *(payload(jid, created_at=made) for jid in "abc"))
    redis.zadd(HERE.schedule, {payload("d", created_at=made): FAR})
    redis.rpush(HERE.queue("mail"), payload("e", created_at=made, wrapped="Gone"))
    for jid in ("a", "d", "elsewhere"):
        forkq.cancel(jid)
    api.cancel_class("Gone")
    redis.delete(THERE.cancelled)
    move()
    carried: Any = redis.hkeys(THERE.cancelled)
    assert sorted(carried) == [b"class:Gone", b"jid:a", b"jid:d"]
    assert redis.hget(THERE.cancelled, "jid:a") == redis.hget(HERE.cancelled, "jid:a")


def test_a_full_shard_takes_no_page(client: ShardedClient, redis: Redis) -> None:
    """Else a move would fill it far beyond its limit, until the host is out of memory."""
    redis.rpush(HERE.queue("mail"), *map(payload, "abc"))
    take = QueueMove("mail", server("default"), server("new"), lambda _: None)
    used = redis.info("memory")["used_memory"]
    redis.config_set("maxmemory", used // 2)
    try:
        with pytest.raises((ForkqError, ServerUnavailable), match="maxmemory"):
            take.run(wait=False)
    finally:
        redis.config_set("maxmemory", 0)
    assert not redis.exists(THERE.queue("mail"))
    assert move().counts["queued"] == 3


class Calls:
    """Counts the calls of a move, and kills the process before or after one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[Callable[[], Any]] = []
        self.kill_at = -1
        self.after = False
        for name in ("run", "ask"):
            monkeypatch.setattr(Server, name, self._counted(getattr(Server, name)))

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(on: Server, *given: Any, **named: Any) -> Any:
            number = len(self.made)
            self.made.append(lambda: real(on, *given, **named))
            if number == self.kill_at and not self.after:
                raise Killed
            found = real(on, *given, **named)
            if number == self.kill_at:
                raise Killed
            return found

        return call


def test_a_job_is_found_while_its_page_is_under_way(
    client: ShardedClient, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that died between two steps has left it there: the job lives, and is not gone."""
    calls, seen = Calls(monkeypatch), set[str]()
    for number in range(100):
        redis.flushdb()
        fill(redis)
        calls.made, calls.kill_at, calls.after = [], number, True
        with suppress(Killed):
            move()
            break
        calls.kill_at = -1
        under_way = redis.lrange(HERE.moving("mail"), 0, -1)
        assert examined_moves() == ("warn" if under_way else "ok")
        jids = [json.loads(raw)["jid"] for raw in under_way if b'"jid"' in raw]
        assert all(api.is_alive(jid) for jid in jids if jid[0] != "d")
        seen.update(jid[0] for jid in jids)
    assert seen == set("qsard")


@pytest.mark.parametrize("after", [False, True], ids=["before a call", "after a call"])
def test_a_move_that_is_killed_anywhere_goes_on(
    client: ShardedClient, redis: Redis, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Redis changes in calls only, so these are all places that there are. What the dead process
    has sent arrives once more when all is over, and changes nothing."""
    fill(redis)
    move()
    expected = contents(redis, THERE), contents(redis, HERE)
    calls = Calls(monkeypatch)
    number = killed = 0
    while killed == number:
        redis.flushdb()
        fill(redis)
        calls.made, calls.kill_at, calls.after = [], number, after
        with suppress(Killed):
            move()
            break
        sent = calls.made[:]
        calls.kill_at = -1
        killed, number = killed + 1, number + 1
        move()
        assert (contents(redis, THERE), contents(redis, HERE)) == expected, f"killed at {number}"
        for late in sent:
            late()
        assert (contents(redis, THERE), contents(redis, HERE)) == expected, f"late: {number}"
    assert killed > 40


def test_a_job_is_found_that_goes_where_the_search_has_been(
    client: ShardedClient, redis: Redis
) -> None:
    """The queue moves back to the default shard, which is looked at first."""
    redis.sadd(THERE.queues, "mail")
    redis.rpush(THERE.queue("mail"), payload("j1"))
    looked_at: list[str] = []

    def look(at: Server) -> object:
        looked_at.append(at.name)
        found = api.find("j1", at)
        if looked_at == ["default"]:
            QueueMove("mail", server("new"), server("default"), lambda _: None).run(wait=True)
        return found

    assert first_found(client.servers, look) is not None
    assert looked_at == ["default", "new", "default"]
    assert first_found(client.servers, lambda at: None) is None


def test_two_processes_may_move_one_queue_at_once(client: ShardedClient, redis: Redis) -> None:
    jids = [f"j{n}" for n in range(400)]
    redis.rpush(HERE.queue("mail"), *map(payload, jids))
    counts: list[int] = []
    threads = [
        threading.Thread(target=lambda: counts.append(move().counts.total())) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    moved = redis.lrange(THERE.queue("mail"), 0, -1)
    assert [json.loads(raw)["jid"] for raw in moved] == jids
    assert sum(counts) == len(jids)


def test_a_move_waits_for_the_jobs_that_run(client: ShardedClient, redis: Redis) -> None:
    """One that fails then is retried on the new shard."""
    redis.hset(HERE.inflight("mail"), "h:1:0123456789ab/1", payload("runs"))
    assert move(wait=False).running == 1
    found: list[QueueMove] = []
    thread = threading.Thread(target=lambda: found.append(move()))
    thread.start()
    redis.rpush(HERE.queue("mail"), payload("late"))
    wait_until(lambda: redis.llen(THERE.queue("mail")), what="the job that was pushed meanwhile")
    assert thread.is_alive()
    with redis.pipeline() as script:
        script.zadd(HERE.retry, {payload("runs", retry_count=0): FAR})
        script.hdel(HERE.inflight("mail"), "h:1:0123456789ab/1")
        script.execute()
    thread.join(10)
    assert not thread.is_alive()
    assert redis.zcard(THERE.retry) == 1
    assert found[0].running == 0


def test_a_move_that_is_run_again_pauses_nothing_again(client: ShardedClient, redis: Redis) -> None:
    """A person has resumed the queue on the new shard, and lifted its limit there. What the old
    shard is told later is carried all the same, and so is a pause of the next move."""
    fill(redis)
    redis.hset(HERE.inflight("mail"), "h:1:0123456789ab/1", payload("runs"))
    there = api.Queue("mail", server("new"))
    assert move(wait=False).running == 1
    assert (there.paused, there.limit) == (True, 3)
    there.resume()
    there.reset()
    move(wait=False)
    assert (there.paused, there.limit) == (False, None)
    api.Queue("mail", server("default")).limit = 7
    move(wait=False)
    assert there.limit == 7
    there.resume()
    redis.delete(HERE.inflight("mail"))
    move()
    assert not there.paused
    redis.sadd(HERE.paused, "mail")
    redis.hset(HERE.paused_by, "mail", "1 ada")
    move()
    assert there.paused


def test_of_two_versions_that_move_one_queue_the_older_sends_nothing_back_that_has_arrived(
    client: ShardedClient, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer one has put the page, and has not ended it yet."""
    raws = [payload("a"), payload("b", forkq={"needs": {"unique": "k"}})]
    redis.rpush(HERE.queue("mail"), *raws)
    older, newer = (
        QueueMove("mail", server("default"), server("new"), lambda _: None) for _ in range(2)
    )
    with monkeypatch.context() as patch:
        patch.setattr(queue_move, "_has_features", lambda _: False)
        page = newer._take("queued", ())
        with monkeypatch.context() as dying:
            dying.setattr(newer, "_close", lambda *_: 0)
            newer._deliver(page)
    older.run(wait=False)
    assert redis.lrange(THERE.queue("mail"), 0, -1) == [raw.encode() for raw in raws]
    assert not redis.exists(HERE.queue("mail"), HERE.moving("mail"))


def test_what_the_older_version_has_sent_back_the_newer_does_not_put_there(
    client: ShardedClient, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither between the two steps of the older one, nor after them."""
    raws = [payload("a"), payload("b", forkq={"needs": {"unique": "k"}})]
    for steps in (1, 2):
        redis.flushdb()
        redis.rpush(HERE.queue("mail"), *raws)
        older, newer = (
            QueueMove("mail", server("default"), server("new"), lambda _: None) for _ in range(2)
        )
        page = newer._take("queued", ())
        if steps == 1:
            assert older._bar(page)
        else:
            with pytest.raises(ForkqError, match="features of a newer forkq"):
                older.run(wait=False)
        with monkeypatch.context() as patch:
            patch.setattr(queue_move, "_has_features", lambda _: False)
            newer._deliver(page)
        older._close(page, "back")
        places = (HERE.queue("mail"), HERE.moving("mail"), THERE.queue("mail"))
        found = [json.loads(raw)["jid"] for key in places for raw in redis.lrange(key, 0, -1)]
        assert sorted(found) == ["a", "b"], f"after {steps}"


def test_a_job_with_features_of_a_newer_forkq_stays(client: ShardedClient, redis: Redis) -> None:
    raws = [payload("a"), payload("b", forkq={"needs": {"unique": "k"}}), payload("c")]
    redis.rpush(HERE.queue("mail"), *raws)
    with pytest.raises(ForkqError, match=r'"mail" cannot move: its job b \(J\) has features'):
        move()
    assert redis.lrange(HERE.queue("mail"), 0, -1) == [raw.encode() for raw in raws]
    assert not redis.exists(THERE.queue("mail"), HERE.moving("mail"))
    redis.lrem(HERE.queue("mail"), 0, raws[1])
    redis.zadd(HERE.dead, {raws[1]: 7})
    with pytest.raises(ForkqError, match="cannot move"):
        move()
    assert redis.zscore(HERE.dead, raws[1]) == 7


def test_rules_of_the_new_shard_are_kept(client: ShardedClient, redis: Redis) -> None:
    api.Queue("mail", server("default")).limit = 3
    api.Queue("mail").limit = 8
    redis.rpush(HERE.queue("mail"), payload("a"))
    move()
    assert api.Queue("mail").limit == 8


def test_a_shard_that_refuses_is_named(client: ShardedClient, redis: Redis) -> None:
    redis.rpush(HERE.queue("mail"), *map(payload, "abc"))
    redis.set(THERE.queue("mail"), "no list")
    with pytest.raises((ForkqError, ServerUnavailable), match="new:queue:mail"):
        move()
    redis.delete(THERE.queue("mail"))
    move()
    assert redis.llen(THERE.queue("mail")) == 3


@pytest.fixture
def in_folder(client: ShardedClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("in_folder")
def test_the_command_moves_and_says_what(redis: Redis, shell: Shell) -> None:
    fill(redis)
    assert shell("shards", "move", "mail", "new") == 0
    assert shell.out == (
        "mail moved from default to new: 5 waiting, 3 suspects, 3 scheduled, 3 to be retried, "
        "3 dead, 2 periodic\n"
    )
    assert "no living process serves mail on the shard new yet" in shell.err
    assert shell("shards", "move", "mail", "new") == 0
    assert shell.out == "no other shard has anything of mail\n"


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("mail x", 'there is no shard "x" in [[redis.shards]]; there are default, new'),
        ("other new", 'has the queue "other" on the shard default, and new jobs would go on being'),
        ("other new", "Give it to new first, then restart the workers, then deploy"),
        ("mial new", 'no shard and no capsule there names a queue "mial"'),
        ("mail* new", '"mail*" is a pattern: name one queue after the other'),
    ],
)
def test_a_move_that_the_table_does_not_have_is_refused(
    redis: Redis, shell: Shell, line: str, problem: str
) -> None:
    redis.rpush(HERE.queue("other"), payload("a", "other"))
    assert shell("shards move", *line.split()) == 2
    assert problem in shell.err
    assert redis.llen(HERE.queue("other")) == 1
