"""The API reads queues while they move, acts on their jobs, and says why one does not drain."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import api
from forkq.api import Filter, ProcessSet, Queue, WorkSet, aio
from forkq.errors import ForkqError, InvalidRule, WrongType

WHO = "host:17:0123456789ab"
pytestmark = pytest.mark.usefixtures("client")


def job(jid: object, **more: Any) -> bytes:
    fields = {"class": "Mail", "args": [], "queue": "mail", "jid": str(jid), "retry": True}
    return json.dumps({**fields, "enqueued_at": 1700000000.5, **more}).encode()


def push(redis: Redis, *jids: object, **more: Any) -> None:
    redis.sadd("queues", "mail")
    redis.lpush("queue:mail", *(job(jid, **more) for jid in jids))


def fetched(redis: Redis, count: int) -> None:
    redis.rpop("queue:mail", count)


def beat(redis: Redis, identity: str = WHO, **fields: Any) -> None:
    host, pid, _ = identity.split(":")
    info = {
        "hostname": host, "started_at": 1700000000.5, "pid": int(pid), "tag": "shop", "labels": [],
        "concurrency": 2, "queues": ["mail", "t-*"], "version": "forkq 1", "master": 9,
        "capsules": {"default": {"weights": {"mail": 0, "t-*": 0}}},
    }  # fmt: skip
    redis.sadd("processes", identity)
    record: dict[Any, Any] = {
        "info": json.dumps(info), "busy": 0, "beat": time.time(), "quiet": "false", **fields,
    }  # fmt: skip
    redis.hset(identity, mapping=record)
    redis.expire(identity, 600)


def jids(entries: Any) -> list[str]:
    return [entry.jid for entry in entries]


# Contents


def test_queued_jobs_come_the_next_one_first(redis: Redis) -> None:
    push(redis, *range(450))
    everything = [str(n) for n in range(450)]
    assert jids(Queue("mail")) == everything
    assert jids(Queue("mail").scan(newest_first=True)) == everything[::-1]
    assert jids(Queue("mail").page(400, 3)) == ["400", "401", "402"]
    assert jids(Queue("mail").page(0, 2, newest_first=True)) == ["449", "448"]
    assert jids(Queue("mail").scan(Filter(jid="7"))) == ["7"]
    assert list(Queue("nothing")) == []


def test_selected_jobs_are_acted_on_near_the_place_where_they_were_shown(redis: Redis) -> None:
    """Those around them are read, not those that come long after them."""
    push(redis, *range(3000))
    queue = Queue("mail")
    keys = {entry.jid: entry.key for entry in queue}
    chosen = [keys["600"], keys["590"], keys["2900"]]
    fetched(redis, 500)
    assert jids(queue.scan(Filter(keys=chosen, near=600))) == ["590", "600"]
    outcome = queue.delete_all(Filter(keys=chosen, near=600), undo=True)
    assert (outcome.done, outcome.seen, queue.size) == (2, 2, 2498)
    assert api.undo(outcome.undo).done == 2
    assert queue.kill_all(Filter(keys=chosen)).done == 3  # without a place it reads the whole queue


@pytest.mark.parametrize("between", ["fetched", "pushed", "returned", "deleted", "all fetched"])
def test_a_scan_from_the_next_one_on_misses_no_job(redis: Redis, between: str) -> None:
    """While others fetch, push, return and delete, each job that stays comes once."""
    push(redis, *range(1000))
    changes: dict[str, Callable[[int], Any]] = {
        "fetched": lambda n: fetched(redis, 150),
        "pushed": lambda n: push(redis, *(f"new{n}-{m}" for m in range(50 if n < 700 else 0)), "x"),
        "returned": lambda n: redis.rpush("queue:mail", job(f"back{n}")),
        "deleted": lambda n: redis.lrem("queue:mail", 0, job(n - 50).decode()),
        "all fetched": lambda n: fetched(redis, 400),
    }
    seen = []
    for number, entry in enumerate(Queue("mail")):
        seen.append(entry.jid)
        if number % 200 == 199 and number < 900:
            changes[between](number)
    stayed = {entry.jid for entry in Queue("mail") if entry.jid.isdigit()}
    assert stayed <= set(seen)
    numbered = [int(jid) for jid in seen if jid.isdigit()]
    assert numbered == sorted(set(numbered))


def test_a_scan_from_the_newest_on_survives_pushes_and_fetches(redis: Redis) -> None:
    push(redis, *range(1000))
    seen = []
    for number, entry in enumerate(Queue("mail").scan(newest_first=True)):
        seen.append(entry.jid)
        if number % 200 == 199:
            push(redis, *(f"new{number}-{m}" for m in range(70)))
            fetched(redis, 20)
    assert seen == [str(n) for n in range(999, 999 - len(seen), -1)]
    assert set(seen) >= {entry.jid for entry in Queue("mail") if entry.jid.isdigit()}


def test_a_queued_job_is_found_and_deleted(redis: Redis) -> None:
    push(redis, "a", "b", "c")
    found = Queue("mail").find("b")
    assert found is not None
    assert (found.location, found.queue, found.since) == ("queued", "mail", 1700000000.5)
    assert Queue("mail").delete("b") is True
    assert Queue("mail").delete("b") is False
    assert redis.lrange("queue:mail", 0, -1) == [job("c"), job("a")]


def test_queued_jobs_are_edited_killed_and_moved(redis: Redis) -> None:
    push(redis, "a", "b", "c")
    a, b, c = Queue("mail")
    assert b.edit(args=[1]) is not None
    assert [one.args for one in Queue("mail")] == [[], [1], []]
    assert (a.kill(), c.move("slow"), b.kill()) == (True, True, False)
    assert redis.zrange("dead", 0, -1) == [job("a")]
    assert jids(Queue("slow")) == ["c"]
    assert redis.smembers("queues") == {b"mail", b"slow"}


def test_with_a_damaged_set_of_names_jobs_are_put_back_once(redis: Redis) -> None:
    push(redis, *range(3))
    outcome = Queue("mail").delete_all(undo=True)
    redis.set("queues", "no set")
    assert api.undo(outcome.undo).done == 3
    with pytest.raises(forkq.ForkqError):
        api.undo(outcome.undo)
    assert redis.llen("queue:mail") == 3


def test_many_queued_jobs_are_deleted_moved_and_put_back(redis: Redis) -> None:
    push(redis, *range(700))
    push(redis, *(f"o{n}" for n in range(5)), **{"class": "Other"})
    outcome = Queue("mail").move_all("slow", Filter(job="Mail"), most=300)
    assert (outcome.matched, outcome.done) == (300, 300)
    assert jids(Queue("slow")) == [str(n) for n in range(300)]
    before = redis.lrange("queue:mail", 0, -1)
    outcome = Queue("mail").delete_all(undo=True)
    assert (outcome.done, Queue("mail").size) == (405, 0)
    assert api.undo(outcome.undo).done == 405
    assert redis.lrange("queue:mail", 0, -1) == before
    assert Queue("mail").kill_all(Filter(job="Other")).done == 5
    assert Queue("mail").size == 400
    assert Queue("mail").move_all("mail").done == 0
    with pytest.raises(InvalidRule):
        Queue("mail").move_all("a,b")


def test_an_action_beside_a_fetch_neither_loses_nor_doubles(redis: Redis) -> None:
    push(redis, *range(1500))
    taken: list[bytes] = []
    stop = threading.Event()

    def fetch() -> None:
        while not stop.is_set():
            some: Any = redis.rpop("queue:mail", 3)
            taken.extend(some or ())

    thread = threading.Thread(target=fetch)
    thread.start()
    try:
        outcome = Queue("mail").move_all("slow")
    finally:
        stop.set()
        thread.join(30)
    left = [entry.jid for name in ("mail", "slow") for entry in Queue(name)]
    ran = [json.loads(raw)["jid"] for raw in taken]
    assert sorted(left + ran, key=int) == [str(n) for n in range(1500)]
    assert Queue("slow").size == outcome.done


def test_what_is_no_job_in_a_queue_is_shown_and_can_be_killed(redis: Redis) -> None:
    redis.rpush("queue:mail", b"\xff no JSON", b"[1]")
    first, second = Queue("mail")
    assert first.malformed == "" or first.args
    assert [entry.args for entry in (second, first)] == [["\ufffd no JSON"], ["[1]"]]
    assert (first.kill(), second.kill()) == (True, True)
    buried = redis.zrange("dead", 0, -1)
    assert b"\xff no JSON" in buried
    assert any(b'"forkq.malformed"' in raw for raw in buried)  # Sidekiq's page can show it


def test_clear_empties_a_queue(redis: Redis) -> None:
    push(redis, "a", "b")
    assert Queue("mail").clear() == 2
    assert redis.exists("queue:mail", "queues") == 0
    assert Queue("mail").clear() == 0


def test_a_damaged_queue_is_empty(redis: Redis) -> None:
    redis.set("queue:mail", "x")
    assert (list(Queue("mail")), Queue("mail").page(), Queue("mail").find("a")) == ([], [], None)
    with pytest.raises(WrongType, match="queue:mail"):
        Queue("mail").clear()
    assert redis.get("queue:mail") == b"x"


# Why a queue does not drain


def holds(redis: Redis) -> list[str]:
    return [hold.kind for hold in Queue("mail").report().holds]


def test_a_report_tells_what_holds_a_queue(redis: Redis) -> None:
    assert holds(redis) == []
    push(redis, "a")
    assert holds(redis) == ["unserved"]
    beat(redis)
    report = Queue("mail").report()
    assert (report.holds, report.threads, report.state.size) == ((), 2, 1)
    assert [process.identity for process in report.served_by] == [WHO]
    assert report.latency > 1000
    beat(redis, busy=2)
    assert holds(redis) == ["full"]
    beat(redis, quiet="true")
    assert holds(redis) == ["quiet"]
    beat(redis)
    queue = Queue("mail")
    queue.limit = 0
    queue.rate = "1/hour"
    redis.set("{queue:mail}:bucket", f"0 {int(time.time() * 1e6)}")  # its token is used up
    queue.pause()
    assert holds(redis) == ["paused", "limit", "rate"]
    assert [state.name for state in api.Limits()] == ["mail"]
    assert api.Limits().get("mail").limit == 0
    redis.set("queue:mail", "x")
    assert holds(redis) == ["damaged"]
    assert [report.state.name for report in api.queue_reports()] == ["mail"]


def test_a_limit_names_the_jobs_that_hold_it(redis: Redis) -> None:
    push(redis, "a")
    beat(redis, busy=1)
    queue = Queue("mail")
    queue.process_limit = 1
    redis.hset("{queue:mail}:inflight", f"{WHO}/1", job("r"))
    work = {"queue": "mail", "payload": job("r").decode(), "run_at": int(time.time())}
    redis.hset(f"{WHO}:work", "t", json.dumps(work))
    assert holds(redis) == ["limit"]
    assert jids(queue.in_flight) == ["r"]


def test_the_jobs_that_run_in_sidekiq_are_busy_and_count_for_no_limit(redis: Redis) -> None:
    """A process of Sidekiq takes a job out of Redis when it begins."""
    push(redis, "a")
    info = {"hostname": "ruby", "pid": 5, "started_at": 1.5, "concurrency": 2, "queues": ["mail"]}
    beat(redis, "ruby:5:0123456789ab", busy=2, info=json.dumps(info))
    for number in range(2):
        work = {"queue": "mail", "payload": job(f"r{number}").decode(), "run_at": int(time.time())}
        redis.hset("ruby:5:0123456789ab:work", f"t{number}", json.dumps(work))
    redis.hset("{queue:mail}:inflight", f"{WHO}/1", job("mine"))
    queue = Queue("mail")
    queue.limit = 2
    assert queue.busy == 3
    assert [(state.busy, state.in_sidekiq) for state in api.queues()] == [(3, 2)]
    assert "limit" not in holds(redis)
    queue.limit = 1
    assert "limit" in holds(redis)


def test_a_pause_has_the_name_of_who_made_it(redis: Redis) -> None:
    """Until it ends; Sidekiq, and a program that gives no name, leave none."""
    push(redis, "a")
    beat(redis)
    queue = Queue("mail")
    assert queue.pause("ann@web-1")
    assert not queue.pause("bob")
    [state] = api.queues()
    assert state.paused_by == "ann@web-1"
    assert state.paused_at == pytest.approx(time.time(), abs=5)
    assert queue.report().holds[0].text.startswith("it is paused by ann@web-1, ")
    assert queue.resume()
    assert not queue.resume()
    assert not redis.exists("forkq:paused:by")
    queue.pause()
    [state] = api.queues()
    assert (state.paused, state.paused_by, state.paused_at) == (True, "", None)
    redis.hset("forkq:paused:by", "mail", "odd")
    assert api.queues()[0].paused_at is None
    redis.set("forkq:paused:by", "no hash")
    assert not queue.pause()
    assert queue.resume()
    assert queue.pause("ann@web-1")


# Processes


def test_processes_are_grouped_by_master(redis: Redis) -> None:
    beat(redis, "b:3:0123456789ab", rss=10)
    beat(redis, "b:4:0123456789ab", rss=20, busy=1)
    beat(redis, beat=time.time() - 40)
    first, second = ProcessSet().trees()
    assert (first.hostname, first.master, len(first.processes)) == ("b", 9, 2)
    assert (first.rss, first.busy, first.concurrency) == (30, 1, 4)
    assert first.silent_for < 39 <= second.silent_for < 1000
    assert len(ProcessSet()) == 3
    found = ProcessSet().get(WHO)
    assert found is not None
    assert (found.capsules, found.serves("t-1"), found.serves("low")) == (("default",), True, False)
    assert ProcessSet().get("gone:1:0123456789ab") is None


def test_orders_are_left_as_sidekiq_leaves_them(redis: Redis) -> None:
    beat(redis)
    assert ProcessSet().quiet(WHO, "gone:1:0123456789ab") == 1
    assert (ProcessSet().stop(WHO), ProcessSet().dump_stacks(WHO)) == (1, 1)
    assert redis.lrange(f"{WHO}-signals", 0, -1) == [b"TTIN", b"TERM", b"TSTP"]
    assert 0 < redis.ttl(f"{WHO}-signals") <= 60
    assert redis.keys("gone*") == []


def test_running_jobs_are_found_by_job_queue_and_process(redis: Redis) -> None:
    beat(redis)
    work = {"queue": "mail", "payload": job("r").decode(), "run_at": int(time.time())}
    redis.hset(f"{WHO}:work", "t", json.dumps(work))
    found = WorkSet().find("r")
    assert found is not None
    assert (found.queue, found.identity) == ("mail", WHO)
    assert jids(WorkSet().of_queue("mail")) == jids(WorkSet().of_process(WHO)) == ["r"]
    assert (len(WorkSet()), WorkSet().of_queue("low"), WorkSet().find("x")) == (1, [], None)
    assert (WorkSet().dump_stack("r"), WorkSet().dump_stack("x")) == (True, False)
    assert redis.lrange(f"{WHO}-signals", 0, -1) == [b"TTIN"]


# From asyncio


def test_the_loop_runs_while_redis_is_asked(redis: Redis) -> None:
    push(redis, *range(250))

    async def main() -> list[int]:
        assert (await aio.run(api.stats)).enqueued == 250
        sizes = [len(page) async for page in aio.pages(Queue("mail").scan(), 100)]
        with pytest.raises(ForkqError):
            await aio.run(api.history, days=0)
        begun = threading.Event()
        waiting = asyncio.create_task(aio.run(begun.wait, 30))
        await asyncio.sleep(0)
        begun.set()  # the loop was free for this
        assert await waiting
        await aio.close()
        return sizes

    assert asyncio.run(main()) == [100, 100, 50]
