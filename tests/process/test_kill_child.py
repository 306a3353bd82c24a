"""Invariants 1 and 2 when children die: no job is lost, and none runs again without need."""

from __future__ import annotations

import json
import random
import signal
import time
from itertools import pairwise
from typing import Any

import psutil
import pytest
from redis import Redis

from tests.process.random_kills import RandomKills
from tests.process.shared import (
    APP,
    Journal,
    counter,
    leased,
    measured,
    payloads,
    push,
    push_many,
    settled,
    title,
    wait_settled,
    wait_swept,
    waiting,
    workers,
    zombies,
)
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until, within


def test_children_killed_one_after_the_other_lose_no_job(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """4,000 jobs of 1 to 5 ms, a SIGKILL every 300 ms: no job is lost. Only the jobs in flight run
    twice, and they do so at once."""
    rows = [[random.uniform(0.001, 0.005)] for _ in range(4000)]
    jids = push_many(redis_server, "Quick", rows)
    args = ["-w", "4", "-c", "2", "--log-level", "warning"]
    forkq = tree(redis_server, app=APP, args=args, env=journal.env)
    random_kills = RandomKills(forkq, redis, journal)

    def is_over() -> bool:
        if settled(redis) and len(random_kills.kills) < 3:  # this process is slower than the jobs
            jids.extend(push_many(redis_server, "Quick", rows))
        return settled(redis)

    random_kills.run(every=0.3, until=is_over, deadline=150)
    assert len(random_kills.kills) >= 3
    random_kills.assert_nothing_lost(jids)
    random_kills.assert_only_the_killed_ran_twice(jids)
    median = random_kills.median_return()
    measured(
        f"{len(random_kills.kills)} kills, {random_kills.reruns()} jobs again, "
        f"median {median * 1e3:.1f} ms"
    )
    assert median < within(5)  # a sweep would take 15 s
    assert forkq.stop() == 0
    forkq.assert_gone()


def test_the_jobs_of_a_killed_child_run_again_at_once_in_another_one(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """They go back before the replacement is ready, each with a crash record. The jobs of other
    children are not touched."""
    args = ["-w", "2", "-c", "2", "-t", "1"]
    forkq = tree(redis_server, app=APP, args=args, env=journal.env)
    mine = push_many(redis_server, "Gate", [[str(journal.path.with_name("open"))]] * 4)
    journal.wait("begin", mine)
    victim = workers(forkq)[0]
    lost = {line.jid for line in journal.lines("begin") if line.pid == victim.pid}
    assert len(lost) == 2
    wait_swept(redis, forkq)
    killed = time.monotonic()
    victim.kill()
    wait_until(lambda: len(journal.lines("begin")) == 6, what="the dead child's two jobs again")
    again = journal.lines("begin")[4:]
    assert {line.jid for line in again} == lost
    assert min(line.at for line in again) - killed < within(5)  # a sweep would take 15 s
    records: dict[str, Any] = {p["jid"]: p.get("forkq") for p in _in_flight(redis)}
    assert set(records) == set(mine)
    for jid in mine:
        if jid not in lost:
            assert records[jid] is None
            continue
        (crash,) = records[jid]["crashes"]
        assert (crash["signal"], crash["exit"]) == (9, None)
        assert crash["rss"] > 1000
        assert crash["host"]
        assert abs(crash["at"] - time.time()) < 30
    journal.path.with_name("open").touch()
    wait_settled(redis)
    assert journal.jids("end") == set(mine)
    wait_until(lambda: len(workers(forkq)) == 2, what="the replacement")
    assert not zombies(forkq)
    assert forkq.stop() == 0
    assert counter(redis, "processed") == 4


def test_jobs_that_a_killed_child_had_leased_ahead_are_no_suspects(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """They had not begun, so they do not run in a solo child, as the one that killed it does."""
    push_many(redis_server, "Quick", [[0]] * 2000)
    bad = push(redis_server, "Die", int(signal.SIGKILL), crashes=1)
    behind = push_many(redis_server, "Quick", [[0]] * 500)
    forkq = tree(redis_server, app=APP, args=["-c", "1", "-t", "1"], env=journal.env)
    journal.wait("end", behind)
    wait_until(lambda: payloads(redis, "dead"), what="the burial")
    runs = journal.runs()
    assert len(runs[bad]) == 2
    (second,) = workers(forkq)
    assert {line.pid for jid in behind for line in runs[jid]} == {second.pid}


@pytest.mark.parametrize(
    ("name", "args", "reason", "crash"),
    [
        ("Die", [int(signal.SIGKILL)], "signal 9", (9, None)),
        ("Exit", [7], "exit code 7", (None, 7)),
        ("Segfault", [], "signal 11", (11, None)),
    ],
)
def test_a_job_that_crashes_three_children_is_buried_with_the_reason(
    redis: Redis,
    redis_server: Server,
    tree: StartTree,
    journal: Journal,
    name: str,
    args: list[Any],
    reason: str,
    crash: tuple[int | None, int | None],
) -> None:
    """It is buried after the third crash within 72 h in a child of its own, and the tree goes on
    with the next job."""
    forkq = tree(redis_server, app=APP, args=["-c", "1", "-t", "1"], env=journal.env)
    wait_swept(redis, forkq)
    bad = push(redis_server, name, *args)
    good = push(redis_server, "Quick", 0.001)
    journal.wait("end", [good])
    (dead,) = wait_until(lambda: payloads(redis, "dead"), what="the burial")
    assert dead["jid"] == bad
    assert len(journal.runs()[bad]) == 4
    crashes = dead["forkq"]["crashes"]
    assert [(c["signal"], c["exit"]) for c in crashes] == [crash] * 4
    assert reason in dead["error_message"]
    assert "3 times" in dead["error_message"]
    wait_settled(redis)
    wait_until(lambda: _respawns(forkq) == 1, what="the respawn in the status")
    assert forkq.stop() == 0


def test_a_child_that_crashes_again_and_again_is_replaced_with_growing_pauses(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Children that boot and then crash do not make a busy loop."""
    forkq = tree(redis_server, app=APP, args=["-c", "1", "-t", "1"], env=journal.env)
    jids = push_many(redis_server, "Die", [[9]] * 6)
    wait_until(lambda: redis.zcard("dead") == 6, deadline=60, what="all jobs dead")
    runs = journal.runs()
    assert {jid: len(runs[jid]) for jid in jids} == dict.fromkeys(jids, 4)
    first_runs = sorted(min(line.at for line in runs[jid]) for jid in jids)
    gaps = [later - earlier for earlier, later in pairwise(first_runs)]
    # Pauses of 0.1, 0.2, 0.4, 0.8, 1 s at most, and no less than half of that.
    for gap, ceiling in zip(gaps, (0.1, 0.2, 0.4, 0.8, 1.0), strict=True):
        assert gap >= ceiling / 2
    assert forkq.alive
    wait_until(lambda: len(workers(forkq)) == 1, what="the child again")
    assert forkq.stop() == 0


def test_term_to_one_child_stops_it_gracefully_and_it_is_replaced(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Its running job ends there, and its title says that it stops. The other child goes on."""
    forkq = tree(redis_server, app=APP, args=["-w", "2", "-c", "1"], env=journal.env)
    door = journal.path.with_name("open")
    jids = push_many(redis_server, "Gate", [[str(door)]] * 2)
    journal.wait("begin", jids)
    old, sibling = workers(forkq)
    old.terminate()
    wait_until(lambda: "stopping" in title(old), what="its title to say that it stops")
    assert sorted(leased(redis)) == sorted(jids)
    door.touch()
    wait_until(lambda: not psutil.pid_exists(old.pid), what="its end")
    wait_settled(redis)
    wait_until(lambda: len(workers(forkq)) == 2, what="its replacement")
    assert sibling in workers(forkq)
    assert len(journal.lines("begin")) == len(journal.lines("end")) == 2
    assert "child died" not in forkq.log_text()
    assert forkq.stop() == 0


def test_term_to_one_child_returns_its_unfinished_job_without_a_crash_record(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """A graceful requeue is no crash: after many of them the job is not buried."""
    forkq = tree(redis_server, app=APP, args=["-c", "1", "-t", "0.1"], env=journal.env)
    jid = push(redis_server, "Nap", 60)
    for count in range(1, 4):
        wait_until(lambda n=count: len(journal.runs()[jid]) == n, what=f"run {count}")  # type: ignore[misc]
        workers(forkq)[0].terminate()
    wait_until(lambda: len(journal.runs()[jid]) == 4, what="the fourth run")
    assert forkq.stop() == 0
    assert waiting(redis) == [jid]
    payload: Any = redis.lindex("queue:default", 0)
    assert "forkq" not in json.loads(payload)
    assert redis.zcard("dead") == 0
    assert len(journal.lines("finally")) == 4


def test_a_child_that_another_process_stops_is_not_replaced(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """A stopped process (SIGSTOP, a debugger) keeps its jobs: otherwise they would run in two
    places."""
    forkq = tree(redis_server, app=APP, args=["-c", "1", "-t", "1"], env=journal.env)
    door = journal.path.with_name("open")
    jid = push(redis_server, "Gate", str(door))
    journal.wait("begin", [jid])
    (child,) = workers(forkq)
    child.suspend()
    wait_until(lambda: child.status() == psutil.STATUS_STOPPED, what="its halt")
    assert leased(redis) == [jid]
    child.resume()
    door.touch()
    journal.wait("end", [jid])
    assert len(journal.runs()[jid]) == 1
    assert forkq.stop() == 0


def _respawns(tree: ForkqTree) -> int:
    found = [child for child in tree.status().get("children", []) if child["concurrency"]]
    return sum(child["respawns"] for child in found)


def _in_flight(redis: Redis) -> list[dict[str, Any]]:
    found: Any = redis.hvals("{queue:default}:inflight")
    return [json.loads(payload) for payload in found]
