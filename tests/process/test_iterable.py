"""Iterable jobs in whole trees: a stop repeats nothing, a kill little; neither skips an item."""

from __future__ import annotations

import os
from collections import Counter
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from redis import Redis

import forkq
from tests.process.shared import workers
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

APP = """
import asyncio, os, time
import forkq, forkq.iteration
from redis import Redis

forkq.iteration._SAVE_EVERY = float(os.environ.get("SAVE_EVERY", forkq.iteration._SAVE_EVERY))
notes = Redis.from_url(os.environ["NOTES_URL"])

def note(number, item):
    done_at = time.monotonic()
    writes = notes.pipeline()
    writes.rpush("items", f"{number} {item} {os.getpid()} {done_at}")
    writes.sadd("done", f"{number} {item}")
    writes.execute()

# Each job has a class of its own: a class that has killed five processes is held.
for number in range(int(os.environ["JOBS"])):

    class Walk(forkq.IterableJob, name=f"Walk{number}"):
        def build_enumerator(self, number, total, pause, cursor=None):
            return forkq.cursors.sequence(range(total), cursor)

        def each_iteration(self, item, number, total, pause):
            time.sleep(pause)
            note(number, item)

    @forkq.job(name=f"walk{number}", iterable=True)
    async def walk(number, total, pause, cursor=0):
        for item in range(cursor, total):
            await asyncio.sleep(pause)
            note(number, item)
            yield item + 1
"""
SOLOS = "[forkq]\nsolo_children = 16\n"
COROUTINES = """
[capsules.io]
queues = ["default"]
kind = "async"
concurrency = {}
"""


KILLS = int(os.environ.get("FORKQ_TEST_KILLS", "60"))


class Item(NamedTuple):
    """An item that a job has done, the process, and when (its monotonic clock)."""

    job: int
    item: int
    pid: int
    at: float


class Walks:
    """A tree that runs iterable jobs, and what they note in a ledger on another server."""

    def __init__(self, tree: StartTree, servers: tuple[Server, Server], kind: str) -> None:
        self._start, (self._server, self._ledger), self._kind = tree, servers, kind
        self._notes: Redis = self._ledger.client()
        self._alone: Counter[int] = Counter()
        self.jobs = self.total = self.killed = 0

    def push(self, jobs: int, total: int, pause: float) -> None:
        self.jobs, self.total = jobs, total
        name, client = "Walk" if self._kind == "threads" else "walk", forkq.Client(self._server.url)
        for number in range(jobs):
            client.push({"class": f"{name}{number}", "args": [number, total, pause]})
        client.close()

    def start(self, concurrency: int, **more: str) -> ForkqTree:
        of_threads = f"[capsules.threads]\nqueues = ['default']\nconcurrency = {concurrency}\n"
        capsule = of_threads if self._kind == "threads" else COROUTINES.format(concurrency)
        env = {"NOTES_URL": self._ledger.url, "JOBS": str(self.jobs), **more}
        return self._start(self._server, app=APP, config=f"{SOLOS}{capsule}", env=env)

    def items(self, latest: int = 0) -> list[Item]:
        rows: Any = self._notes.lrange("items", -latest, -1)
        return [Item(int(j), int(i), int(p), float(at)) for j, i, p, at in map(bytes.split, rows)]

    def count(self) -> int:
        found: Any = self._notes.llen("items")
        return int(found)

    def wait_items(self, more_than: int) -> None:
        wait_until(lambda: self.count() > more_than, deadline=600, what="more items")

    def distinct(self) -> int:
        found: Any = self._notes.scard("done")
        return int(found)

    def is_over(self) -> bool:
        return self.distinct() == self.jobs * self.total

    def kill_one(self, tree: ForkqTree) -> bool:
        """Kills a child that has done an item. Returns whether there was one. A job that has killed
        three children alone is buried, so two solo children of a job are killed at most."""
        items = self.items(latest=500)
        for child in tree.children("busy"):
            jobs = {one.job for one in items if one.pid == child.pid}
            is_alone = child not in workers(tree)
            if jobs and not (is_alone and any(self._alone[job] > 1 for job in jobs)):
                child.kill()
                self.killed += 1
                self._alone.update(jobs if is_alone else ())
                return True
        return False

    def repeated(self) -> list[float]:
        """Of each run after the first one of a job: how many seconds of items were repeated. Fails
        if one was skipped."""
        runs: dict[int, list[list[Item]]] = {}
        for one in self.items():
            of_job = runs.setdefault(one.job, [])
            if not of_job or of_job[-1][0].pid != one.pid:
                of_job.append([])
            of_job[-1].append(one)
        assert len(runs) == self.jobs
        for of_job in runs.values():
            assert of_job[0][0].item == 0
            assert of_job[-1][-1].item == self.total - 1
        return [_repeated(*pair) for of_job in runs.values() for pair in pairwise(of_job)]


def _repeated(before: list[Item], after: list[Item]) -> float:
    """From the end of the first item that was repeated to the end of the last but one: the run
    looked at the clock once more before the last one."""
    assert [one.item for one in before] == list(range(before[0].item, before[-1].item + 1))
    assert before[0].item <= after[0].item <= before[-1].item + 1
    again = before[after[0].item - before[0].item :]
    return again[-2].at - again[0].at if len(again) > 1 else 0.0


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_a_stop_of_a_tree_with_fifty_of_them_repeats_no_item(
    redis_server: Server, redis: Redis, own_server: Server, tree: StartTree, kind: str
) -> None:
    walks = Walks(tree, (redis_server, own_server), kind)
    walks.push(50, 30, 0.01)
    first = walks.start(50)
    walks.wait_items(300)
    first.stop()
    assert walks.count() < 50 * 30
    assert redis.llen("queue:default") > 0
    walks.start(50)
    wait_until(lambda: walks.distinct() == 1500, deadline=60, what="the last items")
    assert walks.count() == 1500
    wait_until(lambda: not redis.keys("it-*"), what="the end of the last job")


@pytest.mark.parametrize("kind", ["threads", "async"])
@pytest.mark.parametrize(
    ("kills", "seconds"),
    [(3, 0.2), pytest.param(KILLS, 0.5, marks=pytest.mark.slow)],
    ids=["sample", "all"],
)
def test_a_kill_repeats_what_was_not_saved_and_skips_nothing(
    redis_server: Server,
    redis: Redis,
    own_server: Server,
    tree: StartTree,
    kind: str,
    kills: int,
    seconds: float,
) -> None:
    """Saved here every so many seconds, so that a job is saved several times. ``FORKQ_TEST_KILLS``
    is the number of kills, and of jobs."""
    jobs, total = max(8, kills), round(4 * seconds / 0.02)
    walks = Walks(tree, (redis_server, own_server), kind)
    walks.push(jobs, total, 0.02)
    forkq_tree = walks.start(8, SAVE_EVERY=str(seconds))
    for number in range(kills):
        walks.wait_items(number * jobs * total // kills)
        wait_until(
            lambda: walks.kill_one(forkq_tree) or walks.is_over(), deadline=600, what="a kill"
        )
    wait_until(walks.is_over, deadline=600, what="all items")
    assert walks.killed > kills // 10  # a group of coroutines may end before all kills are made
    again = walks.repeated()
    assert again
    repeated = f"{walks.count() - jobs * total} items repeated, at most {max(again):.3f} s of them"
    print(f"{walks.killed} kills, {len(again)} runs again: {repeated}")  # noqa: T201 - with -s
    assert max(again) < seconds
    wait_until(lambda: not redis.keys("it-*"), deadline=60, what="the end of the last job")
    assert not redis.exists("dead", "retry")
