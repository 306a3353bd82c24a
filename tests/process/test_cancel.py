"""Cancelled jobs in whole trees: what ends, and what it spares."""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil
from redis import Redis

import forkq
from forkq import api
from forkq.servers import Server as ApiServer
from tests.process.shared import (
    APP,
    Journal,
    events,
    measured,
    payloads,
    push,
    solo_children,
    wait_events,
    wait_settled,
    wait_swept,
    workers,
)
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until, within

JSON = ["--log-format", "json"]


def where(server: Server) -> ApiServer:
    return forkq.Client(server.url).servers.default


def test_a_running_job_ends_within_a_second_though_all_processors_are_busy(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    forkq_tree = tree(redis_server, app=APP, args=["-c", "2", *JSON], env=journal.env)
    spinning = [push(redis_server, "Spin") for _ in range(2)]
    journal.wait("begin", spinning)
    began = time.monotonic()
    assert api.cancel(spinning[0], wait=20, where=where(redis_server)) == "removed"
    took = time.monotonic() - began
    measured(f"cancelled after {took * 1000:.0f} ms")
    assert took < within(1)
    assert {line.jid for line in journal.lines("finally")} == {spinning[0]}
    [ended] = wait_events(forkq_tree, "cancelled")
    assert (ended["jid"], ended["class"]) == (spinning[0], "Spin")
    assert api.cancel(spinning[1], wait=20, where=where(redis_server)) == "removed"
    assert not redis.exists("retry", "dead", "forkq:cancelled")
    assert api.stats(where(redis_server)).ended == {"cancelled": 2}


def test_the_command_says_what_has_become_of_the_job(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """A job of the schedule that was cancelled while no tree ran is gone once one runs."""
    client = forkq.Client(redis_server.url)
    later = client.push({"class": "Quick", "args": [0], "at": time.time() + 30 * 86_400})
    commands = ForkqTree(app=APP, env={"FORKQ_REDIS": redis_server.url})
    run = commands.run
    pending = run("cancel", str(later), "--wait", "0")
    assert (pending.returncode, "no leader" in pending.stdout) == (1, True)
    assert "cancelling" in run("find", str(later)).stdout
    tree(redis_server, app=APP, env=journal.env)
    wait_until(lambda: not redis.exists("schedule"), what="the end of the job")
    wait_until(lambda: not redis.exists("forkq:cancelled"), what="the end of its note")
    found = run("find", str(later))
    assert (found.returncode, "it was cancelled, at" in found.stdout) == (1, True)
    unknown = run("cancel", "0123456789abcdef01234567", "--json")
    assert (unknown.returncode, json.loads(unknown.stdout)["outcome"]) == (1, "unknown")
    spinning = push(redis_server, "Spin")
    journal.wait("begin", [spinning])
    removed = run("cancel", spinning)
    assert (removed.returncode, removed.stdout) == (0, f"{spinning} has ended as cancelled\n")
    assert run("cancel").returncode == 2
    commands.close()


def test_a_call_that_blocks_is_ended_by_force_and_its_neighbour_is_not(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    forkq_tree = tree(redis_server, app=APP, args=["-c", "2", *JSON], env=journal.env)
    [child] = workers(forkq_tree)
    neighbour = push(redis_server, "Gate", str(gate))
    stuck = push(redis_server, "Block", 300)
    journal.wait("begin", [neighbour, stuck])
    assert api.cancel(stuck, wait=0.5, where=where(redis_server)) in ("asked", "pending")
    api.cancel(stuck, force=True, grace=0.3, where=where(redis_server))
    [line] = wait_events(forkq_tree, "a cancelled job goes on")
    assert (line["class"], line["jid"]) == ("Block", stuck)
    wait_until(lambda: len(workers(forkq_tree)) == 2, what="the replacement")
    gate.touch()
    journal.wait("end", [neighbour])
    wait_until(
        lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, what="kill"
    )
    wait_settled(redis)
    wait_until(lambda: not redis.exists("forkq:cancelled"), what="the end of the note")
    assert len(journal.runs()[stuck]) == len(journal.runs()[neighbour]) == 1
    assert not redis.exists("retry", "dead")
    assert api.cancelled_at(stuck, where(redis_server)) is not None


def test_a_job_that_runs_alone_is_cancelled_there(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    forkq_tree = tree(redis_server, app=APP, args=JSON, env=journal.env)
    wait_swept(redis, forkq_tree)
    jid = push(redis_server, "Spin")
    journal.wait("begin", [jid])
    workers(forkq_tree)[0].kill()
    wait_until(lambda: len(journal.runs()[jid]) == 2, deadline=60, what="the run alone")
    assert solo_children(forkq_tree)
    assert api.cancel(jid, wait=20, where=where(redis_server)) == "removed"
    assert not payloads(redis, "dead")
    assert not events(forkq_tree, "failed")
