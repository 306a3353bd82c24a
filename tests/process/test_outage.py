"""Invariant 5: Redis stopped, hung, cut off or full. No process ends, none spins, nothing is lost,
and the log says it twice: once when Redis goes, once when it is back."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from forkq.errors import ServerFull
from tests.process.shared import (
    APP,
    Journal,
    counter,
    cpu_seconds,
    events,
    leased,
    measured,
    pass_time,
    payloads,
    push,
    push_many,
    settled,
    wait_events,
    wait_settled,
    waiting,
    workers,
)
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until, within

LOST, BACK = "redis lost", "redis is back"
REFUSED, ACCEPTED = "redis takes no heartbeat", "redis takes heartbeats again"
JSON = ["--log-format", "json", "--log-level", "info"]
QUIET_JSON = ["--log-format", "json", "--log-level", "warning"]


@pytest.mark.parametrize("way", ["stop", "pause"])
def test_redis_gone_for_a_while_and_back(
    own_server: Server, tree: StartTree, journal: Journal, way: str
) -> None:
    """Stopped and restarted with its AOF, or hung: jobs that ran meanwhile are acknowledged late
    but once, the rest runs later; idle and busy children use next to no processor time."""
    args = ["-w", "2", "-c", "2", *JSON]
    config = "[redis]\ntimeout = 2\n"
    forkq = tree(own_server, app=APP, args=args, env=journal.env, config=config)
    redis = own_server.client()
    door = journal.path.with_name("open")
    first = push_many(own_server, "Gate", [[str(door)]] * 4)
    journal.wait("begin", first)
    rest = push_many(own_server, "Quick", [[0.001]] * 50)
    everyone = [psutil.Process(forkq.pid), *forkq.children()]
    getattr(own_server, way)()
    door.touch()
    wait_events(forkq, LOST, 3)
    used = cpu_seconds(everyone)
    pass_time(3)
    used = cpu_seconds(everyone) - used
    measured(f"4 processes used {used:.2f} s of processor time in 3 s without redis")
    assert used < 0.6
    journal.wait("end", first)  # jobs under way end in their time
    assert journal.jids("end") == set(first)
    wait_until(lambda: "redis: lost by 3 of 3 children" in forkq.run("status").stdout, what="lost")
    if way == "stop":
        own_server.start()
    else:
        own_server.resume()
    wait_settled(redis, deadline=60)
    assert journal.jids("end") == {*first, *rest}
    assert all(len(runs) == 1 for runs in journal.runs().values())
    assert [psutil.Process(forkq.pid), *forkq.children()] == everyone, "a process ended"
    wait_events(forkq, BACK, 3)
    wait_until(lambda: "redis: lost" not in forkq.run("status").stdout, what="back")
    assert_one_line_each(forkq)
    assert all(line["downtime"] >= 2.5 for line in events(forkq, BACK))
    assert forkq.stop() == 0
    assert counter(redis, "processed") == 54


def test_a_scheduled_job_due_during_an_outage_runs_after_it(
    own_server: Server, tree: StartTree, journal: Journal
) -> None:
    """The clock too outlives Redis."""
    forkq = tree(own_server, app=APP, args=JSON, env=journal.env)
    jid = push(own_server, "Quick", 0.001, at=time.time() + 0.5)
    own_server.stop()
    wait_events(forkq, LOST, 2)
    pass_time(0.5)
    own_server.start()
    journal.wait("end", [jid], deadline=60)
    wait_events(forkq, BACK, 2)
    assert_one_line_each(forkq)
    assert forkq.stop() == 0


def test_connections_killed_again_and_again_under_load(
    own_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Every reply may be the one that is lost: jobs may run twice then, but never not at all."""
    args = ["-w", "2", "-c", "5", *QUIET_JSON]
    forkq = tree(own_server, app=APP, args=args, env=journal.env)
    redis = own_server.client()
    jids = push_many(own_server, "Quick", [[0.002]] * 2000)
    everyone = [psutil.Process(forkq.pid), *forkq.children()]
    kills = 0

    def cut() -> bool:
        nonlocal kills
        if kills <= 5:  # so that each of the first cuts strikes jobs, however fast they are
            jids.extend(push_many(own_server, "Quick", [[0.002]] * 200))
        own_server.cli("CLIENT", "KILL", "TYPE", "normal")
        kills += 1
        return kills > 5 and settled(redis)

    wait_until(cut, deadline=90, every=0.15, what="the end of the jobs")
    assert kills > 5
    assert set(jids) == journal.jids("end")
    assert not redis.zcard("retry")
    assert not redis.zcard("dead")
    twice = sum(len(runs) - 1 for runs in journal.runs().values())
    measured(f"{kills} times all connections killed: {twice} jobs ran twice")
    assert twice == 0, "a lost reply is no reason to run a job again: its lease tells"
    assert [psutil.Process(forkq.pid), *forkq.children()] == everyone
    assert forkq.stop() == 0


