"""Time limits in whole trees: what ends a job that runs for too long, and what it spares."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

from tests.process.shared import (
    APP,
    Journal,
    events,
    listening,
    measured,
    payloads,
    push,
    wait_events,
    wait_settled,
    wait_swept,
    waiting,
    workers,
)
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until, within

JSON = ["--log-format", "json"]


def test_a_python_loop_ends_at_its_limit_and_is_retried(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    forkq = tree(redis_server, app=APP, args=["-c", "2", *JSON], env=journal.env)
    neighbour = push(redis_server, "Nap", 1)
    spin = push(redis_server, "Spin", timeout=0.5)
    wait_settled(redis)
    (begun,) = journal.runs()[spin]
    (ended,) = [line for line in journal.lines("finally") if line.jid == spin]
    measured(f"a limit of 500 ms came after {(ended.at - begun.at) * 1000:.0f} ms")
    assert 0.4 < ended.at - begun.at < within(5)
    (job,) = payloads(redis, "retry")
    assert (job["jid"], job["error_class"]) == (spin, "forkq.errors.TimeLimit")
    assert neighbour in journal.jids("end")
    assert len(workers(forkq)) == 1
    (failed,) = wait_events(forkq, "failed")
    assert "the job has run for its timeout of 0.5 s" in failed["exception"]


def test_a_call_that_blocks_ends_before_its_limit_comes(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """Documented: Python raises between two of its instructions."""
    forkq = tree(redis_server, app=APP, args=JSON, env=journal.env)
    jid = push(redis_server, "Quick", 0.6, timeout=0.1)
    wait_settled(redis)
    assert jid not in journal.jids("end")
    (failed,) = wait_events(forkq, "failed")
    assert failed["elapsed"] >= 0.5


def test_a_limit_of_the_file_is_in_force(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal, tmp_path: Path
) -> None:
    config = tmp_path / "forkq.toml"
    config.write_text("[capsules.default]\njob_timeout = 0.2\n")
    tree(redis_server, app=APP, args=["-C", str(config)], env=journal.env)
    push(redis_server, "Spin")
    wait_settled(redis)
    assert [job["error_class"] for job in payloads(redis, "retry")] == ["forkq.errors.TimeLimit"]


def test_a_stop_takes_a_job_back_that_swallowed_its_limit(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    forkq = tree(redis_server, app=APP, args=["-t", "1", *JSON], env=journal.env)
    jid = push(redis_server, "Stubborn", timeout=0.2)
    journal.wait("begin", [jid])
    at = journal.lines("begin")[0].at
    wait_until(lambda: time.monotonic() > at + 0.5, what="the limit to be over")
    assert forkq.stop() == 0
    assert waiting(redis) == [jid]
    assert not payloads(redis, "retry")


def assert_failed(redis: Redis, jid: str, key: str = "dead") -> dict[str, Any]:
    """The one entry of a set: ``jid``, which went on beyond its hard limit."""
    wait_until(lambda: redis.zcard(key), what=f"an entry in {key}")
    (job,) = payloads(redis, key)
    assert (job["jid"], job["error_class"]) == (jid, "forkq.errors.TimeLimit")
    assert "beyond its hard_timeout, and was" in job["error_message"]
    assert "forkq" not in job
    return job


@pytest.mark.parametrize(
    ("name", "args"), [("Hold", [60]), pytest.param("Regex", [], marks=pytest.mark.slow)]
)
def test_a_job_that_holds_the_interpreter_is_ended_and_its_neighbour_goes_back(
    redis_server: Server,
    redis: Redis,
    tree: StartTree,
    journal: Journal,
    name: str,
    args: list[int],
) -> None:
    """No thread of the child can run, so only the master can end it."""
    forkq = tree(redis_server, app=APP, args=["-c", "2", *JSON], env=journal.env)
    neighbour = push(redis_server, "Nap", 3)
    journal.wait("begin", [neighbour])
    stuck = push(redis_server, name, *args, retry=0, timeout=0.5, hard_timeout=1)
    journal.wait("begin", [stuck])
    began = journal.lines("begin")[-1].at
    assert_failed(redis, stuck)
    measured(f"hard_timeout of 1 s: settled after {time.monotonic() - began:.2f} s")
    wait_settled(redis)
    assert len(journal.runs()[stuck]) == 1
    assert [line.pid for line in journal.runs()[neighbour]][-1] == workers(forkq)[0].pid
    assert neighbour in journal.jids("end")
    assert "most recent call first" in forkq.log_text()
    [failed] = [line for line in events(forkq, "failed") if line["jid"] == stuck]
    assert 1 <= failed["elapsed"] < 60
    assert not events(forkq, "job buried: its process died too often under it")


@pytest.mark.parametrize(("name", "args"), [("Block", [60]), ("Hold", [60])])
def test_a_suspect_that_an_ordinary_child_runs_keeps_its_hard_limit(
    redis_server: Server,
    redis: Redis,
    tree: StartTree,
    journal: Journal,
    name: str,
    args: list[int],
) -> None:
    """No solo child boots beside it. The child ends with the suspect, and another one follows."""
    app, env = listening(journal)
    forkq = tree(redis_server, app=app, args=["-c", "2", *JSON], env=env)
    wait_swept(redis, forkq)
    stuck = push(redis_server, name, *args, retry=0, hard_timeout=3)
    journal.wait("begin", [stuck])
    workers(forkq)[0].kill()
    wait_until(lambda: redis.zcard("dead"), deadline=60, what="the burial")
    (job,) = payloads(redis, "dead")
    assert (job["jid"], job["error_class"]) == (stuck, "forkq.errors.TimeLimit")
    first, alone = journal.runs()[stuck]
    assert first.pid != alone.pid
    assert not any(crash.get("alone") for crash in job["forkq"]["crashes"])
    after = push(redis_server, "Quick", 0.01)
    journal.wait("end", [after])
    assert forkq.stop() == 0


def test_the_other_jobs_of_the_child_get_their_time(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal, tmp_path: Path
) -> None:
    """The replacement is ready first; the neighbour ends in the old child, and runs once."""
    forkq = tree(redis_server, app=APP, args=["-c", "2", "-t", "60", *JSON], env=journal.env)
    (old,) = workers(forkq)
    gate = tmp_path / "gate"
    neighbour = push(redis_server, "Gate", str(gate))
    stuck = push(redis_server, "Stubborn", timeout=0.3, hard_timeout=0.6)
    journal.wait("begin", [neighbour, stuck])
    (line,) = wait_events(forkq, "a job goes on beyond its hard_timeout")
    assert (line["class"], line["jid"]) == ("Stubborn", stuck)
    assert "in stubborn" in line["stack"]
    fresh = push(redis_server, "Quick", 0)
    journal.wait("end", [fresh])  # in the replacement, once it is ready
    wait_until(lambda: len(workers(forkq)) == 2, what="the replacement beside the old child")
    later = push(redis_server, "Quick", 0)
    journal.wait("end", [later])
    gate.touch()
    job = assert_failed(redis, stuck, "retry")
    assert job["retry_count"] == 0
    assert re.search(r"; it was in .*stubborn \(.*:\d+\)", job["error_message"])
    wait_settled(redis)
    wait_until(lambda: not psutil.pid_exists(old.pid), what="the old child to be gone")
    assert [line.pid for line in journal.runs()[neighbour]] == [old.pid]
    assert neighbour in journal.jids("end")
    assert len(journal.runs()[stuck]) == 1


def test_a_neighbour_that_takes_too_long_goes_back_without_a_crash_record(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal, tmp_path: Path
) -> None:
    forkq = tree(redis_server, app=APP, args=["-c", "2", "-t", "1", *JSON], env=journal.env)
    (old,) = workers(forkq)
    gate = tmp_path / "gate"
    neighbour = push(redis_server, "Gate", str(gate))
    stuck = push(redis_server, "Block", 60, retry=0, hard_timeout=0.5)
    journal.wait("begin", [neighbour, stuck])
    assert_failed(redis, stuck)
    wait_until(lambda: len(journal.runs()[neighbour]) == 2, what="the neighbour's second run")
    wait_until(lambda: not psutil.pid_exists(old.pid), what="the old child to be gone")
    leases: Any = redis.hvals("{queue:default}:inflight")
    assert [b"crashes" in lease for lease in leases] == [False]
    gate.touch()
    wait_settled(redis)
    assert neighbour in journal.jids("end")
    assert len(workers(forkq)) == 1


def test_a_job_that_ends_in_its_last_moment_is_not_failed(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal, tmp_path: Path
) -> None:
    """While the child is drained, the overdue job may still end by itself."""
    forkq = tree(redis_server, app=APP, args=["-c", "2", "-t", "60", *JSON], env=journal.env)
    gate, last = tmp_path / "gate", tmp_path / "last"
    late = push(redis_server, "Gate", str(gate), hard_timeout=0.5)
    neighbour = push(redis_server, "Gate", str(last))
    journal.wait("begin", [late, neighbour])
    wait_until(lambda: len(workers(forkq)) == 2, what="the replacement beside the old child")
    gate.touch()
    wait_events(forkq, "an overdue job has ended by itself")
    last.touch()
    wait_settled(redis)
    assert {late, neighbour} <= journal.jids("end")
    assert not redis.exists("dead", "retry")
    wait_until(lambda: len(workers(forkq)) == 1, what="the old child to end")
    assert not events(forkq, "removing a child by force; its jobs go back")


def test_a_stop_wins_over_a_hard_limit(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal, tmp_path: Path
) -> None:
    """While the child of an overdue job is drained, the tree stops: both jobs go back."""
    forkq = tree(redis_server, app=APP, args=["-c", "2", "-t", "4", *JSON], env=journal.env)
    stuck = push(redis_server, "Stubborn", hard_timeout=0.5)
    neighbour = push(redis_server, "Gate", str(tmp_path / "never"))
    journal.wait("begin", [stuck, neighbour])
    wait_until(lambda: len(workers(forkq)) == 2, what="the replacement beside the old child")
    assert forkq.stop() == 0
    assert sorted(waiting(redis)) == sorted([stuck, neighbour])
    assert not redis.exists("dead", "retry")
