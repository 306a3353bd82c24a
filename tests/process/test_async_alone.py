"""What runs alone holds for coroutines in an async capsule: the jobs of a held class, and suspects
where no solo child can boot."""

from __future__ import annotations

import time
from pathlib import Path

from redis import Redis

from tests.process.shared import (
    Journal,
    listening,
    payloads,
    push,
    push_many,
    wait_settled,
    wait_swept,
    workers,
)
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until

APP = Path(__file__).with_name("async_app.py")
CONFIG = '[capsules.default]\nkind = "async"\nconcurrency = 20\n'


def test_where_no_solo_child_can_boot_an_ordinary_child_runs_suspects_one_at_a_time(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """The app listens on a fixed port. Nothing runs beside a suspect, which a crash has made."""
    app, env = listening(journal, APP)
    forkq = tree(redis_server, app=app, config=CONFIG, env=env)
    wait_swept(redis, forkq)
    good = push_many(redis_server, "Nap", [[0.05]] * 12)
    bad = push(redis_server, "Exit", 1, crashes=1)
    good += push_many(redis_server, "Nap", [[0.05]] * 12)
    wait_until(lambda: redis.zcard("dead"), deadline=120, what="the burial")
    wait_settled(redis)
    assert [job["jid"] for job in payloads(redis, "dead")] == [bad]
    assert journal.jids("end") == set(good)
    assert "this child runs suspects, one at a time" in forkq.log_text()
    assert forkq.stop() == 0


def test_the_jobs_of_a_held_class_run_one_at_a_time_until_one_ends_well(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal, tmp_path: Path
) -> None:
    """docs/operating.md: "they run alone ... All other jobs go on"."""
    door = tmp_path / "door"
    forkq = tree(redis_server, app=APP, config=CONFIG, env=journal.env)
    [ordinary] = workers(forkq)
    redis.hset("forkq:classes:held", "Gate", f"{time.time():.0f} 5")

    def pid_of(jid: str) -> int:
        journal.wait("begin", [jid])
        return journal.runs()[jid][0].pid

    def runs_elsewhere() -> bool:
        return pid_of(push(redis_server, "Gate", str(door))) != ordinary.pid

    wait_until(runs_elsewhere, what="the child to hear of it", every=0.1)
    held = push_many(redis_server, "Gate", [[str(door)]] * 3)
    others = push_many(redis_server, "Nap", [[0]] * 10)
    journal.wait("end", others)
    pids = [pid_of(jid) for jid in held]
    assert len({*pids, ordinary.pid}) == 4, "each has a process for itself"
    door.touch()
    wait_settled(redis)
    assert journal.jids("end") >= {*held, *others}
    assert not redis.exists("forkq:classes:held")
    assert forkq.stop() == 0