def test_connections_killed_while_jobs_fail(
    own_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Each failed job is in the retry or dead set exactly once, also after a lost reply."""
    forkq = tree(own_server, app=APP, args=["-c", "5", *QUIET_JSON], env=journal.env)
    redis = own_server.client()
    retried = push_many(own_server, "Fail", [["x", True]] * 200)
    buried = push_many(own_server, "Buried", [["x"]] * 200, retry=0)
    kills = 0

    def cut() -> bool:
        nonlocal kills
        own_server.cli("CLIENT", "KILL", "TYPE", "normal")
        kills += 1
        return kills == 8 or settled(redis)

    wait_until(cut, every=0.1, what="eight cuts")
    wait_settled(redis, deadline=60)
    assert sorted(job["jid"] for job in payloads(redis, "retry")) == sorted(retried)
    assert sorted(job["jid"] for job in payloads(redis, "dead")) == sorted(buried)
    assert forkq.stop() == 0


def test_a_full_redis_goes_on_working_under_load(
    own_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Fetching, acknowledging, retrying and burying need no new memory, so they go on; pushing is
    refused. Afterwards the counters have caught up."""
    args = ["-w", "2", "-c", "5", *QUIET_JSON]
    forkq = tree(own_server, app=APP, args=args, env=journal.env)
    redis = own_server.client()
    wait_until(lambda: redis.scard("processes") == 2, what="both records")
    everyone = [psutil.Process(forkq.pid), *forkq.children()]
    jids = push_many(own_server, "Quick", [[0.003]] * 1000)
    retried = push_many(own_server, "Fail", [["x", True]] * 50)
    buried = push_many(own_server, "Buried", [["x"]] * 50, retry=0)
    with full(own_server):
        with pytest.raises(ServerFull):
            push(own_server, "Quick", 0.001)
        wait_settled(redis, deadline=60)
        assert journal.jids("end") == set(jids)
        assert sorted(job["jid"] for job in payloads(redis, "retry")) == sorted(retried)
        assert sorted(job["jid"] for job in payloads(redis, "dead")) == sorted(buried)
        used = cpu_seconds(everyone)
        pass_time(1)
        assert cpu_seconds(everyone) - used < 0.3
    assert [psutil.Process(forkq.pid), *forkq.children()] == everyone
    late = push(own_server, "Quick", 0.001)
    journal.wait("end", [late])
    assert forkq.stop() == 0
    assert counter(redis, "processed") == 1101
    assert counter(redis, "failed") == 100


def test_a_redis_that_stays_full_is_logged_once(
    own_server: Server, tree: StartTree, journal: Journal
) -> None:
    """What is refused of a heartbeat, while fetches work, is said once and not with every beat."""
    forkq = tree(own_server, app=APP, args=["-c", "2", *JSON], env=journal.env)
    redis = own_server.client()
    wait_until(lambda: redis.scard("processes") == 1, what="its record")
    door = journal.path.with_name("open")  # a job that runs at every beat, for :work to be refused
    jids = [push(own_server, "Gate", str(door))]
    journal.wait("begin", jids)
    jids += push_many(own_server, "Quick", [[0.01]] * 2000)
    with full(own_server):
        wait_events(forkq, REFUSED, deadline=60)
        began = len(journal.lines("end"))
        wait_until(lambda: len(journal.lines("end")) > began + 50, what="more jobs")
        assert not events(forkq, ACCEPTED)
        assert redis.scard("processes") == 1
    forkq.signal(signal.SIGTSTP)  # a child that goes quiet beats at once
    wait_events(forkq, ACCEPTED)
    door.touch()
    assert len(events(forkq, REFUSED)) == len(events(forkq, ACCEPTED)) == 1
    assert not events(forkq, LOST)
    assert set(journal.runs()) <= set(jids)
    assert forkq.stop() == 0


def test_children_killed_while_redis_is_full_lose_no_job(
    own_server: Server, tree: StartTree, journal: Journal
) -> None:
    """The rescue's script starts with a removal too."""
    forkq = tree(own_server, app=APP, args=["-w", "2", "-c", "2", *JSON], env=journal.env)
    redis = own_server.client()
    wait_until(lambda: redis.scard("processes") == 2, what="both records")
    door = journal.path.with_name("open")
    jids = push_many(own_server, "Gate", [[str(door)]] * 4)
    journal.wait("begin", jids)
    with full(own_server):
        for child in workers(forkq):
            child.kill()
        wait_until(lambda: len(journal.lines("begin")) == 8, what="all jobs again")
        door.touch()
        wait_settled(redis)
    assert journal.jids("end") == set(jids)
    assert forkq.stop() == 0


def test_children_killed_while_redis_is_away_lose_no_job(
    own_server: Server, tree: StartTree, journal: Journal
) -> None:
    """The rescue waits for Redis and says so once; the children are replaced meanwhile."""
    forkq = tree(own_server, app=APP, args=["-w", "2", "-c", "2", *JSON], env=journal.env)
    redis = own_server.client()
    door = journal.path.with_name("open")
    jids = push_many(own_server, "Gate", [[str(door)]] * 4)
    journal.wait("begin", jids)
    own_server.stop()
    old = workers(forkq)
    for child in old:
        child.kill()
    wait_until(lambda: len(set(workers(forkq)) - set(old)) == 2, what="replacements")
    assert not set(old) & set(workers(forkq))
    wait_events(forkq, "rescue waits for redis")
    door.touch()
    own_server.start()
    journal.wait("end", jids, deadline=60)
    wait_settled(redis)
    assert len(events(forkq, "rescue waits for redis")) == 1
    assert len(wait_events(forkq, "jobs rescued", 2)) == 2
    assert forkq.stop() == 0


def test_stop_while_redis_is_away_is_in_time_and_loses_nothing(
    own_server: Server, tree: StartTree, journal: Journal
) -> None:
    """The leases stay in Redis, and the next start runs the jobs."""
    forkq = tree(own_server, app=APP, args=["-c", "3", "-t", "0.5", *JSON], env=journal.env)
    redis = own_server.client()
    wait_until(lambda: redis.scard("processes") == 1, what="its record")
    jids = [push(own_server, "Nap", 60), push(own_server, "Stubborn")]
    journal.wait("begin", jids)
    own_server.stop()
    began = time.monotonic()
    forkq.stop()
    assert time.monotonic() - began <= within(0.5 + 5)
    forkq.assert_gone(deadline=0.2)
    own_server.start()
    assert sorted(leased(redis)) == sorted(jids)
    begun = len(journal.lines("begin"))
    forkq.start()
    wait_until(lambda: len(journal.lines("begin")) == begun + 2, deadline=60, what="both again")


def test_a_start_without_redis_waits_for_it(
    own_server: Server, tree: StartTree, journal: Journal
) -> None:
    """It says where it looked and what helps, and is ready, but says for what it waits. Once Redis
    is there, jobs run."""
    own_server.stop()
    forkq = tree(own_server, app=APP, args=JSON, env=journal.env, ready=False)
    (line,) = wait_events(forkq, "redis cannot be reached; waiting for it")
    assert line["url"] == own_server.url
    assert "--redis embedded" in line["hint"]
    forkq.wait_ready()
    (line,) = wait_events(forkq, "ready")
    assert line["redis"] == "lost by 1 of 1 children: they run no job until it is back"
    assert line["level"] == "warning"
    own_server.start()
    jid = push(own_server, "Quick", 0.001)
    journal.wait("end", [jid], deadline=60)
    assert "Traceback" not in forkq.log_text()
    assert len(events(forkq, "ready")) == 1
    assert forkq.stop() == 0
    forkq.start()
    line = wait_events(forkq, "ready", 2)[1]
    assert (line["level"], "redis" in line) == ("info", False)
    assert not waiting(own_server.client())


def assert_one_line_each(tree: ForkqTree) -> None:
    """Each process said once that Redis went, and once that it is back."""
    lost = Counter(line["pid"] for line in events(tree, LOST))
    back = Counter(line["pid"] for line in events(tree, BACK))
    assert lost == back
    assert set(lost.values()) == {1}, f"{dict(lost)}: {events(tree, LOST)}"


@contextmanager
def full(server: Server) -> Iterator[None]:
    """Inside, the server refuses each command that needs memory."""
    server.cli("CONFIG", "SET", "maxmemory", "1")
    try:
        yield
    finally:
        server.cli("CONFIG", "SET", "maxmemory", "0")
