"""A queue is deleted, as Sidekiq's UI does it, while a job of it is in flight. The job goes on, is
found, and goes back to its queue however its process ends."""

from __future__ import annotations

import signal

import pytest
from redis import Redis

from tests.process.shared import APP, Journal, leased, push, waiting, workers
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until

QUEUES = pytest.mark.parametrize("queues", ["gone", "go*"], ids=["by name", "by pattern"])


def delete(redis: Redis, queue: str) -> None:
    """What the UI's button does."""
    redis.delete(f"queue:{queue}")
    redis.srem("queues", queue)


@QUEUES
def test_its_job_is_found_and_runs_again_after_its_child_and_its_tree_were_killed(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal, queues: str
) -> None:
    args = ["-q", queues, "-c", "1"]
    tree_ = tree(redis_server, app=APP, args=args, env=journal.env)
    jid = push(redis_server, "Nap", 60, queue="gone")
    journal.wait("begin", [jid])
    delete(redis, "gone")
    found = tree_.run("find", jid, "--redis", redis_server.url)
    assert "running" in found.stdout, found
    workers(tree_)[0].kill()
    wait_until(lambda: len(journal.lines("begin")) == 2, what="its second run")
    assert redis.smembers("queues") == {b"gone"}
    delete(redis, "gone")
    children = tree_.children()
    tree_.signal(signal.SIGKILL)
    for child in children:
        child.kill()
    tree_.wait()
    tree_.start()
    wait_until(lambda: len(journal.lines("begin")) == 3, deadline=60, what="its third run")
    assert redis.smembers("queues") == {b"gone"}


@QUEUES
@pytest.mark.parametrize("job", ["Nap", "Stubborn"])
def test_its_job_waits_in_it_after_a_stop(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal, job: str, queues: str
) -> None:
    """Given back by the child itself, or by the master for one that ignores the stop."""
    args = ["-q", queues, "-c", "1", "-t", "0.2"]
    tree_ = tree(redis_server, app=APP, args=args, env=journal.env)
    jid = push(redis_server, job, *([60] if job == "Nap" else []), queue="gone")
    journal.wait("begin", [jid])
    delete(redis, "gone")
    tree_.stop()
    assert leased(redis, "gone") == []
    assert waiting(redis, "gone") == [jid]
    assert redis.smembers("queues") == {b"gone"}
