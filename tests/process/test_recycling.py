"""Children that are replaced because of their memory, their age, or the jobs that they have run."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

from tests.process.shared import (
    APP,
    Journal,
    events,
    leased,
    pass_time,
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

JOBS = (
    APP.read_text()
    + '''

_kept = []


@forkq.job(name="Grow")
def grow(megabytes: int, path: str) -> None:
    """Takes memory and keeps it; ends when a file appears."""
    record("begin")
    _kept.append(bytearray(b"x") * (megabytes << 20))
    while not Path(path).exists():
        time.sleep(_SLICE)
    record("end")
'''
)


def start(
    tree: StartTree, server: Server, journal: Journal, limits: str, *args: str, app: str = JOBS
) -> ForkqTree:
    """A tree with these keys under [forkq] that writes its log as JSON."""
    config, options = f"[forkq]\n{limits}\n", ["--log-format", "json", *args]
    return tree(server, app=app, config=config, args=options, env=journal.env)


def ran_once(journal: Journal, jids: list[str]) -> bool:
    """Whether each of these jobs ran to its end, and none of them twice."""
    runs = journal.runs()
    return set(jids) <= journal.jids("end") and all(len(runs[jid]) == 1 for jid in jids)


def pids(journal: Journal) -> set[int]:
    """The processes that have run a job."""
    return {line.pid for line in journal.lines("begin")}


def memory(tree: ForkqTree) -> Mapping[str, int]:
    """What the status file says of the first child's memory."""
    found: dict[str, Any] = wait_until(
        lambda: tree.status()["children"][0]["memory"], what="a measurement"
    )
    return found


