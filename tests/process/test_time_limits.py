"""Time limits in whole trees: what ends a job that runs for too long, and what it spares."""

from __future__ import annotations

import time
from pathlib import Path

from redis import Redis

from tests.process.shared import (
    APP,
    Journal,
    events,
    measured,
    payloads,
    push,
    wait_settled,
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
    assert 0.4 < ended.at - begun.at < within(1)
    (job,) = payloads(redis, "retry")
    assert (job["jid"], job["error_class"]) == (spin, "forkq.errors.TimeLimit")
    assert neighbour in journal.jids("end")
    assert len(workers(forkq)) == 1
    (failed,) = events(forkq, "failed")
    assert "the job has run for its timeout of 0.5 s" in failed["exception"]


def test_a_call_that_blocks_ends_before_its_limit_comes(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """Documented: Python raises between two of its instructions."""
    forkq = tree(redis_server, app=APP, args=JSON, env=journal.env)
    jid = push(redis_server, "Quick", 1.5, timeout=0.1)
    wait_settled(redis)
    assert jid not in journal.jids("end")
    (failed,) = events(forkq, "failed")
    assert failed["elapsed"] >= 1.4


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
