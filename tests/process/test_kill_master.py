"""Invariants 1, 2 and 4 when the master dies: the children end by themselves, their jobs go back,
and a new master goes on at once."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
from redis import Redis

from tests.process.shared import (
    APP,
    Journal,
    leased,
    measured,
    push,
    push_many,
    wait_settled,
    waiting,
    workers,
)
from tests.support.printed import objects
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until, within


def test_idle_children_end_at_once_after_their_masters_death(
    redis_server: Server, redis: Redis, tree: StartTree
) -> None:
    """They remove their records from Redis."""
    forkq = tree(redis_server, app="import forkq", args=["-w", "3"])
    wait_until(lambda: redis.scard("processes") == 3, what="three records")
    kill_master(forkq)
    wait_until(lambda: not forkq.processes(), what="the children's end")  # before 25 s
    assert redis.scard("processes") == 0


def test_unfinished_jobs_go_back_in_order_when_the_master_is_killed(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """The children see it at once, interrupt their jobs at the deadline, requeue them, and exit."""
    forkq = tree(redis_server, app=APP, args=["-c", "3", "-t", "1"], env=journal.env)
    jids = push_many(redis_server, "Nap", [[60]] * 5)
    journal.wait("begin", jids[:3])
    kill_master(forkq)
    forkq.wait_log("the master is gone")
    wait_until(lambda: not forkq.processes(), deadline=1 + 5, what="the children's end")
    assert waiting(redis) == jids
    assert leased(redis) == []
    assert journal.jids("finally") == set(jids[:3])


def test_a_job_that_ends_in_time_is_finished_after_its_masters_death(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """It is finished and acknowledged while a new master runs already: it runs once."""
    door = journal.path.with_name("open")
    forkq = tree(redis_server, app=APP, args=["-c", "2", "-t", "60"], env=journal.env)
    jid = push(redis_server, "Gate", str(door))
    journal.wait("begin", [jid])
    kill_master(forkq)
    forkq.wait_log("the master is gone")
    started = time.monotonic()
    forkq.start().wait_ready()
    other = push(redis_server, "Quick", 0.001)
    journal.wait("end", [other])
    wait_until(lambda: leased(redis) == [jid], what="the other's acknowledgement")
    assert time.monotonic() - started < 60  # so long the job at the gate has
    door.touch()
    wait_settled(redis)
    assert [line.event for line in journal.lines() if line.jid == jid] == ["begin", "end"]
    assert forkq.stop() == 0
    forkq.assert_gone()


def test_masters_killed_under_load_lose_no_job(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """Three masters are killed, each followed by a `forkq start` at once: no job is lost, none runs
    twice."""
    args = ["-w", "2", "-c", "3", "-t", "20", "--log-level", "warning"]
    forkq = tree(redis_server, app=APP, args=args, env=journal.env)
    jids = push_many(redis_server, "Quick", [[0.005]] * 1500)
    for done in (200, 500, 800):
        _wait_ended(journal, done)
        kill_master(forkq)
        forkq.start()
    wait_settled(redis, deadline=60)
    assert journal.jids("end") == set(jids)
    assert all(len(runs) == 1 for runs in journal.runs().values()), "a graceful end repeats nothing"
    forkq.wait_ready()
    assert forkq.stop() == 0
    forkq.assert_gone()


def test_a_whole_tree_killed_at_once_is_recovered_by_the_next_start(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """No master is left to rescue the leases: the next clock returns them when it starts."""
    args = ["-w", "2", "-c", "2", "-t", "1"]
    forkq = tree(redis_server, app=APP, args=args, env=journal.env)
    wait_until(lambda: redis.scard("processes") == 2, what="both records")
    door = journal.path.with_name("open")
    jids = push_many(redis_server, "Gate", [[str(door)]] * 6)
    wait_until(lambda: len(journal.jids("begin")) == 4, what="four running jobs")
    kill_tree(forkq)
    assert len(leased(redis)) == 4
    shown = objects(forkq.run("running", "--json", "--redis", redis_server.url).stdout)
    assert {job["jid"] for job in shown} == set(leased(redis))  # no heartbeat tells of some
    door.touch()
    started = time.monotonic()
    forkq.start()
    journal.wait("end", jids)
    measured(f"all done {time.monotonic() - started:.1f} s after the new start")
    wait_settled(redis)
    assert sorted(len(runs) for runs in journal.runs().values()) == [1, 1, 2, 2, 2, 2]
    wait_until(lambda: redis.scard("processes") == 2, what="the records of the dead children to go")
    assert forkq.stop() == 0
    forkq.assert_gone()


def test_whole_trees_killed_under_load_lose_no_job(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """The same with short jobs: a job that ran twice was in flight at the kill."""
    args = ["-w", "2", "-c", "3", "-t", "1", "--log-level", "warning"]
    forkq = tree(redis_server, app=APP, args=args, env=journal.env)
    wait_until(lambda: redis.scard("processes") == 2, what="both records")
    jids = push_many(redis_server, "Quick", [[0.003]] * 1000)
    _wait_ended(journal, 300)
    old = {child.pid for child in workers(forkq)}
    kill_tree(forkq)
    in_flight = set(leased(redis))
    forkq.start()
    journal.wait("end", jids, deadline=60)
    wait_settled(redis)
    twice = {jid: runs for jid, runs in journal.runs().items() if len(runs) > 1}
    assert set(twice) <= in_flight
    assert all(len(runs) == 2 and runs[0].pid in old for runs in twice.values())
    forkq.wait_ready()
    assert forkq.stop() == 0
    forkq.assert_gone()


def test_children_that_cannot_be_interrupted_end_too_when_the_master_is_dead(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """No master kills them: they end by themselves, and the next start recovers the jobs."""
    forkq = tree(redis_server, app=APP, args=["-c", "2", "-t", "0.5"], env=journal.env)
    wait_until(lambda: redis.scard("processes") == 1, what="its record")
    jids = [push(redis_server, "Block", 60), push(redis_server, "Stubborn")]
    journal.wait("begin", jids)
    killed = time.monotonic()
    kill_master(forkq)
    wait_until(lambda: not forkq.processes(), deadline=5.5, what="the children's end")
    assert time.monotonic() - killed <= within(0.5 + 5)
    assert sorted(leased(redis)) == sorted(jids)
    begun = len(journal.lines("begin"))
    forkq.start()
    wait_until(lambda: len(journal.lines("begin")) == begun + 2, what="both jobs again")
    runs = journal.runs()
    for jid in jids:
        assert runs[jid][1].at > max(
            line.at for line in journal.lines() if line.pid == runs[jid][0].pid
        )


def kill_master(tree: ForkqTree) -> None:
    """SIGKILL to the master alone."""
    tree.signal(signal.SIGKILL)
    assert tree.wait() == -signal.SIGKILL


def kill_tree(tree: ForkqTree) -> None:
    """SIGKILL to all of its processes, the master first: none has time to clean up."""
    everyone = [psutil.Process(tree.pid), *tree.children()]
    for process in everyone:
        process.suspend()
    for process in everyone:
        process.kill()
    assert tree.wait() == -signal.SIGKILL
    wait_until(lambda: not tree.processes(), what="the end of the tree")
    assert list(Path(tree.runtime).glob("**/*.pid")), "a killed master cannot remove its pidfile"


def _wait_ended(journal: Journal, count: int) -> None:
    wait_until(
        lambda: len(journal.lines("end")) >= count, deadline=60, what=f"{count} jobs", every=0.02
    )
