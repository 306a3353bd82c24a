"""Invariants 2 and 4: from TERM to the last process gone, with jobs that resist in each way."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

import psutil
import pytest
from redis import Redis

from tests.process.shared import (
    APP,
    Journal,
    counter,
    leased,
    measured,
    pass_time,
    push,
    push_many,
    wait_settled,
    waiting,
    workers,
)
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until, within

BEYOND = 5.0  # what a stop may take beyond the time-out
INTERRUPTIBLE = {"Nap", "Spin"}


def test_signals_that_come_while_a_stopped_master_ends_change_nothing(
    redis_server: Server, tree: StartTree
) -> None:
    """Python gives signals their default actions back while it ends."""
    forkq = tree(redis_server, app="", args=["-t", "1"])
    while forkq.process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(forkq.process.pid, signal.SIGTERM)
        pass_time(0.002)
    assert forkq.wait() == 0
    forkq.assert_gone()


def test_an_idle_tree_stops_at_once(redis_server: Server, redis: Redis, tree: StartTree) -> None:
    """It does not wait for its time-out."""
    forkq = tree(redis_server, app="import forkq", args=["-w", "4", "-c", "10"])
    began = time.monotonic()
    assert forkq.stop() == 0
    spent = time.monotonic() - began
    measured(f"idle stop of 4 children: {spent * 1e3:.0f} ms")
    assert spent < within(BEYOND)  # the time-out is 25 s
    forkq.assert_gone(deadline=0.5)
    assert redis.scard("processes") == 0


@pytest.mark.parametrize(
    "jobs",
    [
        [("Nap", [60]), ("Nap", [60]), ("Nap", [60])],
        [("Spin", []), ("Nap", [60])],
        [("Hold", [60])],
        pytest.param([("Regex", [])], marks=pytest.mark.slow),  # holds the interpreter, as Hold
        [("Nap", [60]), ("Block", [60]), ("Stubborn", []), ("Spin", [])],
    ],
    ids=lambda jobs: "-".join(name for name, _ in jobs),
)
def test_unfinished_jobs_are_back_at_the_head_in_order(
    redis_server: Server,
    redis: Redis,
    tree: StartTree,
    journal: Journal,
    jobs: list[tuple[str, list[Any]]],
) -> None:
    """In time, and none is acknowledged. `finally` has run in those that can be interrupted."""
    args = ["-c", str(len(jobs)), "-t", "1"]
    forkq = tree(redis_server, app=APP, args=args, env=journal.env)
    running = [push(redis_server, name, *args) for name, args in jobs]
    journal.wait("begin", running)
    behind = push_many(redis_server, "Quick", [[0.001]] * 3)
    began = time.monotonic()
    assert forkq.stop() == 0
    spent = time.monotonic() - began
    measured(f"stopped after {spent:.2f} s")
    assert spent <= within(1 + BEYOND)
    forkq.assert_gone(deadline=0.2)
    assert waiting(redis) == [*running, *behind]
    assert leased(redis) == []
    polite = {jid for jid, (name, _) in zip(running, jobs, strict=True) if name in INTERRUPTIBLE}
    assert journal.jids("finally") == polite
    assert not journal.jids("end")
    assert (counter(redis, "processed"), counter(redis, "failed")) == (0, 0)
    assert not redis.zcard("retry")
    assert not redis.zcard("dead")
    assert not any(b"crashes" in payload for payload in redis.lrange("queue:default", 0, -1))
    assert redis.scard("processes") == 0


def test_four_children_full_of_every_kind_end_in_time(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """All children have one deadline. No job is lost, no process is left."""
    args = ["-w", "4", "-c", "3", "-t", "1", "--log-level", "warning"]
    forkq = tree(redis_server, app=APP, args=args, env=journal.env)
    kinds: list[tuple[str, list[Any]]] = [
        ("Nap", [60]),
        ("Stubborn", []),
        ("Block", [60]),
        ("Spin", []),
    ]
    running = [push(redis_server, name, *arguments) for name, arguments in kinds * 3]
    journal.wait("begin", running, deadline=30)
    behind = push(redis_server, "Quick", 0.001)
    began = time.monotonic()
    assert forkq.stop() == 0
    spent = time.monotonic() - began
    measured(f"stopped after {spent:.2f} s")
    assert spent <= within(1 + BEYOND)
    forkq.assert_gone(deadline=0.2)
    assert set(waiting(redis)[:-1]) == set(running)
    assert waiting(redis)[-1] == behind
    assert leased(redis) == []


def test_a_requeued_job_never_runs_in_two_places(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """Another tree takes the jobs as soon as they are back. Their first owner must be frozen by
    then, and must never finish them."""
    args = ["-c", "4", "-t", "0.5"]
    first = tree(redis_server, app=APP, args=args, env=journal.env)
    jids = [push(redis_server, name) for name in ("Stubborn", "Stubborn", "Spin")]
    jids.append(push(redis_server, "Nap", 60))
    journal.wait("begin", jids)
    second = tree(redis_server, app=APP, args=args, env=journal.env)
    (old,) = workers(first)
    assert first.stop() == 0
    wait_until(
        lambda: all(len(runs) == 2 for runs in journal.runs().values()), what="all jobs again"
    )
    for jid, (run, rerun) in journal.runs().items():
        assert run.pid == old.pid
        last = max(line.at for line in journal.lines() if (line.jid, line.pid) == (jid, old.pid))
        assert last < rerun.at, f"{jid} still ran {last - rerun.at:.3f} s after it began elsewhere"
    assert sorted(leased(redis)) == sorted(jids)
    assert second.alive


def test_jobs_that_end_within_the_time_out_are_finished_and_acknowledged(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """`forkq.stopping()` is true for them. No new job begins meanwhile, and the stop ends when they
    have."""
    forkq = tree(redis_server, app=APP, args=["-c", "2", "-t", "60"], env=journal.env)
    door = journal.path.with_name("open")
    jids = [push(redis_server, "Polite"), push(redis_server, "Gate", str(door))]
    journal.wait("begin", jids)
    behind = push_many(redis_server, "Quick", [[0.001]] * 4)
    began = time.monotonic()
    forkq.signal(signal.SIGTERM)
    journal.wait("end", jids[:1])  # now the child knows of the stop
    door.touch()
    assert forkq.wait() == 0
    assert time.monotonic() - began < 60  # the time-out
    assert journal.jids("end") == set(jids)
    assert waiting(redis) == behind
    assert leased(redis) == []
    assert counter(redis, "processed") == 2


@pytest.mark.parametrize("children", [1, 2])
def test_stop_under_load_neither_loses_nor_repeats(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal, children: int
) -> None:
    """The jobs that have begun are finished and acknowledged, the others wait. Each child keeps the
    order of what it puts back."""
    args = ["-w", f"{children}", "-c", "5", "--log-level", "warning"]
    forkq = tree(redis_server, app=APP, args=args, env=journal.env)
    jids = push_many(redis_server, "Quick", [[0.002]] * 2000)
    wait_until(lambda: len(journal.lines("end")) > 300, what="300 jobs")
    assert forkq.stop() == 0
    done = journal.jids("end")
    assert set(journal.runs()) == done
    left = [jid for jid in jids if jid not in done]
    assert sorted(waiting(redis)) == sorted(left)
    assert children > 1 or waiting(redis) == left
    assert leased(redis) == []
    assert counter(redis, "processed") == len(done)
    assert all(len(runs) == 1 for runs in journal.runs().values())


def test_a_stop_while_the_children_still_boot(redis_server: Server, tree: StartTree) -> None:
    """An app that takes long to import does not delay the stop beyond its limit."""
    app = "import time\nprint('importing', flush=True)\ntime.sleep(60)\n"
    forkq = tree(redis_server, app=app, args=["-t", "0.5"], ready=False)
    forkq.wait_log("importing")
    began = time.monotonic()
    forkq.stop()
    assert time.monotonic() - began <= within(0.5 + BEYOND)
    forkq.assert_gone(deadline=0.2)


def test_a_stop_while_a_child_is_frozen_from_outside(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """It cannot obey, so the master kills it; its jobs go back."""
    forkq = tree(redis_server, app=APP, args=["-c", "1", "-t", "0.5"], env=journal.env)
    jid = push(redis_server, "Nap", 60)
    journal.wait("begin", [jid])
    (child,) = workers(forkq)
    child.suspend()
    began = time.monotonic()
    assert forkq.stop() == 0
    assert time.monotonic() - began <= within(0.5 + BEYOND)
    forkq.assert_gone(deadline=0.2)
    assert waiting(redis) == [jid]


@pytest.mark.parametrize("job", ["Nap", "Stubborn"])
def test_a_stop_while_redis_hangs_is_in_time(
    own_server: Server, tree: StartTree, journal: Journal, job: str
) -> None:
    """Redis sends no answer, not even an error. The leases stay, the next start runs the jobs."""
    forkq = tree(own_server, app=APP, args=["-w", "2", "-c", "1", "-t", "0.5"], env=journal.env)
    redis = own_server.client()
    wait_until(lambda: redis.scard("processes") == 2, what="both records")
    jids = push_many(own_server, job, [[60], [60]] if job == "Nap" else [[], []])
    journal.wait("begin", jids)
    own_server.pause()
    began = time.monotonic()
    forkq.stop()
    spent = time.monotonic() - began
    measured(f"stopped after {spent:.2f} s")
    assert spent <= within(0.5 + BEYOND)
    forkq.assert_gone(deadline=0.2)
    own_server.resume()
    redis.ping()  # what the tree has sent before is done by the next command
    if leased(redis):
        told = "jobs stay leased in redis; the next start gives them back"
        [line] = [line for line in forkq.log_text().splitlines() if told in line]
        assert line.endswith(f"jobs={len(leased(redis))}")
    assert sorted([*waiting(redis), *leased(redis)]) == sorted(jids)
    begun = len(journal.lines("begin"))
    forkq.start()
    wait_until(lambda: len(journal.lines("begin")) == begun + 2, what="both jobs again")


def test_a_job_that_keeps_its_child_from_telling_is_counted(
    redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """It holds the interpreter's lock, so the child can report neither it nor the stop."""
    forkq = tree(redis_server, app=APP, args=["-c", "3", "-t", "0"], env=journal.env)
    journal.wait("begin", [push(redis_server, "Quick", 0)])
    journal.wait("begin", [push(redis_server, "Hold", 60)])
    assert forkq.stop() == 0
    forkq.wait_log("jobs ignore the stop; freezing.* jobs=1")


