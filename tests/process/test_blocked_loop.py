"""A job that blocks the event loop of its child: it is named, and all else goes on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tests.process.shared import (
    Journal,
    leased,
    payloads,
    push,
    push_many,
    wait_events,
    wait_settled,
    waiting,
    workers,
)
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

APP = Path(__file__).with_name("async_app.py")
CONFIG = """
[log]
level = "info"
format = "json"
[capsules.default]
kind = "{kind}"
concurrency = 50
"""
BLOCKS = "a job blocks the event loop: the other coroutines of this child wait"
CALLBACK_BLOCKS = "a callback of no job blocks the event loop: the coroutines of this child wait"
GOES_ON = "a job goes on after its TimeLimit"


@pytest.fixture
def start(redis_server: Server, tree: StartTree, journal: Journal) -> Any:
    def started(*args: str, kind: str = "async", more: str = "") -> ForkqTree:
        config = CONFIG.format(kind=kind) + more
        return tree(redis_server, app=APP, config=config, args=args, env=journal.env)

    return started


def identities(redis: Redis) -> list[Any]:
    found: Any = redis.smembers("processes")
    return list(found)


def blocking(redis: Redis, identity: Any) -> Any:
    return redis.hget(identity, "blocking")


@pytest.mark.parametrize("kind", ["async", "threads"])
def test_it_is_named_and_everything_but_its_loop_goes_on(
    start: Any, redis_server: Server, redis: Redis, journal: Journal, tmp_path: Path, kind: str
) -> None:
    """The heartbeat, another capsule, and in a capsule of threads the other threads."""
    door, other = tmp_path / "door", push(redis_server, "Gate", str(tmp_path / "door"))
    tree = start(kind=kind, more='[capsules.other]\nqueues = ["other"]\n')
    journal.wait("begin", [other])
    bad = push(redis_server, "BlockUntil", str(door))
    [line] = wait_events(tree, BLOCKS, 1)
    assert (line["class"], line["jid"]) == ("BlockUntil", bad)
    assert line["seconds"] >= 0.2
    assert "in block_until" in line["stack"]
    at = ("--redis", redis_server.url)
    wait_until(
        lambda: any(blocking(redis, one) for one in identities(redis)), what="a beat", deadline=30
    )
    [here] = [one for one in identities(redis) if blocking(redis, one)]
    before = redis.hget(here, "beat")
    elsewhere = push_many(redis_server, "Nap", [[0.01]] * 5, queue="other")
    journal.wait("end", elsewhere)
    if kind == "threads":
        journal.wait("end", [push(redis_server, "Sync", 0.01)])
    wait_until(lambda: redis.hget(here, "beat") != before, what="a heartbeat", deadline=30)
    wait_until(
        lambda: "blocks the event loop" in tree.run("running", *at).stdout,
        what="the sign",
        deadline=30,
    )
    told = tree.run("doctor", *at).stdout
    assert f"job BlockUntil {bad} blocks the event loop of process" in told
    assert sorted(leased(redis)) == sorted([bad, other])
    door.touch()
    wait_settled(redis)
    assert tree.stop() == 0
    assert journal.jids("end") >= {bad, other}


def test_a_callback_of_no_job_is_told_to_people_and_ends_by_a_hard_limit(
    start: Any, redis_server: Server, redis: Redis, journal: Journal, tmp_path: Path
) -> None:
    """It has no job that could fail in the place of the one that cannot end."""
    door = tmp_path / "door"
    waits = push(redis_server, "Gate", str(door), hard_timeout=11, retry=0)
    others = push_many(redis_server, "Gate", [[str(door)]] * 3)
    tree = start()
    journal.wait("begin", [waits, *others])
    push(redis_server, "BlockLater", str(tmp_path / "never"))
    [line] = wait_events(tree, CALLBACK_BLOCKS, 1)
    assert line["function"].startswith("_reads_until (")
    at = ("--redis", redis_server.url)

    def is_told() -> bool:
        return "a callback of no job blocks the event loop" in tree.run("running", *at).stdout

    wait_until(is_told, what="the sentence", every=0.2)
    told = tree.run("running", *at).stdout.splitlines()[-1]
    assert re.search(r"of process \d+ on .*, for [\d.]+ m?s, in _reads_until \(.*py:\d+\)$", told)
    [identity] = (str(one, "utf-8") for one in identities(redis))
    shown = tree.run("processes", "show", identity, *at).stdout
    assert "a callback of no job blocks the event loop, in _reads_until (" in shown
    said = "a callback of no job blocks the event loop of process"
    wait_until(lambda: said in tree.run("doctor", *at).stdout, what="the doctor", every=0.3)
    wait_until(lambda: redis.zcard("dead") == 1, what="the burial", deadline=30)
    [dead] = payloads(redis, "dead")
    assert dead["jid"] == waits
    assert "the event loop was blocked by _reads_until (" in dead["error_message"]
    door.touch()
    wait_settled(redis)
    assert journal.jids("end") >= set(others)
    assert redis.zcard("retry") == 0
    assert tree.stop() == 0


def test_a_stop_ends_in_time_and_returns_all(
    start: Any, redis_server: Server, redis: Redis, journal: Journal, tmp_path: Path
) -> None:
    jids = push_many(redis_server, "Nap", [[60]] * 20)
    tree = start("-t", "1")
    journal.wait("begin", jids)
    jids.append(push(redis_server, "BlockUntil", str(tmp_path / "door")))
    wait_events(tree, BLOCKS, 1)
    assert tree.stop(deadline=10) == 0
    tree.assert_gone()
    assert waiting(redis) == jids


def test_its_hard_timeout_ends_the_child_and_fails_it_alone(
    start: Any, redis_server: Server, redis: Redis, journal: Journal, tmp_path: Path
) -> None:
    """Nothing else can go on in that loop: the child is not drained first."""
    door = tmp_path / "door"
    jids = push_many(redis_server, "Gate", [[str(door)]] * 20)
    tree = start()
    journal.wait("begin", jids)
    bad = push(redis_server, "BlockUntil", str(tmp_path / "never"), hard_timeout=1, retry=0)
    wait_until(lambda: redis.zcard("dead") == 1, what="its burial", deadline=20)
    [dead] = payloads(redis, "dead")
    assert (dead["jid"], dead["error_class"]) == (bad, "forkq.errors.TimeLimit")
    assert "it was in block_until" in dead["error_message"]
    door.touch()
    wait_settled(redis)
    assert redis.zcard("retry") == 0
    assert journal.jids("end") == set(jids)
    assert tree.stop() == 0


def test_one_that_holds_the_interpreter_is_ended_by_the_master(
    start: Any, redis_server: Server, redis: Redis, journal: Journal, tmp_path: Path
) -> None:
    """docs/jobs.md: "it holds the interpreter's lock ... So the master does not wait". The child
    cannot say which of its jobs it is: the table of limits does."""
    door = tmp_path / "door"
    jids = push_many(redis_server, "Gate", [[str(door)]] * 20)
    tree = start()
    journal.wait("begin", jids)
    bad = push(redis_server, "Hold", 600, hard_timeout=1, retry=0)
    wait_until(lambda: redis.zcard("dead") == 1, what="its burial", deadline=20)
    [dead] = payloads(redis, "dead")
    assert (dead["jid"], dead["error_class"]) == (bad, "forkq.errors.TimeLimit")
    door.touch()
    wait_settled(redis)
    assert journal.jids("end") == set(jids)
    assert (redis.zcard("retry"), redis.exists("{queue:default}:suspects")) == (0, 0)
    assert tree.stop() == 0


def test_the_limits_of_others_that_strike_meanwhile_accuse_the_one_that_blocks(
    start: Any, redis_server: Server, redis: Redis, journal: Journal, tmp_path: Path
) -> None:
    """They could not hear of their limits. The one that blocks has none, and is ended by theirs."""
    door = tmp_path / "door"
    late = push_many(*(redis_server, "Gate", [[str(door)]] * 3), timeout=1, hard_timeout=8, retry=0)
    tree = start()
    journal.wait("begin", late)
    bad = push(redis_server, "BlockUntil", str(tmp_path / "never"), retry=0)
    wait_until(lambda: redis.zcard("dead") == 1, what="its burial", deadline=30)
    [dead] = payloads(redis, "dead")
    assert (dead["jid"], dead["error_class"]) == (bad, "forkq.errors.TimeLimit")
    assert "the job blocked the event loop until another one" in dead["error_message"]
    door.touch()
    wait_settled(redis)
    assert redis.zcard("dead") == 1
    assert journal.jids("end") == set(late)
    assert GOES_ON not in tree.log_text()
    assert "blocked_by" in tree.log_text()
    assert tree.stop() == 0


def test_a_job_that_ends_before_it_hears_of_its_limit_is_not_accused(
    start: Any, redis_server: Server, redis: Redis, journal: Journal, tmp_path: Path
) -> None:
    """Its future was done, and its limit struck, while another job blocked the loop."""
    start_of = push(redis_server, "Nap", 0.6, timeout=1)
    tree = start()
    journal.wait("begin", [start_of])
    push(redis_server, "BlockLoop", 2.5)
    wait_settled(redis)
    assert len(workers(tree)) == 1
    assert tree.stop() == 0
    assert "swallowed" not in tree.log_text()
    assert GOES_ON not in tree.log_text()
