"""A tree that reaches Redis through Sentinels: each failover is followed, and no job is lost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError

import forkq
from forkq.steps.signals import signal_to
from tests.process.shared import (
    APP,
    Journal,
    counter,
    events,
    leased,
    measured,
    push,
    push_many,
    wait_events,
    wait_settled,
)
from tests.support.sentinels import Sentinel, SentinelGroup
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until, within

LOST, BACK = "redis lost", "redis is back"
TREE = "tree-of-the-test"
ARGS = ["-w", "2", "-c", "5", "--log-format", "json", "--log-level", "info"]


@pytest.fixture
def group() -> Iterator[SentinelGroup]:
    group = SentinelGroup()
    try:
        yield group.wait_complete()
    finally:
        group.close()


@pytest.mark.parametrize(
    "way",
    [
        "kill",
        pytest.param("failover", marks=pytest.mark.slow),
        pytest.param("freeze", marks=pytest.mark.slow),
    ],
)
def test_a_failover_is_followed_and_loses_no_job(
    group: SentinelGroup, tree: StartTree, journal: Journal, way: str
) -> None:
    """The master is killed, asked to step down, or frozen. Then it comes back, as a master for a
    moment. Jobs that the new master knows all run; processes follow within 3 s of the promotion. A
    job that waits for a signal gets it from the new master, and does no step again."""
    redis = group.new.client()
    running = tree(f"{group.url}?client_name={TREE}", app=APP, args=ARGS, env=journal.env)
    door = journal.path.with_name("open")
    first = push_many(group.url, "Gate", [[str(door)]] * 4)
    journal.wait("begin", first)
    waits = push(group.url, "Waits", 7)
    wait_until(lambda: group.old.client().zcard("schedule") == 1, what="the wait for a signal")
    rest = push_many(group.url, "Quick", [[0.02]] * 500)
    group.replicate()
    if way == "kill":
        group.old.kill()
    elif way == "freeze":
        group.old.pause()
    else:
        group.sentinels[0].cli("SENTINEL", "FAILOVER", "main")
    wait_until(group.promoted, deadline=30, what="a new master")
    promoted = time.monotonic()
    wait_until(lambda: _connections(redis) >= 4, what="both children at the new master")
    spent = time.monotonic() - promoted
    measured(f"{way}: both children were at the new master {spent:.1f} s after its promotion")
    assert spent < within(3)
    if way == "kill":
        group.old.start()  # as a master, with its old data
    elif way == "freeze":
        group.old.resume()
    door.touch()
    late = push(group.url, "Quick", 0.001)
    with closing(forkq.Client(group.url)) as client:
        assert signal_to([*client.servers], "go", 7, None, 900, for_one=False)
    wait_until(lambda: waits in journal.jids("end"), what="the job that has waited")
    wait_settled(redis, deadline=40)
    assert journal.jids("end") == {*first, *rest, late, waits}
    assert [line.jid for line in journal.lines("step")] == [waits]
    wait_until(group.demoted, deadline=40, what="the old master's new role")
    assert leased(redis) == []
    wait_until(lambda: counter(redis, "processed") > 0, what="the counts")
    wait_until(lambda: _told(events(running, LOST)) == _told(events(running, BACK)), what="an end")
    assert set(_told(events(running, LOST)).values()) == {1}, events(running, LOST)
    assert running.stop() == 0


def _connections(redis: Redis) -> int:
    """How many connections of the tree a server has."""
    with suppress(RedisError):  # in a failover Sentinels end connections
        clients: Any = redis.client_list(_type="normal")
        return sum(1 for each in clients if each["name"] == TREE)
    return 0


def _told(lines: list[dict[str, Any]]) -> Counter[int]:
    return Counter(line["pid"] for line in lines)


@pytest.fixture
def sentinel(own_server: Server) -> Iterator[Sentinel]:
    server = Sentinel(own_server).start()
    yield server
    server.close()


def test_commands_find_the_master(
    sentinel: Sentinel, own_server: Server, tree: StartTree, journal: Journal
) -> None:
    """No output shows a password."""
    url = f"sentinel://:sesame@127.0.0.1:{sentinel.port}/main/0"
    own_server.cli("CONFIG", "SET", "requirepass", "sesame")
    forkq = tree(None, app=APP, args=ARGS, env={**journal.env, "FORKQ_REDIS": url})
    forkq.env["FORKQ_REDIS"] = url
    for command in ("push Quick 0.001", "stats", "running", "config show"):
        done = forkq.run(*command.split())
        assert done.returncode == 0, done.stderr
        assert "sesame" not in done.stdout + done.stderr
    wait_until(lambda: journal.jids("end"), what="the job")
    forkq.env["FORKQ_REDIS"] = url.replace("main", "mian")
    done = forkq.run("stats")
    assert (done.returncode, "watches no master named mian" in done.stderr) == (6, True)
    assert "Traceback" not in done.stderr
    assert "sesame" not in done.stderr
    assert forkq.stop() == 0
    assert "sesame" not in forkq.log_text()


def test_a_name_that_no_sentinel_knows_ends_the_start(sentinel: Sentinel, tree: StartTree) -> None:
    refused = tree(f"sentinel://127.0.0.1:{sentinel.port}/mian", app=APP, ready=False,
                   env={"FORKQ_TEST_JOURNAL": "/dev/null"})  # fmt: skip
    assert refused.wait() == 6
    assert "watches no master named mian" in refused.log_text()
    assert "Traceback" not in refused.log_text()


def test_a_start_waits_for_sentinels_and_for_a_master(
    sentinel: Sentinel, own_server: Server, tree: StartTree, journal: Journal
) -> None:
    """A replica may be the master soon: unlike with a redis:// URL, it is no reason to end."""
    own_server.cli("REPLICAOF", "127.0.0.1", 1)
    sentinel.stop()
    url = f"sentinel://127.0.0.1:{sentinel.port}/main"
    forkq = tree(url, app=APP, args=ARGS, env=journal.env, ready=False)
    (line,) = wait_events(forkq, "redis cannot be reached; waiting for it")
    assert "no Sentinel names the master main" in line["error"]
    sentinel.start()
    wait_events(forkq, LOST)
    own_server.cli("REPLICAOF", "NO", "ONE")
    jid = push(own_server, "Quick", 0.001)
    journal.wait("end", [jid])
    assert "Traceback" not in forkq.log_text()
    assert forkq.stop() == 0
