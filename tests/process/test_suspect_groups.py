"""Suspects of an async capsule run in groups, which are halved until the guilty one runs alone."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from redis import Redis

from forkq.config.capsule import MOST_TOGETHER
from tests.process.memory_groups import killed
from tests.process.shared import (
    Journal,
    payloads,
    push,
    push_many,
    solo_children,
    suspects,
    wait_settled,
    workers,
)
from tests.process.test_large_payloads import ENTERS_A_GROUP
from tests.support.server import Server
from tests.support.tree import CHECKOUT, StartTree
from tests.support.waiting import wait_until

APP = Path(__file__).with_name("async_app.py")
ALONE = 3  # deaths
CONFIG = """
[log]
level = "warning"
[capsules.default]
kind = "async"
concurrency = 1000
"""


def test_the_guilty_one_of_many_is_found_and_buried_alone(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """No death with others counts: three alone do. No other job has one that counts."""
    jids = push_many(redis_server, "Nap", [[0.6]] * 20)
    bad = push(redis_server, "KillItself", 0.2)
    jids += push_many(redis_server, "Nap", [[0.6]] * 20)
    forkq = tree(redis_server, app=APP, config=CONFIG, env=journal.env)
    wait_found(redis, bad)
    assert {line.jid for line in journal.lines("end")} == set(jids)
    assert forkq.stop() == 0


def test_the_one_that_takes_all_memory_is_found_when_the_kernel_kills(
    memory_groups: Path,
    redis_server: Server,
    redis: Redis,
    tree: StartTree,
    journal: Journal,
    tmp_path: Path,
) -> None:
    """Each child is in a control group of its own, with a limit that one of its jobs exceeds."""
    door = tmp_path / "door"
    jids = push_many(redis_server, "Gate", [[str(door)]] * 6)
    bad = push(redis_server, "TakeAll")
    env = {**journal.env, "MEMORY_GROUPS": str(memory_groups), "PYTHONPATH": str(CHECKOUT)}
    forkq = tree(redis_server, app=APP.read_text() + ENTERS_A_GROUP, config=CONFIG, env=env)
    wait_until(lambda: forkq.log_text().count("child died") == 2, what="two deaths")
    door.touch()
    groups = wait_found(redis, bad)
    assert groups[:2] == [7, 7]
    assert {line.jid for line in journal.lines("end")} == set(jids)
    assert sum(map(killed, memory_groups.glob("of-*"))) >= ALONE + 2


def wait_found(redis: Redis, bad: str) -> list[int]:
    """Until that job is buried, as the only one, after groups that were halved and three deaths
    alone. Returns how many ran together at each death with others."""
    wait_until(lambda: redis.zcard("dead") == 1, what="its burial", deadline=120)
    wait_settled(redis, deadline=120)
    [dead] = payloads(redis, "dead")
    assert dead["jid"] == bad
    crashes = dead["forkq"]["crashes"]
    groups = [crash["group"] for crash in crashes if "group" in crash]
    assert [crash.get("alone", False) for crash in crashes[-ALONE:]] == [True] * ALONE
    assert not any(crash.get("alone") for crash in crashes[:-ALONE])
    solo = groups[2:]  # the first two deaths are of ordinary children
    assert solo == sorted(solo, reverse=True)
    assert all(2 * after <= before for before, after in zip(groups[1:], solo, strict=False))
    return groups


def test_many_suspects_run_together_and_a_kill_counts_against_none(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal, tmp_path: Path
) -> None:
    """A person may kill as often as they like: nothing is buried."""
    door = tmp_path / "door"
    jids = push_many(redis_server, "Gate", [[str(door)]] * 100)
    forkq = tree(redis_server, app=APP, config=CONFIG, env=journal.env)
    journal.wait("begin", jids)
    for count in (2, 3):
        workers(forkq)[0].kill()
        if count == 2:
            wait_until(lambda: len(journal.lines("begin")) == 200, what="their second runs")

    def together() -> int:
        found: dict[int, set[str]] = defaultdict(set)
        ordinary = {child.pid for child in workers(forkq)}
        for line in journal.lines("begin")[200:]:
            if line.pid not in ordinary:
                found[line.pid].add(line.jid)
        return max(map(len, found.values()), default=0)

    wait_until(lambda: together() == MOST_TOGETHER, what="a whole group", deadline=60)
    assert len(suspects(redis)) <= 100 - MOST_TOGETHER
    before = len(journal.lines("begin"))
    solo_children(forkq)[0].kill()
    wait_until(lambda: len(journal.lines("begin")) > before, what="a run after that", deadline=60)
    forkq.wait_log("they run again in groups of half as many")
    door.touch()
    wait_settled(redis, deadline=120)
    assert redis.zcard("dead") == redis.zcard("retry") == 0
    assert Counter({line.jid for line in journal.lines("end")}) == Counter(jids)


def test_a_job_that_crashes_a_group_is_told_from_the_others_by_its_step(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal, tmp_path: Path
) -> None:
    """A fault signal says which one it was. That one runs alone from then on; the others stay a
    group, and have no further record."""
    door = tmp_path / "door"
    record = {"at": time.time(), "signal": 9, "jobs": 30, "group": 30}
    mark: Any = {"suspect": True, "crashes": [record, record]}
    jids = [push(redis_server, "Gate", str(door), forkq=mark) for _ in range(8)]
    bad = push(redis_server, "Segfault", forkq=mark)
    tree(redis_server, app=APP, config=CONFIG, env=journal.env)
    wait_until(lambda: redis.zcard("dead") == 1, what="its burial", deadline=120)
    [dead] = payloads(redis, "dead")
    assert dead["jid"] == bad
    later = dead["forkq"]["crashes"][2:]
    assert [crash.get("alone", False) for crash in later] == [False, True, True, True]
    assert "group" not in later[0]
    door.touch()
    wait_settled(redis, deadline=120)
    assert {line.jid for line in journal.lines("end")} == set(jids)
