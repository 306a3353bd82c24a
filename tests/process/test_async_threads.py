"""``async def`` jobs in a capsule of threads, in whole trees, with the assertions that hold for a
``def`` job."""

from __future__ import annotations

import re

import pytest
from redis import Redis

from tests.process.shared import (
    APP,
    Journal,
    payloads,
    push,
    wait_settled,
    waiting,
    workers,
)
from tests.support.documents import ROOT, snippets
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until

KINDS = pytest.mark.parametrize("name", ["Nap", "AsyncNap"])
JOBS = (
    APP.read_text()
    + '''

import asyncio


@forkq.job(name="AsyncNap")
async def async_nap(seconds: float) -> None:
    """Sleeps, and cleans up behind itself."""
    record("begin")
    try:
        await asyncio.sleep(seconds)
        record("end")
    finally:
        record("finally")


@forkq.on("startup")
async def opened() -> None:
    await asyncio.sleep(0)
    print("startup in", asyncio.get_running_loop().__class__.__name__, flush=True)


@forkq.on("shutdown")
async def stopping() -> None:
    print("shutdown in the loop", flush=True)


@forkq.on("exit")
async def closed() -> None:
    await asyncio.sleep(0)
    print("exit in the loop", flush=True)
'''
)


@KINDS
def test_a_killed_child_s_job_runs_again(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal, name: str
) -> None:
    forkq = tree(redis_server, app=JOBS, args=["-c", "1"], env=journal.env)
    jid = push(redis_server, name, 0.5)
    journal.wait("begin", [jid])
    workers(forkq)[0].kill()
    wait_settled(redis)
    assert len(journal.runs()[jid]) == 2
    assert jid in journal.jids("end")


@KINDS
def test_the_stop_lets_it_clean_up_and_returns_it_to_its_queue(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal, name: str
) -> None:
    options = ["-c", "1", "--timeout", "0.3"]
    forkq = tree(redis_server, app=JOBS, args=options, env=journal.env)
    jid = push(redis_server, name, 60)
    journal.wait("begin", [jid])
    assert forkq.stop() == 0
    assert journal.jids("finally") == {jid}
    assert waiting(redis) == [jid]
    said = re.findall(r"^(startup|shutdown|exit) in", forkq.log_text(), re.MULTILINE)
    assert said == ["startup", "shutdown", "exit"]


@KINDS
def test_a_time_limit_ends_it(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal, name: str
) -> None:
    tree(redis_server, app=JOBS, args=["-c", "1"], env=journal.env)
    jid = push(redis_server, name, 60, timeout=0.2)
    wait_until(lambda: redis.zcard("retry"), what="the retry")
    (job,) = payloads(redis, "retry")
    assert (job["jid"], job["error_class"]) == (jid, "forkq.errors.TimeLimit")
    assert journal.jids("finally") == {jid}


def test_the_jobs_of_the_page_run_in_a_tree_that_boots_and_stops(
    redis: Redis, redis_server: Server, tree: StartTree
) -> None:
    page = "\n\n".join(each.text for each in snippets(ROOT / "docs" / "async.md", "python"))
    forkq = tree(redis_server, app=page, args=["-c", "2"])
    for job in ("fetch", "put"):
        push(redis_server, f"jobs.{job}", "word")
    push(redis_server, "jobs.Report", "2026-11-26", queue="default")
    wait_settled(redis)
    assert redis.zcard("retry") == 0
    assert forkq.stop() == 0
    assert "a lifecycle handler failed" not in forkq.log_text()