def test_a_stop_without_jobs_says_of_none_that_it_stays(
    own_server: Server, tree: StartTree
) -> None:
    """Redis is away, so the children cannot say goodbye; but they had nothing leased."""
    forkq = tree(own_server, app="import forkq", args=["-w", "2", "-t", "0.5"])
    redis = own_server.client()
    wait_until(lambda: redis.scard("processes") == 2, what="both records")
    own_server.pause()
    forkq.stop()
    own_server.resume()
    assert "jobs stay leased" not in forkq.log_text()
    forkq.wait_log("redis did not take the last counts; no job is known to stay leased")


def test_a_killing_child_during_the_stop_changes_nothing(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """A child that dies while the tree stops is not replaced, but its job goes back."""
    forkq = tree(redis_server, app=APP, args=["-w", "2", "-c", "1", "-t", "1"], env=journal.env)
    jids = push_many(redis_server, "Nap", [[60]] * 2)
    journal.wait("begin", jids)
    victim = workers(forkq)[0]
    forkq.signal(signal.SIGTERM)
    forkq.wait_log("stopping")
    with contextlib.suppress(psutil.NoSuchProcess):  # on a slow machine the stop may be over
        victim.kill()
    assert forkq.wait(deadline=1 + BEYOND) == 0
    forkq.assert_gone(deadline=0.2)
    assert sorted(waiting(redis)) == sorted(jids)
    assert len(journal.lines("begin")) == 2


def test_a_tree_stopped_and_started_runs_everything(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """A job that a stop interrupts runs again, and none is lost."""
    forkq = tree(redis_server, app=APP, args=["-c", "4", "-t", "0"], env=journal.env)
    jids = push_many(redis_server, "Nap", [[0.3]] * 8)
    wait_until(lambda: len(journal.lines("begin")) >= 4, what="running jobs")
    assert forkq.stop() == 0
    assert sorted(waiting(redis)) == sorted(set(jids) - journal.jids("end"))
    forkq.start().wait_ready()
    wait_settled(redis)
    assert journal.jids("end") == set(jids)
    ended = [line.jid for line in journal.lines("end")]
    assert len(ended) == len(set(ended)), "finished twice"
    assert forkq.stop() == 0


def test_no_zombie_and_no_open_door_is_left(redis_server: Server, tree: StartTree) -> None:
    """The whole session is gone, and the pidfile, the status file and the URL file."""
    forkq: ForkqTree = tree(redis_server, app="import forkq", args=["-w", "2"])
    everyone = [psutil.Process(forkq.pid), *forkq.children()]
    assert forkq.stop() == 0
    assert not [process for process in everyone if process.is_running()]
    assert not [path for path in forkq.runtime.rglob("*") if path.is_file()]
