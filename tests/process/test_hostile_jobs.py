"""Jobs that harm the process they run in: its fork, its descriptors, its exit code."""

from __future__ import annotations

import sys

import pytest
from redis import Redis

from tests.process.scene import (
    APP,
    Journal,
    counter,
    leased,
    payloads,
    push,
    push_many,
    wait_settled,
    waiting,
    workers,
)
from tests.support.server import Server
from tests.support.tree import Forest
from tests.support.waiting import wait_until

forking = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.mark.parametrize("raises", [False, True])
def test_the_copy_of_a_job_that_forks_takes_no_other_job(
    redis: Redis, redis_server: Server, tree: Forest, journal: Journal, raises: bool
) -> None:
    """It would go on as a processor, on the same connection, with the same leases."""
    forkq = tree(redis_server, app=APP, args=["-c", "2"], env=journal.env)
    jids = push_many(redis_server, "Fork", [[raises]] * 20)
    jids += push_many(redis_server, "Quick", [[0.001]] * 200)
    wait_settled(redis)
    assert sorted(journal.lines("end")[i].jid for i in range(220)) == sorted(jids)
    assert len(journal.lines("end")) == 220
    assert {line.pid for line in journal.lines("end")} == {workers(forkq)[0].pid}
    assert payloads(redis, "retry") == []
    assert forkq.stop() == 0
    forkq.assert_gone()


def test_a_job_may_end_a_process_of_its_own(
    redis: Redis, redis_server: Server, tree: Forest, journal: Journal
) -> None:
    """SIGTERM to a job's forked process neither bounces off it nor stops the child."""
    forkq = tree(redis_server, app=APP, args=["-c", "1"], env=journal.env)
    [child] = workers(forkq)
    jid = push(redis_server, "Pool")
    journal.wait("end", [jid], deadline=15)
    wait_settled(redis)
    assert workers(forkq) == [child]
    assert journal.lines("survived") == []
    assert forkq.stop() == 0


@pytest.mark.parametrize("code", [0, 75])
def test_an_exit_from_inside_a_job_is_a_crash_whatever_the_code(
    redis: Redis, redis_server: Server, tree: Forest, journal: Journal, code: int
) -> None:
    """Such a job is buried when it has done it three times, and the tree goes on."""
    forkq = tree(redis_server, app=APP, args=["-c", "1"], env=journal.env)
    jid = push(redis_server, "Exit", code)
    [found] = wait_until(lambda: payloads(redis, "dead"), deadline=20, what="its burial")
    assert found["jid"] == jid
    assert [crash["exit"] for crash in found["forkq"]["crashes"]] == [code] * 3
    forkq.wait_log("job buried: its process died too often")
    after = push(redis_server, "Quick", 0.001)
    journal.wait("end", [after], deadline=15)
    assert len(journal.lines("begin")) == 4
    assert forkq.stop() == 0


def test_many_jobs_that_end_their_child_at_once_do_not_look_like_an_app_that_cannot_boot(
    redis: Redis, redis_server: Server, tree: Forest, journal: Journal
) -> None:
    """A child is ready before its first job can end it."""
    push_many(redis_server, "Exit", [[1]] * 4)
    forkq = tree(redis_server, app=APP, args=["-c", "4"], env=journal.env, ready=False)
    wait_until(lambda: len(payloads(redis, "dead")) == 4, deadline=30, what="four burials")
    assert "cannot boot" not in forkq.log_text()
    assert waiting(redis) == leased(redis) == []
    assert forkq.stop() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the pipes in /proc: test on Linux")
def test_garbage_on_a_childs_pipes_harms_nobody_else(
    redis: Redis, redis_server: Server, tree: Forest, journal: Journal
) -> None:
    forkq = tree(redis_server, app=APP, args=["-w", "2", "-c", "1"], env=journal.env)
    jid = push(redis_server, "Scribble")
    journal.wait("end", [jid])
    after = push_many(redis_server, "Quick", [[0.001]] * 50)
    journal.wait("end", after)
    assert forkq.alive
    assert counter(redis, "failed") == 0
    assert forkq.stop() == 0
