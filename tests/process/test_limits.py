"""Limits in real trees: they hold when processes are killed, and slots come back with the jobs."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from typing import Any

import psutil
import pytest
from redis import Redis

from forkq.wire.keys import Keys
from tests.process.shared import APP, Journal, push_many, settled, workers
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until, within

KEYS = Keys()


def limit(redis: Redis, count: int) -> None:
    redis.hset(KEYS.control("default"), "limit", count)
    redis.hincrby(KEYS.controlled, "default", 1)


def holders(redis: Redis, forkq: ForkqTree) -> list[psutil.Process]:
    """The children that hold a slot. One that still boots is spared: a master whose children never
    come to that gives up."""
    leases: Any = redis.hkeys(KEYS.inflight("default"))
    pids = {int(lease.split(b":")[1]) for lease in leases}
    return [child for child in workers(forkq) if child.pid in pids]


@pytest.mark.parametrize("enough", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_many_kills_leak_no_permit_and_never_overrun_the_limit(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal, enough: int
) -> None:
    """Children that hold slots are killed: their jobs run again, 3 at a time, to the last one."""
    limit(redis, 3)
    args = ["-w", "8", "-c", "2", "--log-level", "error"]
    forkq = tree(redis_server, app=APP, args=args, env=journal.env)
    jids = push_many(redis_server, "Quick", [[0.01]] * 50 * enough)
    kills, most = 0, 0
    dice = random.Random(30)
    end = time.monotonic() + 40
    while kills < enough and (time.monotonic() < end or kills < 10):
        assert time.monotonic() < end + 120, f"only {kills} kills"
        if settled(redis):
            if kills >= 10:
                break
            jids += push_many(redis_server, "Quick", [[0.01]] * 25 * enough)
        if victims := holders(redis, forkq):  # the dead come back after growing pauses
            with suppress(psutil.NoSuchProcess):
                dice.choice(victims).kill()
                kills += 1
        pause = time.monotonic() + dice.uniform(0.02, 0.2)
        while time.monotonic() < pause:
            most = max(most, redis.hlen(KEYS.inflight("default")))
    wait_until(lambda: settled(redis), deadline=120, every=0.05, what="the end of all jobs")
    buried = redis.zcard(KEYS.dead)
    assert kills >= 10
    assert most == 3
    assert len(journal.jids("end")) + buried >= len(jids)
    assert redis.hlen(KEYS.inflight("default")) == 0


def test_a_killed_childs_slot_is_taken_at_once(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    limit(redis, 1)
    args = ["-w", "2", "-c", "1", "--log-level", "error"]
    forkq = tree(redis_server, app=APP, args=args, env=journal.env)
    jids = push_many(redis_server, "Gate", [[str(journal.path.with_name("open"))]] * 2)
    journal.wait("begin", jids[:1])
    holder = journal.lines("begin")[0].pid
    killed = time.monotonic()
    next(child for child in workers(forkq) if child.pid == holder).kill()
    wait_until(lambda: len(journal.lines("begin")) == 2, what="the job again")
    assert journal.lines("begin")[1].at - killed < within(5)  # a sweep would take 15 s
    journal.path.with_name("open").touch()
    wait_until(lambda: settled(redis), what="the end of all jobs")
