"""Iterable jobs in whole trees: a stop repeats nothing, a kill little; neither skips an item."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from redis import Redis

import forkq
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

APP = """
import asyncio, os, time
import forkq
from redis import Redis

notes = Redis.from_url(os.environ["NOTES_URL"])

class Walk(forkq.IterableJob):
    def build_enumerator(self, number, total, pause, cursor=None):
        return forkq.cursors.sequence(range(total), cursor)

    def each_iteration(self, item, number, total, pause):
        time.sleep(pause)
        notes.rpush("items", f"{number}:{item}")

@forkq.job(name="walk", iterable=True)
async def walk(number, total, pause, cursor=0):
    for item in range(cursor, total):
        await asyncio.sleep(pause)
        notes.rpush("items", f"{number}:{item}")
        yield item + 1
"""
COROUTINES = """
[capsules.io]
queues = ["default"]
kind = "async"
concurrency = 50
"""


def started(
    tree: StartTree, server: Server, ledger: Server, *args: str, config: str | None = None
) -> ForkqTree:
    return tree(server, app=APP, args=args, config=config, env={"NOTES_URL": ledger.url})


def push(server: Server, jobs: int, total: int, pause: float, name: str = "jobs.Walk") -> None:
    client = forkq.Client(server.url)
    for number in range(jobs):
        client.push({"class": name, "args": [number, total, pause]})
    client.close()


def items(ledger: Server) -> Counter[bytes]:
    found: Any = ledger.client().lrange("items", 0, -1)
    return Counter(found)


def expected(jobs: int, total: int) -> set[bytes]:
    return {f"{number}:{item}".encode() for number in range(jobs) for item in range(total)}


def kill_one(forkq_tree: ForkqTree) -> bool:
    """Kills a child that is ready. Returns whether there was one."""
    ready = forkq_tree.children("busy")
    if ready:
        ready[0].kill()
    return bool(ready)


def wait_items(ledger: Server, more_than: int) -> None:
    wait_until(lambda: len(items(ledger)) > more_than, deadline=600, what="more items")


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_a_stop_of_a_tree_with_fifty_of_them_repeats_no_item(
    redis_server: Server, redis: Redis, own_server: Server, tree: StartTree, kind: str
) -> None:
    in_threads = kind == "threads"
    push(redis_server, 50, 30, 0.01, "jobs.Walk" if in_threads else "walk")
    args, config = (["-c", "50"], None) if in_threads else ([], COROUTINES)
    first = started(tree, redis_server, own_server, *args, config=config)
    wait_items(own_server, 300)
    first.stop()
    assert len(items(own_server)) < 50 * 30
    assert redis.llen("queue:default") > 0
    started(tree, redis_server, own_server, *args, config=config)
    wait_until(lambda: len(items(own_server)) == 1500, what="the last items")
    assert items(own_server) == Counter(expected(50, 30))
    wait_until(lambda: not redis.keys("it-*"), what="the end of the last job")


@pytest.mark.parametrize(
    "kills", [2, pytest.param(60, marks=pytest.mark.slow)], ids="{} kills".format
)
def test_a_kill_repeats_little_and_skips_nothing(
    redis_server: Server, redis: Redis, own_server: Server, tree: StartTree, kills: int
) -> None:
    """Each kill repeats at most what the jobs did since they were saved last."""
    jobs, total, pause = 4 * kills, 40, 0.005
    push(redis_server, jobs, total, pause)
    forkq_tree = started(tree, redis_server, own_server, "-c", "8")
    for number in range(kills):
        wait_items(own_server, number * jobs * total // (kills + 1))
        wait_until(lambda: kill_one(forkq_tree), what="a child")
    wait_until(lambda: len(items(own_server)) == jobs * total, deadline=600, what="all items")
    found = items(own_server)
    assert found.keys() == expected(jobs, total)
    assert found.total() - jobs * total <= kills * 8 * total
