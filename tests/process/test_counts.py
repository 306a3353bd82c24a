"""``forkq status`` and ``forkq stats`` know of a job's end before any heartbeat tells Redis."""

from __future__ import annotations

import json
from collections.abc import Callable

from redis import Redis

from tests.process.shared import APP, Journal, counter, push, settled
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until


def done_by_status(tree: ForkqTree) -> int:
    shown = json.loads(tree.run("status", "--json").stdout)
    return sum(child["processed"] for child in shown["children"])


def done_by_stats(tree: ForkqTree) -> int:
    return int(json.loads(tree.run("stats", "--json").stdout)["processed"])


def test_a_job_is_done_in_both_before_its_child_has_flushed_its_counts(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Another job is tried if a heartbeat came in between."""
    forkq = tree(
        redis_server,
        app=APP,
        args=["-c", "1"],
        env={**journal.env, "FORKQ_REDIS": redis_server.url},
    )
    pushed = 0

    def shows(done: Callable[[ForkqTree], int]) -> bool:
        nonlocal pushed
        jid = push(redis_server, "Nap", 0)
        pushed += 1
        journal.wait("end", [jid])
        wait_until(lambda: settled(redis), what="the acknowledgement")
        wait_until(lambda: done(forkq) == pushed, what=f"{pushed} jobs done")
        return counter(redis, "processed") < pushed

    for done in (done_by_status, done_by_stats):
        wait_until(lambda done=done: shows(done), deadline=60, what="an end before its flush")  # type: ignore[misc]
