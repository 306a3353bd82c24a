"""A child that stays silent: it is replaced, and killed where that is configured; and a master that
is silent."""

from __future__ import annotations

import json
import signal
from typing import Any

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
    wait_event_of,
    wait_events,
    wait_settled,
    workers,
)
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until, within

REPLACING = "replacing an unhealthy child; it ends when its jobs have"
REMOVING = "removing a child by force; its jobs go back"
MASTER_IS_SILENT = "the master is silent; its children go on, but none that dies is replaced"


def start(
    tree: StartTree, server: Server, journal: Journal, *args: str, replace: float, kill: float = 0
) -> ForkqTree:
    """A tree in which a child is silent after a second."""
    env = {
        **journal.env,
        "FORKQ_SILENT_AFTER": "1",
        "FORKQ_REPLACE_SILENT_AFTER": f"{replace:g}",
        "FORKQ_KILL_SILENT_AFTER": f"{kill:g}",
    }
    options = ["--log-format", "json", "-t", "1", *args]
    return tree(server, app=APP, args=options, env=env)


def test_a_child_that_holds_the_interpreter_is_replaced_and_ends_its_job(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """The new child runs the other jobs meanwhile. Without a limit, it is not killed."""
    forkq = start(tree, redis_server, journal, "-c", "2", replace=2)
    (old,) = workers(forkq)
    held = push(redis_server, "Hold", round(min(within(9), 60)))
    journal.wait("begin", [held])
    quick = push_many(redis_server, "Quick", [[0.01]] * 10)
    line = wait_event_of(forkq, REPLACING, old.pid)
    assert line["why"] == "silent for 2 s"
    journal.wait("end", quick)
    assert held not in journal.jids("end"), "the others have waited for this job"
    wait_settled(redis, deadline=90)
    assert all(len(runs) == 1 for runs in journal.runs().values())
    wait_until(lambda: not old.is_running(), what="the old child's end")
    assert not events(forkq, REMOVING)
    assert [line["pid"] for line in events(forkq, "child is silent")].count(old.pid) == 1
    assert forkq.stop() == 0


@pytest.mark.slow
def test_jobs_that_all_hold_the_interpreter_cost_one_more_process_at_most(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    forkq = start(tree, redis_server, journal, "-c", "1", replace=1)
    first = push(redis_server, "Hold", 60)
    wait_events(forkq, REPLACING)
    wait_until(lambda: len(workers(forkq)) == 2, what="the replacement")
    journal.wait("begin", [first, push(redis_server, "Hold", 60)])
    wait_events(forkq, "child is silent", 2)
    pass_time(2.0)
    assert len(workers(forkq)) == 2
    assert len(events(forkq, REPLACING)) == 1
    assert forkq.stop() == 0


def reasons(redis: Redis, jid: str) -> list[str]:
    """Those of the crash records of a job that waits or is in flight."""
    lists: Any = [redis.lrange("queue:default", 0, -1), redis.hvals("{queue:default}:inflight")]
    jobs = [json.loads(payload) for found in lists for payload in found]
    crashes = [job.get("forkq", {}).get("crashes", []) for job in jobs if job["jid"] == jid]
    return [crash["reason"] for crash in crashes[0]] if crashes else []


@pytest.mark.parametrize("name", ["Hold", "Die"])
def test_a_child_that_stays_silent_is_killed_where_that_is_configured(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal, name: str
) -> None:
    """One that holds the interpreter, and one that is stopped. Its jobs run again, each with a
    crash record that has the reason."""
    forkq = start(tree, redis_server, journal, "-c", "2", replace=0, kill=3)
    (old,) = workers(forkq)
    nap = push(redis_server, "Nap", 60)
    journal.wait("begin", [nap])
    push(redis_server, name, 60 if name == "Hold" else int(signal.SIGSTOP))
    line = wait_event_of(forkq, REMOVING, old.pid)
    assert line["why"] == "silent for 3 s"
    crashes = wait_until(lambda: reasons(redis, nap), what="its neighbour's crash record")
    assert crashes[0] == "silent for 3 s"
    wait_until(lambda: not old.is_running(), what="the old child's end")
    assert not events(forkq, REPLACING)
    assert forkq.stop() == 0


def test_a_stopped_child_is_not_killed_by_default(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Its slot has another child. When it goes on, it ends its job, and then itself."""
    forkq = start(tree, redis_server, journal, "-c", "1", replace=1)
    (old,) = workers(forkq)
    door = journal.path.with_name("open")
    job = push(redis_server, "Gate", str(door))
    journal.wait("begin", [job])
    old.suspend()
    wait_event_of(forkq, REPLACING, old.pid)
    journal.wait("end", [push(redis_server, "Quick", 0.01)])
    pass_time(2.0)
    wait_until(lambda: leased(redis) == [job], what="the acknowledgement of the other job")
    door.touch()
    old.resume()
    wait_settled(redis)
    wait_until(lambda: not old.is_running(), what="its end")
    assert all(len(runs) == 1 for runs in journal.runs().values())
    assert not payloads(redis, "dead")
    assert forkq.stop() == 0


@pytest.mark.slow
def test_a_stopped_clock_is_replaced(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Jobs for later are not late for longer than that takes."""
    forkq = start(tree, redis_server, journal, replace=1)
    (old,) = forkq.children("forkq clock")
    old.suspend()
    wait_until(lambda: len(forkq.children("forkq clock")) == 2, what="a second clock")
    journal.wait("end", [push(redis_server, "Quick", 0.01, at=1.0)])
    old.resume()
    wait_until(lambda: not old.is_running(), what="its end")
    assert forkq.stop() == 0


def test_a_stopped_master_is_told_of_by_its_clock(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Once, with the remedy; and when it is back. Its children go on."""
    forkq = start(tree, redis_server, journal, replace=60)
    forkq.signal(signal.SIGSTOP)
    (line,) = wait_until(lambda: told_of_a_stop(forkq), what="the line of the clock")
    assert (line["level"], line["capsule"]) == ("error", "clock")
    assert (line["master"], line["process"]) == (forkq.pid, "stopped")
    assert line["hint"] == f"kill -CONT {forkq.pid} lets it go on"
    check = forkq.run("status", "--alive")
    assert check.returncode == 1
    assert "has been silent for" in check.stderr
    journal.wait("end", [push(redis_server, "Quick", 0.01)])
    pass_time(1.5)
    forkq.signal(signal.SIGCONT)
    wait_events(forkq, "the master is back")
    assert len(told_of_a_stop(forkq)) == 1
    wait_until(lambda: forkq.run("status", "--alive").returncode == 0, what="a living master")
    assert forkq.stop() == 0


def told_of_a_stop(tree: ForkqTree) -> list[dict[str, Any]]:
    """Not of a master that was only slow for a second."""
    return [line for line in events(tree, MASTER_IS_SILENT) if line["process"] == "stopped"]


NO_DESCRIPTORS = '''

import resource


@forkq.job(name="TakeDescriptors")
def take_descriptors() -> None:
    """Leaves this process no descriptor for a new connection. 0 would forbid it to poll, too."""
    record("begin")
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    record("end")
'''


@pytest.mark.slow
def test_a_child_that_alone_does_not_reach_redis_is_replaced(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """The clock reaches it. The log has the child's stacks, and `forkq status` its state."""
    env = {**journal.env, "FORKQ_SILENT_AFTER": "1", "FORKQ_REPLACE_SILENT_AFTER": "3"}
    app, args = APP.read_text() + NO_DESCRIPTORS, ["--log-format", "json", "-c", "2"]
    forkq = tree(redis_server, app=app, args=args, env=env)
    (old,) = workers(forkq)
    journal.wait("end", [push(redis_server, "TakeDescriptors")])
    redis.client_kill_filter(_type="normal", skipme=True)
    (line,) = wait_events(forkq, "child does not reach redis, but others do", deadline=60)
    assert (line["child"], line["pid"]) == ("default.0", old.pid)
    wait_until(lambda: states(forkq).get("default.0") == "cut off", what="its state")
    assert any(stack["pid"] == old.pid for stack in wait_events(forkq, "idle processors"))
    (line,) = wait_events(forkq, REPLACING, deadline=60)
    assert line["why"].startswith("without an answer of redis for ")
    journal.wait("end", [push(redis_server, "Quick", 0.01)])
    wait_until(lambda: not old.is_running(), what="its end")
    assert forkq.stop() == 0


def states(tree: ForkqTree) -> dict[str, str]:
    """The state of each child in the status file; of two with one name, the older one's."""
    return {child["name"]: child["state"] for child in reversed(tree.status()["children"])}
