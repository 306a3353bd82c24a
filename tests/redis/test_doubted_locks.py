"""No lock whose job is gone stays in the way, and no lock of a job that lives is freed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from redis import Redis

import forkq
from forkq import api, middleware, registry
from forkq.clock.doubted_locks import DoubtedLocks
from forkq.errors import Duplicate
from forkq.store import find_job
from forkq.store.connection import RedisConnection, ResponseError
from forkq.wire.keys import Keys
from forkq.wire.payload import dumps
from forkq.wire.times import now
from tests.redis.in_process_child import InProcessChild
from tests.redis.in_process_clock import InProcessClock
from tests.support.recorded_log import RecordedLog
from tests.support.ruby import obstacle, sidekiq
from tests.support.server import Server
from tests.support.waiting import wait_until

QUEUE, SUSPECTS, INFLIGHT = "queue:default", "{queue:default}:suspects", "{queue:default}:inflight"
DOUBTED, ENDS = "forkq:unique:doubt", "forkq:totals:ends"
LEASE = "host:1:0123456789ab/1"
Move: TypeAlias = "Callable[[Redis, bytes], object]"
ran: list[int] = []


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    ran.clear()


@pytest.fixture
def leader(redis: Redis, redis_server: Server) -> Iterator[DoubtedLocks]:
    with closing(RedisConnection(redis_server.url)) as connection:
        connection.connect()
        yield DoubtedLocks(Keys(), connection, RecordedLog())


def index(**options: Any) -> Any:
    def perform(doc: int, version: int = 1) -> None:
        ran.append(version)

    registry._jobs.pop("Index", None)
    return forkq.job(name="Index", **{"unique_for": 600, "unique_by": ["doc"], **options})(perform)


def locks(redis: Redis) -> list[str]:
    return sorted(key.decode() for key in redis.scan_iter("forkq:unique:*") if b"doubt" not in key)


def holder(redis: Redis) -> str:
    [lock] = locks(redis)
    found: Any = redis.hget(lock, "jid")
    return str(found, "ascii")


def sure(redis: Redis) -> float:
    """In how many seconds the one lock may be doubted."""
    [lock] = locks(redis)
    found: Any = redis.hget(lock, "sure")
    return int(found) / 1000 - now()


def age(redis: Redis) -> None:
    """As if nothing had confirmed the locks for a minute."""
    for lock in locks(redis):
        redis.hset(lock, "sure", round((now() - 1) * 1000))


def entries(redis: Redis) -> list[bytes]:
    found: Any = redis.lrange(QUEUE, 0, -1)
    return list(found)


def jids(redis: Redis) -> list[str]:
    return [json.loads(each)["jid"] for each in entries(redis)]


def take_out(redis: Redis) -> bytes:
    """The only job of the queue, which is removed by hand."""
    found: Any = redis.rpop(QUEUE)
    assert isinstance(found, bytes)
    return found


def search(leader: DoubtedLocks, at_step: Callable[[int], object] = lambda step: None) -> int:
    """One whole search, whatever its pauses. Returns how many steps it took."""
    leader.load(watch=False)
    if leader.next_due() is None:
        return 0
    step = 0
    leader.work()
    while leader._steps is not None:
        step += 1
        at_step(step)
        leader.work()
    return step


# A job that lives


PLACES: Final[dict[str, Move]] = {
    "its queue": lambda redis, raw: redis.rpush(QUEUE, raw),
    "the left end of its queue": lambda redis, raw: redis.lpush(QUEUE, raw),
    "the suspects": lambda redis, raw: redis.lpush(SUSPECTS, raw) and redis.sadd(
        "forkq:suspects", "default"),
    "the suspects of a queue that is deleted": lambda redis, raw: redis.srem("queues", "default")
    and redis.lpush(SUSPECTS, raw) and redis.sadd("forkq:suspects", "default"),
    "the schedule": lambda redis, raw: redis.zadd("schedule", {raw: now() + 30 * 86_400}),
    "the retries": lambda redis, raw: redis.zadd("retry", {raw: now() + 60}),
    "a lease": lambda redis, raw: redis.hset(INFLIGHT, LEASE, raw),
    "a page on the move": lambda redis, raw: redis.rpush("{queue:default}:moving", raw),
    "a process of Sidekiq": lambda redis, raw: redis.sadd("processes", "ruby:1:0f")
    and redis.hset("ruby:1:0f", "info", '{"hostname":"ruby","pid":1,"started_at":1.0}')
    and redis.hset("ruby:1:0f:work", "t1", json.dumps(
        {"queue": "default", "payload": raw.decode(), "run_at": 1})),
    "a process of Sidekiq 6": lambda redis, raw: redis.sadd("processes", "ruby:1:0f")
    and redis.hset("ruby:1:0f", "info", "{}")
    and redis.hset("ruby:1:0f:workers", "t1", json.dumps(
        {"queue": "default", "payload": json.loads(raw), "run_at": 1})),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_a_job_that_is_somewhere_keeps_its_lock(
    client: forkq.Client, redis: Redis, leader: DoubtedLocks, place: str
) -> None:
    job = index()
    jid = job.perform_async(7)
    raw = take_out(redis)
    for number in range(5):
        redis.lpush(QUEUE, dumps({"class": "Other", "args": [jid], "jid": f"j{number}"}))
    PLACES[place](redis, raw)
    age(redis)
    assert job.perform_async(7) == ""
    assert redis.hlen(DOUBTED) == 1
    assert search(leader) > 0
    assert (holder(redis), redis.exists(DOUBTED)) == (jid, 0)
    assert 55 < sure(redis) <= 60
    assert job.perform_async(7) == ""
    assert (redis.exists(DOUBTED), redis.zcard("schedule")) == (0, int(place == "the schedule"))


def fetch(redis: Redis, raw: bytes) -> None:
    if redis.lrem(QUEUE, 1, raw):  # type: ignore[arg-type]
        redis.hset(INFLIGHT, LEASE, raw)


def fetch_alone(redis: Redis, raw: bytes) -> None:
    if redis.lrem(SUSPECTS, 1, raw):  # type: ignore[arg-type]
        redis.hset(INFLIGHT, LEASE, raw)


def give_back(redis: Redis, raw: bytes) -> None:
    if redis.hdel(INFLIGHT, LEASE):
        redis.rpush(QUEUE, raw)


def suspect(redis: Redis, raw: bytes) -> None:
    if redis.hdel(INFLIGHT, LEASE):
        redis.lpush(SUSPECTS, raw)


def be_due(redis: Redis, raw: bytes) -> None:
    if redis.zrem("retry", raw):
        redis.lpush(QUEUE, raw)


def fail(redis: Redis, raw: bytes) -> None:
    """As retry.lua, which holds the lock."""
    if redis.hdel(INFLIGHT, LEASE):
        redis.zadd("retry", {raw: now()})
        [lock] = locks(redis)
        redis.hset(lock, "sure", round((now() + 60) * 1000))


WAYS: Final[dict[str, tuple[str, list[Move]]]] = {
    "fetched, returned": ("its queue", [fetch, give_back]),
    "returned, fetched, returned": ("a lease", [give_back, fetch, give_back]),
    "fails, is due, is fetched": ("a lease", [fail, be_due, fetch]),
    "is due, fetched, fails": ("the retries", [be_due, fetch, fail]),
    "a suspect, returned": ("a lease", [suspect, fetch_alone, give_back]),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_job_that_moves_between_the_pages_keeps_its_lock(
    client: forkq.Client,
    redis: Redis,
    redis_server: Server,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    """Each of its moves at each step of the search; of three moves a part of the combinations."""
    monkeypatch.setattr(find_job, "_PAGE", 2)
    monkeypatch.setattr(find_job, "_PAGE_OF_SET", 2)
    place, moves = WAYS[way]
    job = index()
    jid = job.perform_async(7)
    raw = take_out(redis)
    redis.sadd("forkq:suspects", "default")
    others = [dumps({"class": "Other", "args": [], "jid": f"j{number}"}) for number in range(3)]
    redis.lpush(QUEUE, *others)
    redis.lpush(SUSPECTS, *others)

    def run(steps: tuple[int, ...]) -> int:
        def at_step(step: int) -> None:
            for move, at in zip(moves, steps, strict=False):
                if at == step:
                    move(redis, raw)

        for key in (QUEUE, SUSPECTS):
            redis.lrem(key, 0, raw)  # type: ignore[arg-type]
        redis.delete(INFLIGHT, "retry")
        PLACES[place](redis, raw)
        age(redis)
        assert job.perform_async(7) == ""
        with closing(RedisConnection(redis_server.url)) as connection:
            connection.connect()
            taken = search(DoubtedLocks(Keys(), connection, RecordedLog()), at_step)
        assert (holder(redis), jids(redis).count(jid)) == (jid, entries(redis).count(raw)), steps
        return taken

    # The longest search makes two whole passes: the job moves where the first one has been.
    most = max(run((step,)) for step in range(1, 12)) * 2
    steps = list(combinations_with_replacement(range(1, most + 2), len(moves)))
    for each in steps[:: max(1, len(steps) // 150)]:
        run(each)


def test_a_job_that_confirms_its_lock_during_the_search_keeps_it(
    client: forkq.Client, redis: Redis, leader: DoubtedLocks
) -> None:
    """The beat of a child does so, which holds the lock of a job that the search has missed."""
    jid = index().perform_async(7)
    take_out(redis)
    age(redis)
    index().perform_async(7)
    [lock] = locks(redis)

    def beat(step: int) -> None:
        if step == 2:
            redis.hset(lock, "sure", round((now() + 60) * 1000))

    search(leader, beat)
    assert (holder(redis), jids(redis)) == (jid, [])
    search(leader)  # the note goes, since the lock is in no doubt any more
    assert (holder(redis), redis.exists(DOUBTED)) == (jid, 0)


def test_a_lock_that_outlasts_its_job_is_never_doubted(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = index(unique_until="expiry")
    job.perform_async(7)
    with InProcessChild(redis_server.url):
        wait_until(lambda: ran and not redis.exists(INFLIGHT), what="the end")
    assert 590 < sure(redis) <= 600
    assert job.perform_async(7) == ""
    assert not redis.exists(DOUBTED)


def test_a_search_that_took_long_confirms_for_thirty_times_as_long(
    client: forkq.Client, redis: Redis, leader: DoubtedLocks
) -> None:
    index().perform_async(7)
    age(redis)
    index().perform_async(7)
    began = now()
    leader.load(watch=False)
    leader.work()
    wait_until(lambda: now() > began + 2.5, what="a long pass")
    while leader._steps is not None:
        leader.work()
    assert sure(redis) > 70


# A job that is gone


def test_its_lock_is_freed_for_the_newest_push(
    client: forkq.Client, redis: Redis, leader: DoubtedLocks
) -> None:
    job = index()
    job.perform_async(7, 1)
    take_out(redis)
    age(redis)
    assert (job.perform_async(7, 2), job.perform_async(7, 3)) == ("", "")
    search(leader)
    [raw] = entries(redis)
    assert json.loads(raw)["args"] == [7, 3]
    assert holder(redis) == json.loads(raw)["jid"]
    assert not redis.exists(DOUBTED)
    assert job.perform_async(7, 4) == ""


def test_with_raise_it_is_only_freed(
    client: forkq.Client, redis: Redis, leader: DoubtedLocks
) -> None:
    job = index(on_duplicate="raise")
    job.perform_async(7)
    take_out(redis)
    age(redis)
    with pytest.raises(Duplicate):
        job.perform_async(7)
    search(leader)
    assert (locks(redis), jids(redis), redis.exists(DOUBTED)) == ([], [], 0)


def test_a_push_that_raises_leaves_the_note_of_another_one(
    client: forkq.Client, redis: Redis, leader: DoubtedLocks
) -> None:
    index().perform_async(7)
    take_out(redis)
    age(redis)
    index().perform_async(7, 2)
    with pytest.raises(Duplicate):
        index(on_duplicate="raise").perform_async(7, 3)
    search(leader)
    assert len(jids(redis)) == 1


def test_a_scheduled_push_that_expires_is_pushed_as_it_was(
    client: forkq.Client, redis: Redis, leader: DoubtedLocks
) -> None:
    job = index(expires_in=500)
    job.perform_async(7)
    take_out(redis)
    age(redis)
    at = now() + 300
    assert job.perform_at(at, 7, 2) == ""
    search(leader)
    scheduled: Any = redis.zrange("schedule", 0, -1, withscores=True)
    [(raw, score)] = scheduled
    assert score == pytest.approx(at, abs=0.01)
    assert json.loads(raw)["forkq"]["needs"]["expires_at"] == pytest.approx(at + 500, abs=1)
    [lock] = locks(redis)
    assert redis.pttl(lock) > 800_000


def test_many_locks_are_one_search(
    client: forkq.Client, redis: Redis, leader: DoubtedLocks
) -> None:
    job = index()
    others = (dumps({"class": "A", "args": [], "jid": f"{n:024x}"}) for n in range(10_000))
    redis.lpush(QUEUE, *others)
    made = job.perform_bulk([(doc,) for doc in range(200)])
    found: Any = redis.lrange(QUEUE, 0, 199)
    for raw in found[::2]:
        redis.lrem(QUEUE, 1, raw)
    gone = {json.loads(raw)["jid"] for raw in found[::2]}
    age(redis)
    assert job.perform_bulk([(doc, 2) for doc in range(200)]) == [""] * 200
    pages = 2 * (2 + 11 + 2)  # the sets, the queue, its other lists; twice
    assert search(leader) < pages + 100 + 5
    assert set(made) & set(jids(redis)) == set(made) - gone
    assert len(jids(redis)) == 10_200
    assert len(locks(redis)) == 200


def test_a_periodic_job_gets_its_lock_back(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = index()
    job.perform_async(7)
    take_out(redis)
    age(redis)
    api.cron.add("often", "* * * * * *", job, args=[7, 5])
    with InProcessClock(redis_server.url):
        wait_until(lambda: redis.llen(QUEUE), what="a tick is pushed")
    assert holder(redis) == jids(redis)[0]


def delete_by_ruby(redis: Redis, server: Server, folder: Path) -> None:
    program = """
      require "sidekiq"
      require "sidekiq/api"
      Sidekiq.configure_client { |config| config.redis = { url: ENV.fetch("URL") } }
      Sidekiq::Queue.new("default").each(&:delete)
    """
    subprocess.run(
        ["ruby", "-e", program], env={"URL": server.url, "PATH": "/usr/bin:/bin"}, check=True
    )


def run_by_ruby(redis: Redis, server: Server, folder: Path) -> None:
    jobs = "class Index\n  include Sidekiq::Worker\n  def perform(*args) = nil\nend\n"

    def processed() -> int:
        found: Any = redis.get("stat:processed")  # "0" from the first beat of the process on
        return int(found or 0)

    with sidekiq(server, folder, jobs):
        wait_until(processed, deadline=60, what="Ruby has run it")


def remove_by_hand(redis: Redis, server: Server, folder: Path) -> None:
    found: Any = redis.lrange(QUEUE, 0, -1)
    for raw in found:
        assert redis.lrem(QUEUE, 0, raw)


@pytest.mark.parametrize("by", [delete_by_ruby, run_by_ruby, remove_by_hand])
def test_what_takes_a_job_without_forkq_leaves_no_lock_in_the_way(
    client: forkq.Client,
    redis: Redis,
    redis_server: Server,
    tmp_path: Path,
    by: Callable[[Redis, Server, Path], None],
) -> None:
    """With 10,000 other jobs in another queue."""
    if by is not remove_by_hand and (why := obstacle()):
        pytest.skip(why)
    others = (dumps({"class": "A", "args": [], "jid": f"{n:024x}"}) for n in range(10_000))
    redis.sadd("queues", "full")
    redis.lpush("queue:full", *others)
    index().perform_async(7)
    by(redis, redis_server, tmp_path)
    assert jids(redis) == []
    age(redis)
    assert index().perform_async(7, 2) == ""
    with InProcessClock(redis_server.url):
        wait_until(lambda: jids(redis), deadline=50, what="the newer job is pushed")
    assert holder(redis) == jids(redis)[0]


def test_beside_ruby_the_second_pass_waits_for_the_beats_of_its_processes(
    client: forkq.Client, redis: Redis, leader: DoubtedLocks
) -> None:
    """What a process of Sidekiq has taken from a queue is nowhere until that beats."""
    index().perform_async(7)
    raw = take_out(redis)
    redis.sadd("processes", "ruby:1:0f")
    redis.hset("ruby:1:0f", "info", '{"hostname":"ruby","pid":1,"started_at":1.0}')
    age(redis)
    index().perform_async(7)
    pauses: list[float] = []

    def at_step(step: int) -> None:
        pauses.append((leader.next_due() or 0) - now())
        if pauses[-1] > 10:
            redis.delete("processes", "ruby:1:0f")
            PLACES["a process of Sidekiq"](redis, raw)

    search(leader, at_step)
    assert max(pauses) > 10
    assert jids(redis) == []
    assert holder(redis) == json.loads(raw)["jid"]


# What is noted, and what it costs


def test_nothing_in_doubt_costs_no_command(client: forkq.Client, redis: Redis) -> None:
    job = index()
    with redis.monitor() as monitor:  # type: ignore[no-untyped-call]
        job.perform_async(7)
        job.perform_async(7)
        redis.echo("over")
        seen = list(iter(lambda: monitor.next_command()["command"], "ECHO over"))
    assert [each for each in seen if not each.startswith("EVALSHA") and DOUBTED in each] == []


def test_notes_are_bounded(client: forkq.Client, redis: Redis) -> None:
    job = index()
    redis.hset(DOUBTED, mapping={f"{number}": "" for number in range(999)})
    for doc in (7, 8):
        job.perform_async(doc)
    age(redis)
    for version in (2, 3):
        for doc in (7, 8):
            job.perform_async(doc, version)
    assert redis.hlen(DOUBTED) == 1000
    noted = [value for value in redis.hvals(DOUBTED) if value]
    assert [json.loads(value)["args"] for value in noted] == [[7, 3]]
    assert 86_000 < redis.ttl(DOUBTED) <= 86_400


def test_the_lock_of_a_large_job_is_only_freed(
    client: forkq.Client, redis: Redis, leader: DoubtedLocks
) -> None:
    job = index()
    job.perform_async(7)
    take_out(redis)
    age(redis)
    assert job.perform_async(7, "x" * 70_000) == ""
    assert redis.hvals(DOUBTED) == [b""]
    search(leader)
    assert (locks(redis), jids(redis)) == ([], [])


@pytest.mark.parametrize(
    "note", ["", "x", " {", " [1]", ' {"class":"Index","args":[]}', "when {}", " 7", b"\xff\xfe"]
)
def test_an_odd_note_only_frees_the_lock(
    client: forkq.Client, redis: Redis, leader: DoubtedLocks, note: Any
) -> None:
    index().perform_async(7)
    take_out(redis)
    age(redis)
    [lock] = locks(redis)
    redis.hset(DOUBTED, mapping={lock.rpartition(":")[2]: note, "nowhere": "", b"\xff": "x"})
    search(leader)
    assert (locks(redis), jids(redis), redis.exists(DOUBTED)) == ([], [], 0)


def test_a_lock_of_another_type_is_left_alone(
    client: forkq.Client, redis: Redis, leader: DoubtedLocks
) -> None:
    redis.set("forkq:unique:0f", "x")
    redis.hset(DOUBTED, "0f", "x")
    search(leader)
    assert (redis.get("forkq:unique:0f"), redis.exists(DOUBTED)) == (b"x", 0)


def test_another_type_in_the_place_of_the_notes_stops_no_push(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    redis.set(DOUBTED, "x")
    job = index()
    job.perform_async(7)
    age(redis)
    assert job.perform_async(7) == ""
    assert job.perform_in(0.1, 8)
    with InProcessClock(redis_server.url):
        wait_until(lambda: len(jids(redis)) == 2, what="the scheduled job is due all the same")
    assert redis.get(DOUBTED) == b"x"


def test_a_full_server_frees_and_pushes(
    client: forkq.Client, redis: Redis, leader: DoubtedLocks
) -> None:
    index().perform_async(7)
    take_out(redis)
    age(redis)
    index().perform_async(7, 2)
    redis.config_set("maxmemory", 1)
    try:
        search(leader)
    finally:
        redis.config_set("maxmemory", 0)
    assert len(jids(redis)) == 1
    assert holder(redis) == jids(redis)[0]


def test_a_queue_that_refuses_the_job_is_told(
    client: forkq.Client, redis: Redis, leader: DoubtedLocks
) -> None:
    job = index()
    job.perform_async(7)
    take_out(redis)
    age(redis)
    redis.set(QUEUE, "x")
    job.perform_async(7, 2)
    search(leader)
    log: Any = leader._log
    [(level, event, told)] = log.lines
    assert (level, event) == ("error", "a lock whose job is gone was freed; the next job is lost")
    assert "WRONGTYPE" in told["error"]
    assert locks(redis) == []


def test_a_newer_push_during_the_search_is_the_one_that_is_pushed(
    client: forkq.Client, redis: Redis, leader: DoubtedLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = index()
    job.perform_async(7)
    take_out(redis)
    age(redis)
    job.perform_async(7, 2)
    read, call = [0], leader._connection.call

    def late(*command: Any) -> Any:
        reply = call(*command)
        if command[0] == "HGET" and not read[0]:
            read[0] = 1
            job.perform_async(7, 3)
        return reply

    monkeypatch.setattr(leader._connection, "call", late)
    search(leader)
    assert jids(redis) == []
    search(leader)
    [raw] = entries(redis)
    assert json.loads(raw)["args"] == [7, 3]


def test_a_search_that_fails_begins_again(
    client: forkq.Client, redis: Redis, leader: DoubtedLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    index().perform_async(7)
    take_out(redis)
    age(redis)
    index().perform_async(7, 2)
    leader.load(watch=False)
    leader.work()
    with monkeypatch.context() as patch:
        patch.setattr(leader._connection, "script", _refuse)
        with pytest.raises(ResponseError):
            leader.work()
    search(leader)
    assert len(jids(redis)) == 1


def _refuse(*arguments: Any) -> Any:
    raise ResponseError("no")
