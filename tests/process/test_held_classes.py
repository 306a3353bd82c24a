"""A class that kills process after process is held: its jobs run alone, and all others go on."""

from __future__ import annotations

import time
from typing import Any

from redis import Redis

from tests.process.shared import (
    APP,
    Journal,
    events,
    payloads,
    push,
    push_many,
    title,
    wait_events,
    wait_settled,
    workers,
)
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

HELD = "class held: its jobs killed 5 processes within 60 s; they run alone until one ends well"
RELEASED = "class released: its jobs run beside others again"


def test_a_class_that_kills_its_process_starves_no_other(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """It is held after some deaths: from then on no ordinary child dies, and all other jobs go on
    while each of its own is buried by its own crashes. One line tells of it."""
    options = ["-w", "2", "-c", "5", "--log-format", "json"]
    forkq = tree(redis_server, app=APP, args=options, env=journal.env)
    good, bad = [], []
    for _ in range(8):
        bad += push_many(redis_server, "Die", [[9]] * 2)
        good += push_many(redis_server, "Quick", [[0.001]])
    wait_until(lambda: redis.hexists("forkq:classes:held", "Die"), what="the class to be held")
    journal.wait("end", good)
    wait_until(lambda: _is_calm(redis, forkq), what="two ordinary children without poison")
    ordinary = {child.pid for child in workers(forkq)}
    more = push_many(redis_server, "Quick", [[0.001]] * 20)
    bad += push_many(redis_server, "Die", [[9]] * 8)
    journal.wait("end", more)
    assert redis.zcard("dead") < len(bad), "before the others are buried"
    wait_until(lambda: redis.zcard("dead") == len(bad), deadline=240, what="all burials")
    assert {child.pid for child in workers(forkq)} == ordinary
    assert journal.jids("end") == {*good, *more}
    assert {job["jid"] for job in payloads(redis, "dead")} == set(bad)
    [line] = events(forkq, HELD)
    assert (line["level"], line["held"]) == ("error", "Die")
    assert line["remedy"] == "forkq classes release Die"
    assert forkq.stop() == 0


def _is_calm(redis: Redis, tree: ForkqTree) -> bool:
    """Whether both ordinary children are there, and have none of the jobs that wait."""
    leases: Any = redis.hkeys("{queue:default}:inflight")
    is_moved = not redis.exists("queue:default") and all(b":solo" in lease for lease in leases)
    return is_moved and len([one for one in workers(tree) if "busy" in title(one)]) == 2


def test_a_class_whose_fault_is_mended_is_released(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """By the first of its jobs that ends well. No job of it waits any more, and the next one runs
    in an ordinary child."""
    config = "[forkq]\nsolo_children = 1\n"
    options = ["-c", "3", "--log-format", "json"]
    forkq = tree(redis_server, app=APP, config=config, args=options, env=journal.env)
    door = journal.path.with_name("open")
    jids = push_many(redis_server, "Fragile", [[str(door)]] * 40, crashes=50)
    wait_until(lambda: redis.hexists("forkq:classes:held", "Fragile"), what="the class to be held")
    wait_until(lambda: not redis.exists("queue:default"), what="the jobs to be moved")
    wait_until(lambda: redis.llen("{queue:default}:suspects") > 30, what="jobs that wait")
    door.touch()
    journal.wait("end", jids)
    wait_settled(redis)
    assert not redis.exists("forkq:classes:held")
    wait_until(lambda: not redis.exists("forkq:classes:released"), what="the end of the returns")
    assert redis.zcard("dead") == 0
    [line] = wait_events(forkq, RELEASED)
    assert line["released"] == "Fragile"
    ordinary = {child.pid for child in workers(forkq)}
    [after] = push_many(redis_server, "Fragile", [[str(door)]])
    journal.wait("end", [after])
    assert journal.runs()[after][-1].pid in ordinary
    assert forkq.stop() == 0


def test_a_fault_signal_beside_other_jobs_counts_for_the_class_whose_thread_crashed(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    forkq = tree(redis_server, app=APP, args=["-c", "3"], env=journal.env)
    door = journal.path.with_name("open")
    beside = push_many(redis_server, "Gate", [[str(door)]] * 2)
    journal.wait("begin", beside)
    redis.zadd("forkq:classes:deaths:Gate", {"another": time.time()})
    bad = push(redis_server, "Segfault", crashes=1)
    wait_until(lambda: redis.zcard("forkq:classes:deaths:Segfault"), what="the death")
    found: Any = redis.zrange("forkq:classes:deaths:Segfault", 0, 0)
    assert b":solo" not in found[0]
    assert redis.zcard("forkq:classes:deaths:Gate") == 1
    door.touch()
    wait_settled(redis)
    assert [job["jid"] for job in payloads(redis, "dead")] == [bad]
    assert forkq.stop() == 0