def test_children_with_max_jobs_take_turns_under_load_and_lose_nothing(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Jobs are pushed steadily. Each runs once, and each recycling is one line with its figures."""
    forkq = start(tree, redis_server, journal, "max_jobs = 50", "-w", "2", "-c", "3")
    jids: list[str] = []
    done = threading.Event()

    def push_steadily() -> None:
        while not done.wait(0.02):
            if len(waiting(redis)) < 200:  # a slow machine must come to an end with them, too
                jids.extend(push_many(redis_server, "Quick", [[0.005]] * 10))

    pusher = threading.Thread(target=push_steadily)
    pusher.start()
    try:
        lines = wait_events(forkq, "recycling a child", 6)
    finally:
        done.set()
        pusher.join()
    wait_settled(redis, deadline=60)
    assert ran_once(journal, jids)
    assert all(line["jobs"] >= 45 and line["why"] == "max_jobs" for line in lines)
    assert {line["child"] for line in lines} == {"default.0", "default.1"}
    assert {(line["limit"], line["level"]) for line in lines} == {(50, "info")}
    assert len(pids(journal)) >= 6
    wait_until(lambda: len(workers(forkq)) == 2, what="the end of the old children")
    assert not events(forkq, "child died")
    assert forkq.stop() == 0


def test_a_child_that_grows_is_replaced_and_ends_its_job(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal, tmp_path: Path
) -> None:
    """The new child runs jobs before the old one has ended. The line has the figures."""
    forkq = start(tree, redis_server, journal, 'max_memory = "150MB"', "-c", "2")
    (old,) = workers(forkq)
    door = tmp_path / "open"
    hog = push(redis_server, "Grow", 200, str(door))
    (line,) = wait_events(forkq, "recycling a child")
    assert (line["why"], line["pid"], line["limit"]) == ("max_memory", old.pid, "150MB")
    assert 135 <= int(line["memory"].removesuffix("MB")) < 300
    wait_until(lambda: "retiring" in " ".join(old.cmdline()), what="its retirement")
    # A fetch that the old child had sent before may still bring it a job. Redis serves it before
    # the first of these has ended.
    first = push_many(redis_server, "Quick", [[0.01]] * 4)
    journal.wait("end", first)
    quick = push_many(redis_server, "Quick", [[0.01]] * 20)
    journal.wait("end", quick)
    assert old.pid not in {line.pid for line in journal.lines("end") if line.jid in quick}
    wait_until(lambda: leased(redis) == [hog], what="the acknowledgement of all others")
    door.touch()
    wait_settled(redis)
    assert ran_once(journal, [hog, *first, *quick])
    wait_until(lambda: not old.is_running(), what="the old child's end")
    assert forkq.stop() == 0


def test_a_child_far_above_the_limit_is_killed_and_its_jobs_have_crash_records(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal, tmp_path: Path
) -> None:
    """After the third time in a child of its own, the job that always takes too much is buried with
    the reason."""
    limits = 'max_memory = "100MB"\nhard_max_memory = "150MB"'
    forkq = start(tree, redis_server, journal, limits, "-c", "1")
    hog = push(redis_server, "Grow", 200, str(tmp_path / "never"))
    lines = wait_events(forkq, "removing a child by force; its jobs go back", 4)
    assert all(
        re.match(r"memory above hard_max_memory \(\d+MB of 150MB\)", x["why"]) for x in lines
    )
    wait_until(lambda: payloads(redis, "dead"), what="the burial")
    [dead] = payloads(redis, "dead")
    assert dead["jid"] == hog
    assert "memory above hard_max_memory" in dead["error_message"]
    crashes = dead["forkq"]["crashes"]
    assert [crash["reason"] for crash in crashes] == [line["why"] for line in lines]
    assert all(crash["rss"] >= 150 << 10 for crash in crashes)
    quick = push(redis_server, "Quick", 0.01)
    journal.wait("end", [quick])
    assert forkq.stop() == 0


def test_an_old_child_is_replaced(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Its capsule's own limit counts."""
    forkq = start(tree, redis_server, journal, "[capsules.default]\nmax_age = 2", "-c", "1")
    (line, *_) = wait_events(forkq, "recycling a child")
    assert (line["why"], line["limit"]) == ("max_age", 2.0)
    wait_until(lambda: not psutil.pid_exists(line["pid"]), what="the old child's end")
    wait_until(lambda: workers(forkq), what="another child in its place")
    assert forkq.stop() == 0


@pytest.mark.slow
def test_a_replaced_child_that_takes_too_long_returns_its_jobs(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """One job is interrupted. One that cannot be is frozen with its child: no crash record."""
    forkq = start(tree, redis_server, journal, "drain_timeout = 1", "-c", "2")
    (old,) = workers(forkq)
    jids = [push(redis_server, "Nap", 60), push(redis_server, "Block", 60)]
    journal.wait("begin", jids)
    forkq.signal(signal.SIGUSR2)
    wait_until(lambda: "stopping" in " ".join(old.cmdline()), what="its stop")
    journal.wait("finally", jids[:1])
    (line,) = wait_events(forkq, "removing a child by force; its jobs go back")
    assert line["pid"] == old.pid
    assert "drain_timeout" in line["why"]
    wait_until(lambda: all(len(runs) == 2 for runs in journal.runs().values()), what="both again")
    assert len(pids(journal)) == 2
    found: Any = redis.hvals("{queue:default}:inflight")
    assert not any("crashes" in json.loads(payload).get("forkq", {}) for payload in found)
    assert forkq.stop() == 0


def test_a_replacement_that_cannot_boot_leaves_the_old_child_at_work(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """It is tried again, with one line in the log; when the app boots again, it takes over."""
    forkq = start(tree, redis_server, journal, "max_jobs = 10", "-c", "2")
    (old,) = workers(forkq)
    jobs = forkq.cwd / "jobs.py"
    jobs.write_text("raise RuntimeError('no such luck')")
    first = push_many(redis_server, "Quick", [[0.001]] * 30)
    wait_events(forkq, "recycling a child", 3)
    (line,) = events(forkq, "replacement called off: the new child died; the old one goes on")
    assert "no such luck" in line["reason"]
    assert (line["child"], line["why"]) == ("default.0", "max_jobs")
    second = push_many(redis_server, "Quick", [[0.001]] * 30)
    wait_settled(redis)
    assert pids(journal) == {old.pid}
    jobs.write_text(JOBS)
    wait_until(lambda: not old.is_running(), deadline=30, what="the old child's end")
    assert ran_once(journal, first + second)
    assert forkq.status()["ready"]
    assert forkq.stop() == 0


def test_an_app_that_is_larger_than_its_limit_is_not_forked_without_end(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """There are pauses that grow, and a warning."""
    forkq = start(tree, redis_server, journal, 'max_memory = "1MB"', "-c", "1")
    wait_events(forkq, "new children reach max_memory at once; they are recycled less often")
    pass_time(2.0)
    assert len(events(forkq, "recycling a child")) <= 4
    wait_settled(redis)
    assert forkq.stop() == 0


@pytest.mark.parametrize("preload", ["true", "false"])
def test_status_shows_each_child_s_memory_and_what_preload_shares(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal, preload: str
) -> None:
    app = JOBS + '\n_data = bytearray(b"x") * (64 << 20)\n'
    forkq = start(tree, redis_server, journal, f"preload = {preload}", "-w", "2", app=app)
    found = memory(forkq)
    if preload == "true":
        assert found["shared"] >= 64 << 20
        assert found["private"] < 64 << 20
    else:
        assert found["private"] >= 64 << 20
    assert found["private"] < found["used"] < found["private"] + found["shared"]
    shown = forkq.run("status").stdout
    assert re.search(r"^default\.0 +\d+ +running +0 of 5 +0 +0 +\d+MB +\d+MB +default", shown, re.M)
    [child, *_] = json.loads(forkq.run("status", "--json").stdout)["children"]
    assert set(child["memory"]) == {"used", "shared", "private"}
    assert not waiting(redis)
    assert forkq.stop() == 0
