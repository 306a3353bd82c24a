"""Flows while children, pushers, clocks, masters and Redis are killed: each step starts once, none
early, none is missing, and each gets what those before it have returned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from redis import Redis

from forkq import api, default_client
from forkq.config.load import load
from tests.process.test_batches_under_kills import SHARDS, Faults, is_over
from tests.support import bound
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

APP = Path(__file__).with_name("flows_app.py")
# How many flows the slow variant pushes.
MANY = int(os.environ.get("FORKQ_TEST_FLOWS", "300"))
PUSHERS = 3
STEP = 3  # flows that begin between two faults

Graph = dict[str, dict[str, str]]


class Run(NamedTuple):
    """One run of a step or a callback: what kind it is, after how many failures and crashes it
    ran, by which process, and when it had come to its queue."""

    kind: str
    tries: str
    pid: int
    came: str


def runs_of(ledger: Redis, bid: str) -> dict[str, list[Run]]:
    """The runs of each step and callback of a flow."""
    found: dict[str, list[Run]] = defaultdict(list)
    lines: Any = ledger.lrange(f"ran:{bid}", 0, -1)
    for line in lines:
        name, kind, tries, pid, came = line.decode().split()
        found[name].append(Run(kind, tries, int(pid), came))
    return found


def expected(graph: Graph, kinds: Mapping[str, str]) -> dict[str, str]:
    """How each step ends in a flow in which no person retries one. ``kinds`` are those of the steps
    that have run."""
    ends: dict[str, str] = {}
    for name, before in graph.items():  # each stands behind those before it
        befores = [(ends[one], how) for one, how in before.items()]
        if any(_cancels(end, how) for end, how in befores):
            ends[name] = "cancelled"
        elif all(end == "done" or (end != "waits" and how == "run") for end, how in befores):
            ends[name] = "dead" if kinds.get(name) == "dead" else "done"
        else:
            ends[name] = "waits"
        if kinds.get(name) == "grows":
            ends |= expected({f"{name}+": {}, f"{name}++": {f"{name}+": "wait"}}, kinds)
    return ends


def _cancels(end: str, how: str) -> bool:
    """Whether a step that has ended so, or waits, cancels the one behind it."""
    return (end in ("dead", "cancelled") and how == "cancel") or (
        end == "cancelled" and how == "wait"
    )


def events_of(ends: Mapping[str, str]) -> set[str]:
    """The callbacks of a flow whose steps have ended so."""
    found = {"on_death"} if "dead" in ends.values() else set()
    if "waits" not in ends.values():
        found |= {"on_finish"} | ({"on_success"} if {*ends.values()} == {"done"} else set())
    return found


def assert_kept(
    bid: str, graph: Graph, runs: Mapping[str, Sequence[Run]], unended: set[str]
) -> int:
    """The steps of a flow have ended as its graph says, and each that could has started once, none
    before those before it. Returns how many steps there are."""
    ends = expected(graph, {name: found[0].kind for name, found in runs.items()})
    assert {step.name: step.state for step in api.Flow(bid).steps()} == ends, bid
    started = {name for name, end in ends.items() if end in ("done", "dead")}
    assert runs.keys() == started | events_of(ends), bid
    assert not started & unended, f"a step was early: {bid} {started & unended}"
    for name, found in runs.items():
        pushes = {(run.tries, run.came) for run in found}
        assert len(pushes) == len({run.tries for run in found}), f"pushed twice: {name} {found}"
    return len(ends)


def needless(runs: Mapping[str, Sequence[Run]], killed: set[int]) -> list[str]:
    """The steps that ran again without a failure, though no process that had run them before was
    killed."""
    return [
        name
        for name, found in runs.items()
        for run, later in pairwise(found)
        if run.tries.partition("/")[0] == later.tries.partition("/")[0] and run.pid not in killed
    ]


def run_flows(
    running: ForkqTree, servers: tuple[Server, Server], rounds: int, kinds: Sequence[str], most: int
) -> Faults:
    """Pushes so many flows in each process while processes are killed, until all has ended."""
    server, made = servers[0], servers[1].client()
    redis = server.client()
    command = bound.command([sys.executable, str(APP), str(PUSHERS), str(rounds)])
    program = subprocess.Popen(command, env=running.env, cwd=running.cwd)
    faults = Faults(running, program, server)
    faults.strike_while_pushed(kinds, most, lambda: made.scard("begun"), STEP, "flows")
    wait_until(partial(is_over, redis), deadline=600, what="the end of all jobs")
    return faults


def check(
    running: ForkqTree, servers: tuple[Server, Server], faults: Faults, *, may_repeat: bool = False
) -> Counter[str]:
    """All flows that were pushed are as they must be. Returns how many flows and steps there are,
    and how many processes were killed. Steps ``may_repeat`` after Redis was."""
    ledger, counts = servers[1].client(), Counter(faults.counts)
    assert ledger.lrange("wrong", 0, -1) == []
    graphs: Any = ledger.hgetall("graphs")
    there = {report.bid for report in api.flows()}
    assert {bid.decode() for bid in cast("Any", ledger.smembers("pushed"))} <= there
    unended: dict[str, set[str]] = defaultdict(set)
    for line in cast("Any", ledger.smembers("unended")):
        bid, name = line.decode().split()
        unended[bid].add(name)
    for bid in there:
        runs, graph = runs_of(ledger, bid), json.loads(graphs[bid.encode()])
        counts += {"flows": 1, "steps": assert_kept(bid, graph, runs, unended[bid])}
        assert may_repeat or needless(runs, faults.killed) == []
    return counts


@pytest.fixture
def all_shards() -> Iterator[Callable[[ForkqTree, Server], None]]:
    """Has ``forkq.api`` look at the shards of a tree."""
    before = default_client.swap(None)

    def use(running: ForkqTree, server: Server) -> None:
        default_client.use(load(None, {}, {"FORKQ_REDIS": server.url}, running.cwd))

    yield use
    if (client := default_client.swap(before)) is not None:
        client.close()


def test_each_step_starts_once_however_many_processes_are_killed(
    tree: StartTree, redis_server: Server, own_server: Server, all_shards: Any
) -> None:
    environ = {"FORKQ_TEST_LEDGER": own_server.url, "FORKQ_REDIS": redis_server.url}
    args = ["-w", "2", "-c", "4", "--log-level", "error"]
    running, servers = tree(app=APP, args=args, env=environ), (redis_server, own_server)
    faults = run_flows(running, servers, 5, ("child", "pusher"), 3)
    all_shards(running, redis_server)
    assert check(running, servers, faults)["flows"] >= 12
    assert faults.killed


@pytest.mark.slow
def test_each_step_starts_once_over_two_shards_whatever_is_killed(
    tree: StartTree, own_server: Server, all_shards: Any
) -> None:
    """FORKQ_TEST_FLOWS says how many flows: pushers, children, masters, clocks and Redis, which has
    an append-only file, are killed while they run."""
    with closing(Server(aof=True, extra=("--appendfsync", "always")).start()) as server:
        environ = {"FORKQ_TEST_LEDGER": own_server.url, "FORKQ_REDIS": server.url}
        environ |= {"FORKQ_TEST_QUEUES": "default mail"}
        args = ["-w", "2", "-c", "4", "-q", "default", "-q", "mail", "--log-level", "error"]
        running = tree(app=APP, args=args, env=environ, config=SHARDS)
        kinds, servers = (
            ("child", "pusher", "clock", "clock", "master", "redis"),
            (server, own_server),
        )
        faults = run_flows(running, servers, MANY // PUSHERS, kinds, max(10, MANY // 30))
        all_shards(running, server)
        print(dict(check(running, servers, faults, may_repeat=True)))  # noqa: T201 - who runs it
