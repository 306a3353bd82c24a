"""A debounced job runs once for a burst of pushes, with the arguments of the last (`debounce`)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

import forkq
import forkq.testing
from forkq import api, middleware, registry
from forkq.client import transactions
from forkq.clock.due_jobs import DueJobMover
from forkq.config.shards import Shard
from forkq.errors import InvalidJob
from forkq.screens.features.locks import LOCKS, of_locks
from forkq.sharded_client import ShardedClient
from forkq.store.connection import RedisConnection
from forkq.wire import times
from forkq.wire.keys import Keys
from forkq.wire.times import now, steady
from tests.redis.in_process_child import InProcessChild
from tests.redis.in_process_clock import InProcessClock
from tests.redis.shell import Shell
from tests.support.documents import ROOT
from tests.support.server import Server
from tests.support.spread import QUEUE as SPREAD
from tests.support.spread import three_parts
from tests.support.waiting import wait_until

QUEUE, ENDS = "queue:default", "forkq:totals:ends"
KEYS = Keys()
ran: list[Any] = []


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    monkeypatch.setattr(middleware, "pushes", middleware.Chain())
    ran.clear()
    yield
    times.follow_host()


def index(**options: Any) -> Any:
    def perform(doc: int, version: int = 1) -> None:
        job = forkq.current_job()
        assert job is not None
        ran.append((doc, version, job.jid))

    registry._jobs.pop("Index", None)
    made = {"debounce": 300, "debounce_max": 900, "unique_by": ["doc"], **options}
    return forkq.job(name="Index", **made)(perform)


def scheduled(redis: Redis) -> dict[str, float]:
    """The jids in the schedule, and when each is due."""
    found: Any = redis.zrange("schedule", 0, -1, withscores=True)
    return {json.loads(raw)["jid"]: at for raw, at in found}


def waiting(redis: Redis) -> set[str]:
    """The jids in the schedule."""
    return {*scheduled(redis)}


def lock_of(redis: Redis) -> dict[str, str]:
    """What stands in the one lock; nothing if there is none."""
    names: Any = redis.keys("forkq:unique:*")
    [fields] = [redis.hgetall(name) for name in names] or [{}]
    return {key.decode(): value.decode() for key, value in fields.items()}  # type: ignore[union-attr]


def lock_name(redis: Redis) -> Any:
    found: Any = redis.keys("forkq:unique:*")
    [name] = found
    return name


def age_lock(redis: Redis, seconds: float) -> None:
    """Moves the first of the pushes into the past."""
    redis.hset(lock_name(redis), "at", f"{1000 * (now() - seconds):.0f}")


def replaced(redis: Redis) -> int:
    found: Any = redis.hget(ENDS, "Index|replaced")
    return int(found or 0)


def move_due(redis_server: Server, at: float) -> None:
    """The clock moves what is due at that moment."""
    connection = RedisConnection(redis_server.url)
    connection.connect()
    try:
        times.follow(at, steady())
        mover = DueJobMover(KEYS, connection)
        mover.load(watch=False)
        while (due := mover.next_due()) is not None and due <= now():
            mover.work()
    finally:
        times.follow_host()
        connection.close()


# The push


def test_each_push_takes_the_place_of_the_one_before(client: forkq.Client, redis: Redis) -> None:
    job, began = index(), now()
    jids = [job.perform_async(7, version) for version in (1, 2, 3)]
    other = job.perform_async(8)
    assert len(set(jids)) == 3
    due = scheduled(redis)
    assert due.keys() == {jids[2], other}
    assert all(began + 299 < at < now() + 301 for at in due.values())
    assert replaced(redis) == 2
    assert not redis.exists(QUEUE)
    [entry] = [entry for entry in api.ScheduledSet() if entry.jid == jids[2]]
    assert (entry.args, "enqueued_at" in entry.job) == ([7, 3], False)


def test_it_runs_at_the_latest_after_debounce_max(client: forkq.Client, redis: Redis) -> None:
    job = index()
    job.perform_async(7, 1)
    age_lock(redis, 700)
    began = now()
    jid = job.perform_async(7, 2)
    assert abs(scheduled(redis)[jid] - (began + 200)) < 50


def test_what_is_beyond_debounce_max_is_not_put_off_any_more(
    client: forkq.Client, redis: Redis
) -> None:
    """However late the clock is, and however many pushes follow: it finds the job that is due."""
    job = index()
    first = job.perform_async(7, 1)
    age_lock(redis, 901)
    second = job.perform_async(7, 2)
    assert waiting(redis) == {first, second}
    assert abs(scheduled(redis)[second] - (now() + 300)) < 50
    third = job.perform_async(7, 3)
    assert (waiting(redis), replaced(redis)) == ({first, third}, 1)


def test_the_time_of_redis_counts(client: forkq.Client, redis: Redis) -> None:
    times.follow(now() - 5000, steady())
    jid = index(expires_in=60).perform_async(7)
    times.follow_host()
    due = scheduled(redis)[jid]
    assert abs(due - (now() + 300)) < 50
    [entry] = api.ScheduledSet()
    assert abs(entry.job["expiry"] - (due + 60)) < 0.01


def test_once_it_is_in_its_queue_a_push_begins_anew(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = index()
    first = job.perform_async(7, 1)
    move_due(redis_server, now() + 301)
    assert (waiting(redis), lock_of(redis), redis.llen(QUEUE)) == (set(), {}, 1)
    second = job.perform_async(7, 2)
    assert waiting(redis) == {second}
    with InProcessChild(redis_server.url):
        wait_until(lambda: ran, what="the run")
        wait_until(lambda: not redis.exists("{queue:default}:inflight"), what="its end")
    assert ran == [(7, 1, first)]
    assert (lock_of(redis)["jid"], replaced(redis)) == (second, 0)


def move_as_ruby_does(redis: Redis) -> None:
    found: Any = redis.zrange("schedule", 0, -1)
    [raw] = found
    redis.zrem("schedule", raw)
    redis.lpush(QUEUE, raw)


def test_a_job_that_ruby_moved_or_deleted_is_not_in_the_way(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = index()
    job.perform_async(7, 1)
    redis.delete("schedule")
    first = job.perform_async(7, 2)
    assert (waiting(redis), replaced(redis)) == ({first}, 0)
    move_as_ruby_does(redis)
    second = job.perform_async(7, 3)
    assert waiting(redis) == {second}
    redis.delete("schedule")
    with InProcessChild(redis_server.url):
        wait_until(lambda: ran and not redis.exists("{queue:default}:inflight"), what="the end")
    assert (ran, lock_of(redis)["jid"]) == ([(7, 2, first)], second)


def test_the_end_of_a_job_that_ruby_moved_frees_its_lock(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    index().perform_async(7, 1)
    move_as_ruby_does(redis)
    with InProcessChild(redis_server.url):
        wait_until(lambda: ran and not lock_of(redis), what="the end")


def test_a_push_that_is_sent_again_changes_nothing(client: forkq.Client, redis: Redis) -> None:
    job = index()
    job.perform_async(7, 1)
    again = {**job.payload(7, 2), "jid": "b" * 24}
    assert client.push(again) == client.push(again) == "b" * 24
    assert (waiting(redis), replaced(redis)) == ({"b" * 24}, 1)


def test_a_full_server_keeps_the_job_before(client: forkq.Client, redis: Redis) -> None:
    job = index()
    first = job.perform_async(7, 1)
    redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(forkq.ServerRefused):
            job.perform_async(7, 2)
    finally:
        redis.config_set("maxmemory", 0)
    assert (waiting(redis), lock_of(redis)["jid"]) == ({first}, first)


def test_a_damaged_lock_keeps_no_push_out(client: forkq.Client, redis: Redis) -> None:
    job = index()
    job.perform_async(7, 1)
    name = lock_name(redis)
    redis.set(name, "x")
    job.perform_async(7, 2)
    assert (len(scheduled(redis)), redis.get(name)) == (2, b"x")
    assert redis.hget(ENDS, "(feature)|damaged") == b"1"


def test_a_damaged_schedule_refuses_the_push(client: forkq.Client, redis: Redis) -> None:
    redis.set("schedule", "x")
    with pytest.raises(forkq.ForkqError, match="schedule"):
        index().perform_async(7, 1)
    assert lock_of(redis) == {}


# Each way of pushing


def test_rows_of_a_bulk_push_are_pushes_one_after_the_other(
    client: forkq.Client, redis: Redis
) -> None:
    jids = index().perform_bulk([(7, 1), (8, 1), (7, 2), (7, 3)])
    assert len(set(jids)) == 4
    assert waiting(redis) == {jids[1], jids[3]}
    assert all("enqueued_at" not in entry.job for entry in api.ScheduledSet())


def test_a_time_of_its_own_is_refused(client: forkq.Client, redis: Redis) -> None:
    job = index()
    for push in (
        lambda: job.perform_in(9, 7),
        lambda: job.perform_at(now() + 9, 7),
        lambda: job.perform_bulk([(7,)], at=now() + 9),
        lambda: client.push({"class": "Far", "args": [], "debounce": 5, "at": now() + 9}),
    ):
        with pytest.raises(InvalidJob, match=r"is debounced.*set\(debounce=0\)"):
            push()
    assert scheduled(redis) == {}
    assert job.set(debounce=0).perform_in(9, 7)
    assert job.set(debounce=0).perform_async(7)
    assert (len(scheduled(redis)), redis.llen(QUEUE), lock_of(redis)) == (1, 1, {})


def test_a_push_waits_for_the_commit(
    client: forkq.Client, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = index()
    job.perform_async(7, 1)
    held: list[Callable[[], None]] = []
    monkeypatch.setattr(transactions, "on_commit", held.append)
    later = job.perform_async_on_commit(7, 3)
    middle = job.perform_async(7, 2)
    assert waiting(redis) == {middle}
    for send in held:
        send()
    assert waiting(redis) == {later}
    assert all("enqueued_at" not in entry.job for entry in api.ScheduledSet())


def test_awaited_pushes_are_debounced(client: forkq.Client, redis: Redis) -> None:
    job = index()

    async def push() -> list[str]:
        jids: list[str] = [await job.aperform_async(7, version) for version in (1, 2)]
        jids += await job.aperform_bulk([(7, 3), (7, 4)])
        return jids

    jids = asyncio.run(push())
    assert waiting(redis) == {jids[3]}


def test_a_server_that_forgot_the_script_gets_it_again(client: forkq.Client, redis: Redis) -> None:
    job = index()
    job.perform_async(7, 1)
    redis.script_flush()
    jid = job.perform_async(7, 2)
    assert waiting(redis) == {jid}


def test_ticks_are_debounced_pushes(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = index()
    first = job.perform_async(7, 5)
    api.cron.add("often", "* * * * * *", job, args=[7, 6])
    with InProcessClock(redis_server.url):
        wait_until(lambda: replaced(redis) >= 2, what="two ticks")
    [jid] = scheduled(redis)
    assert jid != first
    [entry] = api.ScheduledSet()
    assert (entry.args, entry.job["forkq"]["cron"]) == ([7, 6], "often")
    assert not redis.exists(QUEUE)


def test_a_tick_of_a_job_that_expires_is_stamped_by_redis(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    api.cron.add("often", "* * * * * *", index(expires_in=60), args=[7, 6])
    with InProcessClock(redis_server.url):
        wait_until(lambda: scheduled(redis), what="a tick")
    [entry] = api.ScheduledSet()
    assert abs(entry.job["expiry"] - (scheduled(redis)[entry.jid] + 60)) < 0.01


def test_it_is_pushed_on_the_shard_of_its_class_only(redis_server: Server, redis: Redis) -> None:
    shards = [
        Shard("default", redis_server.url, ("*",)),
        Shard("s1", redis_server.url, ("far",), prefix="s1."),
    ]
    client = ShardedClient(shards, "default", redis_server.url)
    index()
    pushed = {"class": "Index", "args": [7], "debounce": 5}
    with pytest.raises(InvalidJob, match="is debounced, and its queue"):
        client.push({**pushed, "queue": "far"})
    assert client.push({**pushed, "queue": "near"})
    client.close()


def test_the_parts_of_a_spread_queue_have_one_job_together(tmp_path: Path) -> None:
    """The arguments that count choose the part."""
    job = {"class": "Far", "queue": SPREAD, "debounce": 300}
    with three_parts(tmp_path) as spread:
        for doc in range(12):
            jids = [spread.client.push({**job, "args": [doc]}) for _ in range(3)]
            spread.client.push_bulk({**job, "args": [[doc], [doc]]})
            assert len(set(jids)) == 3
        sizes = [server.client().zcard("schedule") for server in spread.servers.values()]
        assert (sum(sizes), min(sizes) > 0) == (12, True)


# What people do with the one that waits


@pytest.mark.parametrize(
    "act",
    [
        lambda entry: entry.delete(),
        lambda entry: entry.add_to_queue(),
        lambda entry: entry.kill(),
        lambda entry: api.ScheduledSet().clear(),
        lambda entry: index().cancel(doc=7),
        lambda entry: forkq.cancel(entry.jid),
    ],
    ids=["delete", "enqueue", "kill", "clear", "cancel by arguments", "cancel"],
)
def test_what_ends_the_wait_frees_the_lock(
    client: forkq.Client, redis: Redis, redis_server: Server, act: Callable[[Any], Any]
) -> None:
    index().perform_async(7, 1)
    [entry] = api.ScheduledSet()
    act(entry)
    with InProcessClock(redis_server.url):
        wait_until(lambda: not lock_of(redis), what="the end of the wait")
    assert scheduled(redis) == {}


def test_a_job_that_undo_restores_waits_for_further_pushes(
    client: forkq.Client, redis: Redis
) -> None:
    job = index()
    first = job.perform_async(7, 1)
    api.undo(api.ScheduledSet().delete_all(undo=True).undo)
    assert (lock_of(redis)["jid"], waiting(redis)) == (first, {first})
    second = job.perform_async(7, 2)
    assert (waiting(redis), replaced(redis)) == ({second}, 1)


def test_a_restored_job_beside_a_newer_one_is_told(client: forkq.Client, redis: Redis) -> None:
    job = index()
    job.perform_async(7, 1)
    token = api.ScheduledSet().delete_all(undo=True).undo
    second = job.perform_async(7, 2)
    assert api.undo(token).unlocked == 1
    assert lock_of(redis)["jid"] == second
    assert len(scheduled(redis)) == 2


# What people see


def test_the_list_says_since_when_it_waits_and_until_when(
    environment: None, client: forkq.Client, redis: Redis, shell: Shell
) -> None:
    jid = index().perform_async(7, 1)
    age_lock(redis, 90)
    assert shell("unique list") == 0
    [line] = shell.out.splitlines()[1:]
    assert re.search(r" +\d+ (s|min) ago +in \d+ (s|min) +debounced, default$", line)
    assert shell("unique --json") == 0
    lock = json.loads(shell.out)
    assert (lock["jid"], round(lock["latest"] - lock["due"])) == (jid, 600)
    assert lock["due"] - lock["since"] == pytest.approx(390, abs=50)
    assert shell("find", jid) == 0
    [line] = [line for line in shell.out.splitlines() if line.startswith("lock")]
    said = (
        r"the next push takes it; first push \d+ (s|min) ago, due in .*, at the latest in \d+ min"
    )
    assert re.search(said, line)
    assert len(line) <= 100
    [found] = api.unique_locks()
    assert (round(found.due or 0), found.is_doubted) == (round(lock["due"]), False)
    assert LOCKS.table("web", of_locks([found])).rows


def test_in_its_queue_it_has_no_lock_to_show(
    environment: None, client: forkq.Client, redis: Redis, redis_server: Server, shell: Shell
) -> None:
    job = index()
    first = job.perform_async(7, 1)
    move_due(redis_server, now() + 301)
    job.perform_async(7, 2)
    assert shell("find --json", first) == 0
    assert "lock" not in json.loads(shell.out)


def test_the_end_of_a_replaced_job_is_told(
    environment: None, client: forkq.Client, redis: Redis, shell: Shell
) -> None:
    first, _ = [index().perform_async(7, version) for version in (1, 2)]
    assert shell("find", first) == 1
    assert "replaced" in shell.out
    assert api.stats().ended == {"replaced": 1}


# Options


def test_the_code_of_the_page_runs(client: forkq.Client, redis: Redis) -> None:
    page = (ROOT / "docs" / "unique.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    exec("".join(blocks), {"__name__": "page"})  # noqa: S102 - our own page
    found = [(entry.name, entry.args) for entry in api.ScheduledSet()]
    assert sorted(found) == [("page.reindex_quietly", [7, 2]), ("page.reindex_quietly", [8, 1])]
    assert redis.hget(ENDS, "page.reindex_quietly|replaced") == b"1"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"unique_for": 60}, "has `debounce` and `unique_for`"),
        ({"debounce_max": 5}, "`debounce_max` is 5 s, and `debounce` is 300 s"),
        ({"debounce": "soon"}, "`debounce` is 'soon'"),
        ({"debounce": -1}, "`debounce` is -1"),
        ({"on_duplicate": "latest"}, "`unique_for`; leave it out: the last push"),
        ({"unique_until": "end"}, "`unique_until` means nothing without `unique_for`"),
    ],
)
def test_options_that_cannot_be_are_refused_with_their_names(
    client: forkq.Client, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidJob) as raised:
        index(**options)
    assert said in str(raised.value)
    with pytest.raises(InvalidJob):
        client.push({"class": "Far", "args": [], "debounce": 300, **options})
    with pytest.raises(InvalidJob):
        index().set(**options)


def test_options_that_need_another_one_say_which(client: forkq.Client) -> None:
    with pytest.raises(InvalidJob, match="`debounce_max` means nothing without `debounce`"):
        forkq.job(name="Alone", debounce_max=5)(lambda *_arguments: None)
    with pytest.raises(InvalidJob, match="`unique_by` means nothing without `unique_for` or `deb"):
        forkq.job(name="Alone", unique_by=["doc"])(lambda doc: None)


def test_without_debounce_max_it_waits_ten_times_debounce(
    client: forkq.Client, redis: Redis
) -> None:
    forkq.job(name="Plain", debounce=30)(lambda: None).perform_async()
    [entry] = api.ScheduledSet()
    assert entry.job["forkq"]["needs"]["unique"]["max"] == 300
    assert entry.job["forkq"]["v"] == 4


# Tests of apps


def test_a_test_without_redis_keeps_the_last_push() -> None:
    with forkq.testing.fake() as jobs:
        job = index()
        for version in (1, 2, 3):
            job.perform_async(7, version)
        job.perform_async(8, 1)
        assert [(one.args, round(one.delay)) for one in jobs] == [([7, 3], 300), ([8, 1], 300)]
        assert jobs.drain(until=200) == 0
        assert jobs.drain() == 2
        assert [each[:2] for each in ran] == [(7, 3), (8, 1)]
        job.perform_async(7, 4)
        assert [one.args for one in jobs] == [[7, 4]]


def test_a_test_without_redis_knows_the_latest_time() -> None:
    with forkq.testing.fake() as jobs:
        job, began = index(expires_in=60), now()
        for step in range(5):
            times.follow(began + 250 * step, steady())
            job.perform_async(7, step)
        first, second = jobs  # the last push came when the first burst was over
        assert (first.args, second.args) == ([7, 3], [7, 4])
        assert first.at is not None
        assert abs(first.at - (began + 900)) < 50
        assert abs(first.payload["expiry"] - (first.at + 60)) < 0.01
        job.perform_async(7, 5)
        assert [one.args for one in jobs] == [[7, 3], [7, 5]]


def test_inline_a_debounced_job_is_recorded() -> None:
    with forkq.testing.inline() as jobs:
        index().perform_async(7, 1)
        jid = index().perform_async(7, 2)
        assert [one.jid for one in jobs] == [jid]
        index().cancel(doc=7)
        assert (list(jobs), ran) == ([], [])
